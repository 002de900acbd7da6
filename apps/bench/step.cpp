#include "bench/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/timing.h"
#include "common/model.h"
#include "common/program.h"
#include "io/json_object.h"
#include "nn/nn.h"
#include "ops/copy.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "train/train.h"

namespace tern::bench {
namespace {

struct Options {
  std::string model = "mt", arch = "gpt2", precision = "fp32", device = "auto", json;
  std::int64_t batch = 32, length = 40, vocab = 10000;
  double dropout = 0.1;
  int threads = 0, warmup = 5, steps = 10;
  bool use_fused_kernel = false, capture = false;
};

struct Size {
  std::int64_t width, ff, layers, heads;
};

/// mt is the classic translator, ar the associative-recall model, the others the sizes of the GPT-2 family and one more.
const std::vector<std::pair<std::string, Size>> sizes = {
    {"mt", {256, 256, 4, 8}},        {"ar", {128, 512, 2, 4}},     {"small", {768, 3072, 12, 12}},  {"medium", {1024, 4096, 24, 16}},
    {"large", {1280, 5120, 36, 20}}, {"xl", {1600, 6400, 48, 25}}, {"2.7B", {2560, 10240, 32, 32}},
};

Size size_of_model(const std::string& name) {
  return std::find_if(sizes.begin(), sizes.end(), [&](const auto& entry) { return entry.first == name; })->second;
}

nn::DecoderLMOptions model_options(const Options& options, Device device) {
  const Size size = size_of_model(options.model);
  nn::DecoderLMOptions model;
  model.vocab = options.vocab;
  model.length = options.length;
  model.width = size.width;
  model.layers = size.layers;
  model.heads = size.heads;
  model.ff = size.ff;
  model.dropout = options.dropout;
  model.activation = nn::Activation::gelu_tanh;
  model.head_bias = false;
  model.use_fused_kernel = options.use_fused_kernel;
  model.device = device;
  if (options.arch == "llama") {
    model.activation = nn::Activation::silu;
    model.gated = true;
    model.ff = (size.ff * 2 / 3 + 7) / 8 * 8;  // as many parameters in three matrices as in two
    model.bias = false;
    model.norm = nn::NormKind::rms;
    model.positions = nn::Positions::rotary;
  }
  return model;
}

/// TFLOP/s of a large square product: what a step's products are measured by.
double gemm_ceiling(Device device, DType dtype) {
  const std::int64_t n = device.type == DeviceType::cuda ? 8192 : 1024;
  const NoGrad unrecorded;
  const Tensor a = cast(randn({n, n}, 0, 1, DType::f32, device), dtype), b = cast(randn({n, n}, 0, 1, DType::f32, device), dtype);
  const Times times = timed_on_device(device, 2, 7, [] {}, [&] { matmul(a, b); });
  return 2 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / times.median / 1e9;
}

Tensor random_ids(const Options& options, Device device) {
  const Tensor draws = rand({options.batch, options.length}, 0, static_cast<double>(options.vocab), DType::f64, device);
  return minimum(cast(draws, DType::i64), static_cast<double>(options.vocab - 1));
}

struct Measured {
  Times step, forward, update, host;
  double burst_ms = 0, tflops = 0, peak_gb = 0;
  double loss = 0;          ///< of the last step: shows that the steps are those of a training, and of which
  std::int64_t params = 0;  ///< those that a token's products touch
  std::size_t graph_nodes = 0;
};

Measured measure(const Options& options, Device device) {
  manual_seed(0);
  nn::DecoderLM model(model_options(options, device));
  train::set_precision(model, *train::precision_of(options.precision));
  train::AdamW optimizer(nn::parameters(model), train::AdamWOptions{.lr = 1e-4, .weight_decay = 0.01});
  const Tensor ids = random_ids(options, device), labels = random_ids(options, device);

  const auto loss = [&] { return model.loss(ids, labels); };
  const auto as_written = [&](const Tensors&) {
    const Tensor value = loss();
    train::update(value, optimizer);
    return value.detach();
  };
  train::CapturedStep captured(as_written, device);
  Tensor last_loss;
  const auto full = [&] { last_loss = options.capture ? captured({ids, labels}) : as_written({}); };
  const auto forward = [&] {
    const NoGrad unrecorded;
    loss();
  };
  model.train();
  reset_peak_memory(device);
  Measured result;
  result.step = timed(device, options.warmup, options.steps, full);
  result.burst_ms = burst(device, 2 * options.steps, full);
  // How long the calls of one step take to return: what is left when the device takes no time.
  std::vector<double> host;
  for (int i = 0; i < options.steps; ++i) {
    synchronize(device);
    const double start = apps::seconds_now();
    full();
    host.push_back((apps::seconds_now() - start) * 1e3);
  }
  synchronize(device);
  result.host = statistics(std::move(host));
  result.loss = last_loss.item<double>();
  result.forward = timed(device, options.warmup, options.steps, forward);
  result.update = timed(device, 1, options.steps, [&] { optimizer.step(); });
  result.peak_gb = static_cast<double>(memory_statistics(device).peak_allocated) / 0x1p30;
  result.graph_nodes = captured.nodes();

  const Size size = size_of_model(options.model);
  const double tokens = static_cast<double>(options.batch * options.length);
  const std::int64_t tables = model.tokens.weight.numel() + (model.positions ? model.positions->weight.numel() : 0);
  result.params = nn::count_parameters(model) - tables;
  const double flops =
      6.0 * static_cast<double>(result.params) * tokens + 6.0 * static_cast<double>(size.layers * options.length * size.width) * tokens;
  result.tflops = flops / result.burst_ms / 1e9;
  return result;
}

io::JsonObject describe(const Options& options, Device device) {
  io::JsonObject row;
  const std::string kernels = options.use_fused_kernel ? "tern-fused" : "tern-plain";
  row.set("model", options.model).set("arch", options.arch).set("B", options.batch).set("T", options.length).set("V", options.vocab);
  row.set("p", options.dropout).set("dtype", options.precision).set("impl", kernels + (options.capture ? "-graph" : ""));
  row.set("device", device.type == DeviceType::cpu ? "cpu" : "cuda");
  if (device.type == DeviceType::cpu) row.set("threads", num_threads());
  return row;
}

void step(const Options& options) {
  if (options.threads > 0) set_num_threads(options.threads);
  const Device device = apps::resolve_device(options.device);
  apps::require_precision(*train::precision_of(options.precision), device);
  RowFile rows(options.json);
  io::JsonObject row = describe(options, device);
  fmt::print("{} {} B {} T {} V {} dropout {}, {}, {}, {} kernels\n", options.model, options.arch, options.batch, options.length,
             options.vocab, options.dropout, apps::describe(device), options.precision, options.use_fused_kernel ? "fused" : "plain");
  std::fflush(stdout);
  Measured m;
  double ceiling = 0;
  const train::PrecisionScope scope(*train::precision_of(options.precision));
  try {
    m = measure(options, device);
    ceiling = gemm_ceiling(device, train::dtype_of(*train::precision_of(options.precision)));
  } catch (const OutOfMemory& error) {
    // A result as well: how far a machine goes.
    fmt::print("  out of memory\n");
    rows.add(row.set("error", "out of memory"));
    return;
  }
  const double tokens = static_cast<double>(options.batch * options.length);
  fmt::print("  step      {:9.3f} ms median, {:.3f} mean, {:.3f} deviation\n", m.step.median, m.step.mean, m.step.deviation);
  fmt::print("  burst     {:9.3f} ms a step, {:.0f} tokens/s, {:.2f} TFLOP/s, {:.0f}% of a large product's {:.1f}\n", m.burst_ms,
             tokens / m.burst_ms * 1e3, m.tflops, 100 * m.tflops / ceiling, ceiling);
  if (device.type == DeviceType::cuda) fmt::print("  host      {:9.3f} ms to queue a step\n", m.host.median);
  if (m.graph_nodes > 0) fmt::print("  graph     {:9} nodes\n", m.graph_nodes);
  fmt::print("  forward   {:9.3f} ms, without recording\n", m.forward.median);
  fmt::print("  optimizer {:9.3f} ms\n", m.update.median);
  fmt::print("  memory    {:9.3f} GiB at the peak\n", m.peak_gb);
  fmt::print("  loss      {:9.3f} in the last step\n", m.loss);
  row.set("step_ms", rounded(m.step.median, 1e3)).set("step_mean_ms", rounded(m.step.mean, 1e3));
  row.set("step_deviation_ms", rounded(m.step.deviation, 1e3));
  if (device.type == DeviceType::cuda) row.set("host_ms", rounded(m.host.median, 1e3));
  if (m.graph_nodes > 0) row.set("graph_nodes", static_cast<std::int64_t>(m.graph_nodes));
  row.set("burst_ms", rounded(m.burst_ms, 1e3)).set("fwd_ms", rounded(m.forward.median, 1e3));
  row.set("backward_ms", rounded(m.step.median - m.forward.median - m.update.median, 1e3))
      .set("optimizer_ms", rounded(m.update.median, 1e3));
  row.set("tok_s", std::round(tokens / m.burst_ms * 1e3)).set("params", m.params).set("tflops", rounded(m.tflops, 10));
  row.set("of_gemm", rounded(m.tflops / ceiling, 1e4)).set("peak_gb", rounded(m.peak_gb, 100)).set("loss", m.loss);
  rows.add(row);
}

}  // namespace

void add_step(CLI::App& app) {
  auto* command = app.add_subcommand("step", "time a training step: forward, backward, optimizer");
  const auto options = std::make_shared<Options>();
  const auto add = [&](const char* name, auto& value, const char* help, const apps::Check& check, const char* type) {
    command->add_option(name, value, help)->check(check)->type_name(type)->capture_default_str();
  };
  std::vector<std::string> models;
  for (const auto& [name, size] : sizes) models.push_back(name);
  add("--model", options->model, "mt, ar, small, medium, large, xl or 2.7B", apps::one_of(models), "NAME");
  add("--arch", options->arch, "gpt2, or llama: RMSNorm, rotary positions, SwiGLU, no biases", apps::one_of({"gpt2", "llama"}), "NAME");
  add("--precision", options->precision, "fp32, tf32, tf32x3, bf16 or fp16", apps::one_of({"fp32", "tf32", "tf32x3", "bf16", "fp16"}),
      "NAME");
  add("--batch", options->batch, "sequences in a step", apps::whole_number(1, 1'000'000), "N");
  add("--length", options->length, "tokens of a sequence", apps::whole_number(1, 1'000'000), "N");
  add("--vocab", options->vocab, "size of the vocabulary", apps::whole_number(1, 10'000'000), "N");
  add("--dropout", options->dropout, "probability", apps::real_number(0, 0.99), "X");
  add("--warmup", options->warmup, "steps before the measured ones", apps::whole_number(0, 1'000'000), "N");
  add("--steps", options->steps, "measured steps", apps::whole_number(1, 1'000'000), "N");
  apps::add_threads_option(*command, options->threads);
  apps::add_switch(*command, "--use-fused-kernel", "softmax and norms as fused kernels",
                   [options](bool is_on) { options->use_fused_kernel = is_on; });
  apps::add_switch(*command, "--capture", "record the step as a CUDA graph and replay it",
                   [options](bool is_on) { options->capture = is_on; });
  command->add_option("--json", options->json, "append the row to this file, one JSON object a line")->type_name("FILE");
  apps::add_device_option(*command, options->device);
  command->callback([options] { step(*options); });
}

}  // namespace tern::bench
