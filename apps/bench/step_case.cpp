#include "bench/step_case.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/error.h"
#include "backend/memory.h"
#include "backend/stream.h"
#include "bench/timing.h"
#include "common/program.h"
#include "common/training_settings.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "parallel/data_parallel.h"
#include "profile/memory_history.h"
#include "tensor/sizes.h"
#include "train/train.h"
#include "trainer/step_profile.h"

namespace tern::bench {
namespace {

struct Size {
  std::int64_t width, ff, layers, heads;
};

const std::vector<std::pair<std::string, Size>> sizes = {
    {"mt", {256, 256, 4, 8}},         {"ar", {128, 512, 2, 4}},        {"small", {768, 3072, 12, 12}},
    {"medium", {1024, 4096, 24, 16}}, {"large", {1280, 5120, 36, 20}}, {"xl", {1600, 6400, 48, 25}},
    {"2.7B", {2560, 10240, 32, 32}},  {"6.7B", {4096, 16384, 32, 32}}, {"13B", {5120, 20480, 40, 40}},
};

Size size_of_model(const std::string& name) {
  return std::find_if(sizes.begin(), sizes.end(), [&](const auto& entry) { return entry.first == name; })->second;
}

}  // namespace

nn::DecoderLMOptions model_options(const StepCase& c, Device device) {
  const Size size = size_of_model(c.model);
  nn::DecoderLMOptions model;
  model.vocab = c.vocab;
  model.length = c.length;
  model.width = size.width;
  model.layers = size.layers;
  model.heads = size.heads;
  model.ff = size.ff;
  model.dropout = c.dropout;
  model.activation = nn::Activation::gelu_tanh;
  model.head_bias = false;
  model.activation_checkpointing = c.activation_checkpointing;
  model.device = device;
  if (c.arch == "llama") {
    model.activation = nn::Activation::silu;
    model.gated = true;
    model.ff = round_up(size.ff * 2 / 3, 8);  // so that three matrices have as many parameters as two
    model.bias = false;
    model.norm = nn::NormKind::rms;
    model.positions = nn::Positions::rotary;
  }
  return model;
}

void require_memory(const nn::DecoderLMOptions& options, bool forward_only, int processes) {
  if (options.device != cpu) return;
  const double needed = processes * static_cast<double>(apps::count_parameters(options)) * (forward_only ? 4 : 16);
  const auto there = static_cast<double>(backend::usable_memory());
  if (there > 0 && needed > there)
    throw OutOfMemory(fmt::format("[bench] expected {:.3g} GB of memory for the weights and their state but this machine has {:.3g} GB",
                                  needed / 1e9, there / 1e9));
}

std::string checkpointing_suffix(const StepCase& c) {
  return c.activation_checkpointing == CheckpointPolicy::none ? "" : fmt::format("-{}-checkpointing", name(c.activation_checkpointing));
}

std::string checkpointing_text(const StepCase& c) {
  return c.activation_checkpointing == CheckpointPolicy::none
             ? ""
             : fmt::format(", {} activation checkpointing", name(c.activation_checkpointing));
}

io::JsonObject case_row(const StepCase& c, const std::string& more) {
  io::JsonObject row;
  constexpr const char* ways[] = {"", "-graph", "-compile"};
  const std::string impl =
      fmt::format("tern-{}{}{}{}", c.use_fused_kernel ? "fused" : "plain", ways[static_cast<int>(c.way)], checkpointing_suffix(c), more);
  row.set("model", c.model).set("arch", c.arch).set("B", c.batch).set("T", c.length).set("V", c.vocab).set("p", c.dropout);
  return row.set("dtype", mode(c)).set("impl", impl).set("pass", c.forward_only ? "forward" : "step");
}

Tensor random_ids(const StepCase& c, Device device) {
  const Tensor draws = rand({c.batch, c.length}, 0, static_cast<double>(c.vocab), DType::f64, device);
  return minimum(cast(draws, DType::i64), static_cast<double>(c.vocab - 1));
}

namespace {

/// Measures the times between events of a step.
class PartTimes {
 public:
  explicit PartTimes(Stream stream) : stream_(stream) {}
  void begin() { steps_.emplace_back(); }
  void mark() { steps_.back().emplace_back(stream_, backend::Event::Timing::on); }
  void forget() { steps_.clear(); }
  /// The times from mark `part` to the next one, for all steps.
  Times part(std::size_t part) const {
    std::vector<double> ms;
    for (const auto& marks : steps_) ms.push_back(milliseconds_between(marks[part], marks[part + 1]));
    return statistics(std::move(ms));
  }

 private:
  Stream stream_;
  std::vector<std::vector<backend::Event>> steps_;
};

/// Launch overhead: the time until the calls of a step return, without the device's work.
Times host_times(Device device, int steps, const std::function<void()>& f) {
  std::vector<double> ms;
  for (int i = 0; i < steps; ++i) {
    synchronize(device);
    const double start = train::seconds_now();
    f();
    ms.push_back((train::seconds_now() - start) * 1e3);
  }
  synchronize(device);
  return statistics(std::move(ms));
}

Tensor forward(const StepCase& c, const nn::DecoderLM& model, const Tensor& ids, const Tensor& labels) {
  const profile::Pass pass("forward");
  std::optional<Autocast> scope;
  if (c.autocast) scope.emplace(*c.autocast);
  return model.loss(ids, labels);
}

bool is_first(const parallel::ProcessGroup* group) { return !group || group->rank() == 0; }
bool is_alone(const parallel::ProcessGroup* group) { return !group || group->size() == 1; }

/// Profiles steps, after warm-up steps, which on a GPU capture the graph; writes the profile, and returns the mean time of a step. Other
/// ranks than the first run the same steps and write nothing.
double profile_steps(const StepCase& c, const nn::DecoderLM& model, train::Optimizer* optimizer, Device device,
                     parallel::ProcessGroup* group, const std::function<void()>& step) {
  if (!is_first(group)) {
    for (std::int64_t i = 0; i < 3 + c.profile; ++i) step();
    synchronize(device);
    return 0;
  }
  apps::make_directory("--out", c.out);
  profile::Profiler profiler({.names = nn::module_names(model), .device = device});
  std::unique_ptr<profile::MemoryHistory> memory;
  for (std::int64_t i = 0; i < 3; ++i) {
    if (i == train::memory_step) memory = profile::memory_of_step(device, model, optimizer, step);
    else step();
  }
  synchronize(device);
  profiler.restart();
  for (std::int64_t i = 0; i < c.profile; ++i) {
    profiler.begin_step();
    step();
    if (i + 1 == c.profile) synchronize(device);
    profiler.end_step();
  }
  const profile::Profile profile = profiler.finish();
  train::write_profile(profile, *memory, c.out);
  return static_cast<double>(profile.wall()) / 1e6 / static_cast<double>(profile.steps());
}

double peak_gib(Device device) { return static_cast<double>(memory_statistics(device).peak_allocated) / 0x1p30; }

/// Notes what is kept of a step.
void describe(const Step& step, StepFigures& result) {
  if (step.captured()) result.graph_nodes = step.captured()->nodes();
  if (step.compiled()) result.programs = step.compiled()->report();
}

void measure_training(const StepCase& c, Device device, nn::DecoderLM& model, const Tensor& ids, const Tensor& labels,
                      parallel::ProcessGroup* group, const std::function<void()>& inference, StepFigures& result) {
  std::optional<parallel::DataParallel> parallel;
  train::UpdateOptions update;
  if (!is_alone(group)) {
    parallel.emplace(model, *group, c.parallel);
    result.buckets = static_cast<int>(parallel->bucket_bytes().size());
    update.synchronize = [&] { parallel->finish_gradient_synchronization(); };
  }
  train::AdamW optimizer(nn::parameters(model), train::AdamWOptions{.lr = 1e-4, .weight_decay = 0.01});
  if (parallel && c.parallel.shard != parallel::Shard::none) parallel::shard_optimizer(optimizer, *parallel);
  else if (parallel) parallel::overlap_optimizer(optimizer, *parallel);
  const auto as_written = [&](const Tensors& inputs) {
    const Tensor value = forward(c, model, inputs[0], inputs[1]);
    train::update(value, optimizer, update);
    return value.detach();
  };
  Step step(as_written, c.way, device);
  Tensor last_loss;
  const auto full = [&] { last_loss = step({ids, labels}); };
  PartTimes parts(context().stream(device));
  const auto in_parts = [&] {
    parts.begin();
    parts.mark();
    const Tensor value = forward(c, model, ids, labels);
    parts.mark();
    optimizer.zero_grad();
    train::accumulate(value);
    parts.mark();
    train::apply(optimizer, update);
    parts.mark();
    last_loss = value.detach();
  };
  // First, so that without a warm-up these are the first steps of the process.
  for (int i = 0; i < c.warmup; ++i) in_parts();
  parts.forget();
  for (int i = 0; i < c.steps; ++i) in_parts();
  result.forward = parts.part(0);
  result.backward = parts.part(1);
  result.update = parts.part(2);
  result.step = timed(device, c.warmup, c.steps, full);
  result.burst_ms = burst(device, 2 * c.steps, full);
  result.host = host_times(device, c.steps, full);
  result.loss = last_loss.item<double>();
  describe(step, result);
  result.peak_gib = peak_gib(device);
  if (c.profile > 0) {
    Step again(as_written, c.way, device);  // captured under the profiler, which so knows the names of the graph's kernels
    result.profiled_ms = profile_steps(c, model, &optimizer, device, group, [&] { again({ids, labels}); });
  }
  if (parallel) {
    for (const Tensor& x : optimizer.memory()) result.optimizer_bytes += x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
    result.state_bytes = result.optimizer_bytes + static_cast<std::int64_t>(parallel->bytes_here());
  }
  result.inference_ms = timed(device, c.warmup, c.steps, inference).median;  // while sharded parameters can be gathered
  if (!parallel) return;
  if (c.parallel.shard == parallel::Shard::parameters) return;  // they need communication
  // Last, as the ranks' weights diverge from here on.
  const parallel::DataParallel::NoSync unsynchronized(*parallel);
  update.synchronize = {};
  Step step_alone(as_written, c.way, device);
  const auto alone = [&] { step_alone({ids, labels}); };
  for (int i = 0; i < std::max(2, c.warmup); ++i) alone();
  group->barrier();
  result.alone_ms = burst(device, 2 * c.steps, alone);
}

/// Combines the figures of all ranks: the slowest times, the largest memory, and the mean loss.
void join(StepFigures& result, parallel::ProcessGroup& group, Device device) {
  for (Times* times : {&result.step, &result.forward, &result.backward, &result.update, &result.host}) *times = slowest(group, *times);
  const std::vector<double> all =
      largest(group, {result.burst_ms, result.alone_ms, result.inference_ms, result.profiled_ms, result.peak_gib});
  result.burst_ms = all[0], result.alone_ms = all[1], result.inference_ms = all[2], result.profiled_ms = all[3], result.peak_gib = all[4];
  const NoGrad unrecorded;
  const Tensor loss = Tensor::scalar(result.loss, device);
  group.all_reduce(loss, parallel::ReduceOp::mean).wait();
  result.loss = loss.item<double>();
}

}  // namespace

std::string mode(const StepCase& c) {
  return c.autocast ? std::string("autocast-") + (*c.autocast == DType::bf16 ? "bf16" : "fp16") : train::name(c.precision);
}

std::vector<std::string> step_modes() {
  std::vector<std::string> modes = apps::precision_names;
  modes.insert(modes.end(), {"autocast-bf16", "autocast-fp16"});
  return modes;
}

void set_mode(StepCase& c, const std::string& mode) {
  c.autocast = {};
  if (mode == "autocast-bf16") c.autocast = DType::bf16;
  if (mode == "autocast-fp16") c.autocast = DType::f16;
  const std::optional<train::Precision> precision = c.autocast ? train::Precision::fp32 : train::precision_of(mode);
  if (!precision) fail("bench", fmt::format("expected a mode of {} but got {}", fmt::join(step_modes(), ", "), mode));
  c.precision = *precision;
}

std::vector<std::string> step_models() {
  std::vector<std::string> names;
  for (const auto& [name, size] : sizes) names.push_back(name);
  return names;
}

std::string list_of_step_models() { return fmt::format("{}", fmt::join(step_models(), ", ")); }

StepFigures measure_step(const StepCase& c, Device device, parallel::ProcessGroup* group) {
  const FusedKernels kernels(c.use_fused_kernel);
  manual_seed(0);
  const nn::DecoderLMOptions options = model_options(c, device);
  require_memory(options, c.forward_only, launched().local_size);
  reset_peak_memory(device);
  nn::DecoderLM model(options);
  if (c.forward_only) nn::set_requires_grad(model, false);
  train::set_precision(model, c.precision);
  if (!is_first(group)) manual_seed(static_cast<std::uint64_t>(group->rank()));
  const Tensor ids = random_ids(c, device), labels = random_ids(c, device);
  StepFigures result;
  Tensor loss;
  Step forward_step([&](const Tensors& inputs) { return forward(c, model, inputs[0], inputs[1]); },
                    c.forward_only ? c.way : Step::Way::as_written, device);
  const auto inference = [&] {
    const NoGrad unrecorded;
    loss = forward_step({ids, labels});
  };
  if (c.forward_only) {
    result.step = timed(device, c.warmup, c.steps, inference);
    result.forward = timed_on_device(device, 0, c.steps, [] {}, inference);
    result.burst_ms = burst(device, 2 * c.steps, inference);
    result.host = host_times(device, c.steps, inference);
    if (c.profile > 0) result.profiled_ms = profile_steps(c, model, nullptr, device, group, inference);
    result.loss = loss.item<double>();
    describe(forward_step, result);
    result.peak_gib = peak_gib(device);
  } else {
    measure_training(c, device, model, ids, labels, group, inference, result);
  }
  if (!is_alone(group)) join(result, *group, device);

  const Size size = size_of_model(c.model);
  const double tokens = static_cast<double>(c.batch * c.length), passes = c.forward_only ? 1 : 3;
  const std::int64_t tables = model.tokens.weight.numel() + (model.positions ? model.positions->weight.numel() : 0);
  result.params = nn::count_parameters(model) - tables;
  const double flops = passes * tokens * 2 * static_cast<double>(result.params + size.layers * c.length * size.width);
  result.tflops = flops / result.burst_ms / 1e9;
  return result;
}

}  // namespace tern::bench
