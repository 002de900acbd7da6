// The choice between an op's fused kernel and its composition of other ops (FusedKernels, PlainKernels).
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "autodiff/engine.h"
#include "autodiff/node.h"
#include "catch.h"
#include "ops/attention.h"
#include "ops/composed_attention.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

/// The names of ops that run kernels while it lives.
class Watch final : public backend::Observer {
 public:
  Watch() { watch(); }
  ~Watch() override { unwatch(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void begin_kernel() override { has_kernel_ = true; }
  void end_op(const OpCall& call) override {
    if (std::exchange(has_kernel_, false)) names.emplace_back(call.op.name);
  }

  std::vector<std::string> names;

 private:
  bool has_kernel_ = false;
};

std::vector<std::string> kernels_of(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  const Watch watch;
  f(x);
  return watch.names;
}

/// An op with both ways, of x (1, 2, 4, 4).
struct Subject {
  std::string name;
  std::function<Tensor(const Tensor& x)> f;
};

std::vector<Subject> subjects(Device device) {
  manual_seed(2);
  const Tensor gamma = to(rand({4}), device), weight = to(rand({4, 4}), device);
  const auto rows = [](const Tensor& x) { return reshape(x, {8, 4}); };
  std::vector<Subject> result = {
      {"layer_norm", [=](const Tensor& x) { return layer_norm(x, gamma, gamma); }},
      {"rms_norm", [=](const Tensor& x) { return rms_norm(x, gamma); }},
      {"residual_layer_norm", [=](const Tensor& x) { return residual_layer_norm(x, x, gamma, {}).y; }},
      {"residual_rms_norm", [=](const Tensor& x) { return residual_rms_norm(x, x, gamma).y; }},
  };
  const auto add = [&](const char* name, const auto& f) { result.push_back({name, f}); };
  if (device == cpu) {
    const Tensor targets = Tensor::from(std::vector<std::int64_t>(8, 2), {8});
    add("attention_softmax", [=](const Tensor& x) { return attention_softmax(x, {.causal = true}); });
    add("scaled_dot_product_attention", [=](const Tensor& x) { return scaled_dot_product_attention(x, x, x); });
    add("linear_gelu", [=](const Tensor& x) { return linear_gelu(rows(x), weight, gamma); });
    add("feed_forward_gelu", [=](const Tensor& x) { return feed_forward_gelu(rows(x), weight, gamma, weight, gamma); });
    add("linear_cross_entropy", [=](const Tensor& x) { return linear_cross_entropy(rows(x), weight, gamma, targets); });
  } else {  // only a GPU has kernels of these
    const Tensor ids = to(Tensor::from(std::vector<std::int64_t>{1, 0}, {1, 2}), device);
    add("swiglu", [=](const Tensor& x) { return swiglu(x, x); });
    add("embedding", [=](const Tensor& x) { return embedding(rows(x), rows(x), ids, 0.1); });
  }
  return result;
}

Tensor some_x(Device device) {
  manual_seed(1);
  return to(randn({1, 2, 4, 4}), device);
}

void check_kernels(Device device) {
  const Tensor x = some_x(device);
  for (const Subject& op : subjects(device)) {
    INFO(op.name);
    const std::vector<std::string> alone = {op.name};
    CHECK(kernels_of(op.f, x) == alone);
    {
      const PlainKernels composed;
      CHECK(kernels_of(op.f, x).size() >= 2);
      const FusedKernels again;
      CHECK(kernels_of(op.f, x) == alone);
    }
    CHECK(kernels_of(op.f, x) == alone);
  }
}

}  // namespace

TEST_CASE("An op with a fused kernel runs this alone, and with plain kernels the ops that it is composed of") { check_kernels(cpu); }
TEST_CASE("An op with a fused kernel on a GPU runs this alone, and with plain kernels the ops that it is composed of", "[cuda]") {
  check_kernels(cuda());
}

TEST_CASE("A kernel whose result is seen in another shape belongs to its op, and not to the view") {
  const auto norm = [](const Tensor& x) { return batch_norm(x, rand({2}), {}).y; };
  CHECK(kernels_of(norm, some_x(cpu)).back() == "batch_norm");
}

TEST_CASE("A thread begins with fused kernels, whichever those of the thread that started it are") {
  const PlainKernels composed;
  bool is_fused = false;
  std::thread([&] { is_fused = context().kernels.fused; }).join();
  CHECK(is_fused);
  CHECK_FALSE(context().kernels.fused);
}

TEST_CASE("Scopes of kernels end in any order") {
  auto outer = std::make_unique<PlainKernels>();
  const auto inner = std::make_unique<FusedKernels>();
  CHECK(context().kernels.fused);
  outer.reset();
  CHECK(context().kernels.fused);
  const PlainKernels last;
  CHECK_FALSE(context().kernels.fused);
}

TEST_CASE("Gradients have the kernels of their forward, whichever the thread's are in backward") {
  const Tensor x = some_x(cpu).set_requires_grad();
  std::vector<Subject> all = subjects(cpu);
  const detail::AttentionSizes sizes{1, 2, 2, 4, 4, 4};
  all.push_back({"attention in chunks", [=](const Tensor& in) { return detail::attention_in_chunks(sizes, in, in, in, {}, 1); }});
  for (const Subject& op : all)
    for (const bool fused : {true, false}) {
      INFO(op.name << ", fused " << fused);
      const auto gradient = [&](bool in_backward) {
        Tensor loss;
        {
          const FusedKernels kernels(fused || op.name == "attention in chunks");
          loss = sum(square(op.f(x)));
        }
        const FusedKernels kernels(in_backward);
        const Watch watch;
        const Tensor g = grad({loss}, {x})[0];
        return std::pair(g.to_vector<float>(), watch.names);
      };
      CHECK(gradient(true) == gradient(false));
    }
}

}  // namespace tern
