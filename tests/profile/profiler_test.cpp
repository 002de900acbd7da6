// Spans: whose kernel it is, in which pass and module, and that they add up to the time that a clock of their own shows.
#include "profile/profiler.h"

#include <chrono>
#include <stdexcept>
#include <thread>

#include "autodiff/engine.h"
#include "backend/observer.h"
#include "ops/captured_step.h"
#include "ops/checkpoint.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "profile/op_table.h"
#include "skip.h"
#include "support.h"
#include "tensor/kernel.h"

using namespace tern;
using namespace tern::profile;
using namespace tern::profile::test;

namespace {

double seconds() { return static_cast<double>(backend::steady_ns()) * 1e-9; }

std::vector<std::string> ops_in(const Profile& profile, const std::string& pass) {
  std::vector<std::string> result;
  for (const Span& span : profile.spans)
    if (span.kind == Kind::op && profile.names[span.pass] == pass) result.push_back(profile.name(span));
  return result;
}

const OpRow* find(const std::vector<OpRow>& rows, const std::string& op, const std::string& pass) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const OpRow& row) { return row.op == op && row.pass == pass; });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("Spans of a training step have their op, pass and module, and nest") {
  Training training;
  training.step({training.ids});
  Profiler profiler({.names = nn::module_names(training.model)});
  for (int i = 0; i < 2; ++i) {
    profiler.begin_step();
    training.step({training.ids});
    profiler.end_step();
  }
  const Profile profile = profiler.finish();
  check_nests(profile);
  CHECK(profile.steps() == 2);
  for (const char* module : {"blocks.0.attn.qkv", "blocks.1.attn.proj"}) {
    INFO(module);
    CHECK(calls(profile, "linear", "forward", module) == 2);
    CHECK(calls(profile, "linear", "backward", module) == 2);
    CHECK(calls(profile, "linear", "optimizer", module) == 0);
  }
  CHECK(calls(profile, "scaled_dot_product_attention", "forward", "blocks.0.attn") == 2);
  CHECK(calls(profile, "scaled_dot_product_attention", "backward", "blocks.0.attn") == 2);
  CHECK(calls(profile, "adam", "optimizer", "") > 0);
  CHECK(calls(profile, "clip_factor", "optimizer", "") == 2);
  const std::vector<OpRow> rows = op_rows(profile);
  for (const OpRow& row : rows) CHECK(row.op != "other");
  // Two steps of two layers, brute force: a product (21, in) x (in, out) is 2 m n k, its gradients are two more of them. Bytes are of x,
  // the weight, the bias and the result, four for each element.
  const double n = Training::batch * Training::length, w = Training::width, ff = Training::ff;
  double linear = 0, bytes = 0;
  for (const auto& [in, out] : {std::pair(w, 3 * w), std::pair(w, w), std::pair(w, ff), std::pair(ff, w)}) {
    linear += 2 * 2 * (2 * n * in * out);
    bytes += 2 * 2 * 4 * (n * in + in * out + (out == w ? 0 : out) + n * out);
  }
  REQUIRE(find(rows, "linear", "forward"));
  CHECK(find(rows, "linear", "forward")->flops == linear);
  CHECK(find(rows, "linear", "backward")->flops == 2 * linear);
  // Causal attention: query t sees t + 1 keys; two products forward, five backward.
  const double pairs = Training::length * (Training::length + 1) / 2.0;
  CHECK(find(rows, "scaled_dot_product_attention", "forward")->flops == 2 * 2 * (2 * 2 * Training::batch * w * pairs));
  CHECK(find(rows, "scaled_dot_product_attention", "backward")->flops == 2 * 2 * (2 * 5 * Training::batch * w * pairs));
  CHECK(find(rows, "linear", "forward")->bytes == bytes);
}

TEST_CASE("Without names a module's path is of types") {
  Training training;
  Profiler profiler;
  training.step({training.ids});
  const Profile profile = profiler.finish();
  CHECK(calls(profile, "linear", "forward", "DecoderLM.TransformerLayer.MultiHeadAttention.Linear") == 2);
  CHECK(calls(profile, "linear", "backward", "DecoderLM.TransformerLayer.MultiHeadAttention.Linear") == 2);
  CHECK(profile.wall() == profile.end);
}

TEST_CASE("Passes add up to the wall time, and it is that of another clock") {
  Training training(false);
  training.step({training.ids});
  const Tensor large = ones({300, 300});
  Profiler profiler({.names = nn::module_names(training.model)});
  double measured = 0;
  for (int i = 0; i < 3; ++i) {
    const double start = seconds();
    profiler.begin_step();
    training.step({training.ids});
    for (int j = 0; j < 10; ++j) matmul(large, large);
    profiler.end_step();
    measured += seconds() - start;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // between steps, which is no step's
  }
  const Profile profile = profiler.finish();
  std::int64_t sum = 0, op_sum = 0;
  for (const PassRow& row : pass_rows(profile)) {
    sum += row.host_ns, op_sum += row.op_ns;
    CHECK(row.host_ns >= row.op_ns);
    CHECK(row.op_ns >= row.kernel_ns);
    CHECK(row.kernel_ns >= row.product_ns);
  }
  CHECK(sum == profile.wall());
  std::int64_t rows = 0;
  for (const OpRow& row : op_rows(profile)) rows += row.host_ns;
  CHECK(rows == op_sum);
  CHECK(static_cast<double>(profile.wall()) / 1e9 == Approx(measured).epsilon(0.03));
}

namespace {

/// A kernel that calls f.
template <class F>
struct Runs {
  F f;
  template <class Backend>
  void run(Backend) const {
    f();
  }
};

}  // namespace

TEST_CASE("Ops that are not recorded name their kernels") {
  Profiler profiler;
  const Tensor x = zeros({4});
  add_(x, ones({4}));
  fill_(x, 2);
  lt(x, 3.0);
  launch(cpu, Runs{[] {}});  // whose op nobody names
  {
    const Pass pass("mine");
  }
  exp(x);
  CHECK(ops_in(profiler.finish(), "") == std::vector<std::string>{"full", "full", "add_", "fill_", "lt", "other", "exp"});
}

TEST_CASE("A gradient is one op with all that its function calls") {
  Tensor a = randn({5, 6}), b = randn({6, 7});
  a.set_requires_grad(), b.set_requires_grad();
  Profiler profiler;
  sum(matmul(a, b)).backward();
  const Profile profile = profiler.finish();
  const std::vector<std::string> ops = ops_in(profile, "backward");
  CHECK(std::count(ops.begin(), ops.end(), "matmul") == 1);
  CHECK(std::count_if(profile.spans.begin(), profile.spans.end(), [&](const Span& span) {
          return span.kind == Kind::inner && profile.name(span) == "matmul" && profile.names[span.pass] == "backward";
        }) == 2);
  const std::vector<OpRow> rows = op_rows(profile);
  CHECK(find(rows, "matmul", "backward")->flops == 2 * find(rows, "matmul", "")->flops);
}

TEST_CASE("A checkpointed function's second run is a pass of its own") {
  Tensor x = randn({6, 6});
  x.set_requires_grad();
  Profiler profiler;
  checkpoint([](const Tensor& in) { return exp(tanh(in)); }, x, CheckpointPolicy::full);
  sum(checkpoint([](const Tensor& in) { return exp(tanh(in)); }, x, CheckpointPolicy::full)).backward();
  const Profile profile = profiler.finish();
  check_nests(profile);
  const std::vector<std::string> again = ops_in(profile, "recompute");
  CHECK(std::count(again.begin(), again.end(), "tanh") == 1);
  std::int64_t sum_of_passes = 0, in_ops = 0, in_rows = 0;
  for (const PassRow& row : pass_rows(profile)) sum_of_passes += row.host_ns, in_ops += row.op_ns;
  for (const OpRow& row : op_rows(profile)) in_rows += row.host_ns;
  CHECK(sum_of_passes == profile.wall());
  CHECK(in_rows == in_ops);
  CHECK(in_ops <= profile.wall());
}

TEST_CASE("A profiler watches its thread while it is in force, and changes no result") {
  CHECK(backend::observer == nullptr);
  const auto train = [](bool profiled) {
    Training training;
    manual_seed(5);
    std::vector<float> result;
    std::unique_ptr<Profiler> profiler;
    for (int i = 0; i < 4; ++i) {
      if (profiled && i == 1) profiler = std::make_unique<Profiler>();
      result.push_back(training.step({training.ids}).item<float>());
      if (i == 2) profiler.reset();
    }
    return result;
  };
  CHECK(train(true) == train(false));
  CHECK(backend::observer == nullptr);

  Profiler outer;
  exp(ones({2}));
  {
    Profiler inner;
    log(ones({2}));
    std::thread([] { CHECK(backend::observer == nullptr); }).join();
    CHECK(ops_in(inner.finish(), "") == std::vector<std::string>{"full", "log"});
  }
  sin(ones({2}));
  outer.restart();
  cos(ones({2}));
  CHECK(ops_in(outer.finish(), "") == std::vector<std::string>{"full", "cos"});
  exp(ones({2}));
  CHECK(backend::observer == nullptr);
}

TEST_CASE("Scopes that an exception ends, or that outlive the profiler, do no harm") {
  int module = 0;
  auto profiler = std::make_unique<Profiler>();
  CHECK_THROWS_AS(([&] {
                    const ModuleFrame scope(&module, "Thrower");
                    const Pass pass("forward");
                    launch(cpu, Runs{[] { throw std::runtime_error("a kernel's fault"); }});
                  }()),
                  std::runtime_error);
  const ModuleFrame open(&module, "Open");
  exp(ones({2}));
  const Profile profile = profiler->finish();
  check_nests(profile);
  CHECK(calls(profile, "exp", "", "Open") == 1);
  profiler.reset();
  {
    const ModuleFrame without(&module, "Without");
    profiler = std::make_unique<Profiler>();
    exp(ones({2}));
  }  // the profiler did not see it begin
  log(ones({2}));
  CHECK(ops_in(profiler->finish(), "") == std::vector<std::string>{"full", "exp", "full", "log"});
}

TEST_CASE("A GPU's kernels have their op, pass and module, those of a captured graph too", "[cuda]") {
  Training training(true, cuda());
  Profiler profiler({.names = nn::module_names(training.model), .device = cuda()});
  CapturedStep captured([&](const Tensors& inputs) { return training.step(inputs); }, cuda());
  for (int i = 0; i < 3; ++i) captured({training.ids});  // as written, recorded, replayed
  synchronize(cuda());
  profiler.restart();
  training.step({training.ids});
  synchronize(cuda());
  captured({training.ids});
  const Profile profile = profiler.finish();
  if (profile.device_records.empty()) tern::test::skip("CUPTI does not answer");
  for (const bool is_in_graph : {false, true}) {
    INFO("in a graph: " << is_in_graph);
    const auto count = [&](const std::string& op, const std::string& pass, const std::string& module) {
      return std::count_if(profile.device_records.begin(), profile.device_records.end(), [&](const DeviceRecord& record) {
        return record.is_in_graph == is_in_graph && profile.names[record.op] == op && profile.names[record.pass] == pass &&
               profile.modules[record.module].path == module;
      });
    };
    CHECK(count("linear", "forward", "blocks.0.attn.qkv") >= 1);
    CHECK(count("linear", "backward", "blocks.1.attn.proj") >= 2);
    CHECK(count("adam", "optimizer", "") >= 1);
  }
  for (const DeviceRecord& record : profile.device_records) {
    CHECK(record.begin <= record.end);
    CHECK(record.begin >= 0);
    CHECK(record.end <= profile.end);
    if (!record.is_in_graph && record.span != none) CHECK(profile.spans[record.span].begin <= record.begin);
  }
}
