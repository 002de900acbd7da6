#include "bench/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/timing.h"
#include "common/program.h"
#include "io/json_object.h"
#include "nn/nn.h"
#include "ops/copy.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"

namespace tern::bench {
namespace {

struct Options {
  std::string model = "mt", device = "auto", json;
  std::int64_t batch = 32, length = 40, vocab = 10000;
  double dropout = 0.1;
  int threads = 0, warmup = 5, steps = 10;
  bool use_fused_kernel = false, capture = false;
};

struct Size {
  std::int64_t width, ff, layers, heads;
};

/// mt is the classic translator, ar the associative-recall model, the others the sizes of the GPT-2 family.
const std::vector<std::pair<std::string, Size>> sizes = {
    {"mt", {256, 256, 4, 8}},         {"ar", {128, 512, 2, 4}},        {"small", {768, 3072, 12, 12}},
    {"medium", {1024, 4096, 24, 16}}, {"large", {1280, 5120, 36, 20}}, {"xl", {1600, 6400, 48, 25}},
};

Size size_of_model(const std::string& name) {
  return std::find_if(sizes.begin(), sizes.end(), [&](const auto& entry) { return entry.first == name; })->second;
}

Tensor random_ids(const Options& options, Device device) {
  const Tensor draws = rand({options.batch, options.length}, 0, static_cast<double>(options.vocab), DType::f64, device);
  return minimum(cast(draws, DType::i64), static_cast<double>(options.vocab - 1));
}

void step(const Options& options) {
  if (options.threads > 0) set_num_threads(options.threads);
  const Device device = apps::resolve_device(options.device);
  const Size size = size_of_model(options.model);
  RowFile rows(options.json);
  manual_seed(0);
  nn::DecoderLMOptions shape;
  shape.vocab = options.vocab;
  shape.length = options.length;
  shape.width = size.width;
  shape.layers = size.layers;
  shape.heads = size.heads;
  shape.ff = size.ff;
  shape.dropout = options.dropout;
  shape.activation = nn::Activation::gelu_tanh;
  shape.head_bias = false;
  shape.use_fused_kernel = options.use_fused_kernel;
  shape.device = device;
  nn::DecoderLM model(shape);
  nn::flatten_parameters(model);
  nn::AdamW optimizer(nn::parameters(model), nn::AdamOptions{.lr = 1e-4, .weight_decay = 0.01});
  const Tensor ids = random_ids(options, device), labels = random_ids(options, device);

  const auto loss = [&] { return cross_entropy(model.forward(ids), labels); };
  const auto as_written = [&](const Tensors&) {
    optimizer.zero_grad();
    const Tensor value = loss();
    value.backward();
    optimizer.step();
    return value.detach();
  };
  nn::CapturedStep captured(as_written, device);
  const auto full = [&] {
    if (options.capture) captured({ids, labels});
    else as_written({});
  };
  const auto forward = [&] {
    const NoGrad unrecorded;
    loss();
  };
  model.train();
  on(device, [](auto dev) { backend::reset_peak_memory(dev); });
  const Times whole = timed(device, options.warmup, options.steps, full);
  const double burst_ms = burst(device, 2 * options.steps, full);
  // How long the calls of one step take to return: what is left when the device takes no time.
  std::vector<double> host;
  for (int i = 0; i < options.steps; ++i) {
    synchronize(device);
    const double start = apps::seconds_now();
    full();
    host.push_back((apps::seconds_now() - start) * 1e3);
  }
  synchronize(device);
  const Times enqueue = statistics(std::move(host));
  const Times forward_only = timed(device, options.warmup, options.steps, forward);
  const Times update = timed(device, 1, options.steps, [&] { optimizer.step(); });
  const double peak = static_cast<double>(memory_statistics(device).peak_allocated);

  const double tokens = static_cast<double>(options.batch * options.length);
  const std::int64_t tables = options.vocab * size.width + options.length * size.width;
  const std::int64_t params = nn::count_parameters(model) - tables;  // those that a token's products touch
  const double flops = 6.0 * static_cast<double>(params) * tokens +
                       6.0 * static_cast<double>(size.layers * options.length * size.width) * tokens;

  fmt::print("{} B {} T {} V {} dropout {}, {}, fp32, {} kernels\n", options.model, options.batch, options.length,
             options.vocab, options.dropout, apps::describe(device), options.use_fused_kernel ? "fused" : "plain");
  fmt::print("  step      {:9.3f} ms median, {:.3f} mean, {:.3f} deviation\n", whole.median, whole.mean,
             whole.deviation);
  fmt::print("  burst     {:9.3f} ms a step, {:.0f} tokens/s, {:.2f} TFLOP/s\n", burst_ms, tokens / burst_ms * 1e3,
             flops / burst_ms / 1e9);
  if (device.type == DeviceType::cuda) fmt::print("  host      {:9.3f} ms to queue a step\n", enqueue.median);
  if (captured.nodes() > 0) fmt::print("  graph     {:9} nodes\n", captured.nodes());
  fmt::print("  forward   {:9.3f} ms, without recording\n", forward_only.median);
  fmt::print("  optimizer {:9.3f} ms\n", update.median);
  fmt::print("  memory    {:9.3f} GB at the peak\n", peak / 0x1p30);
  const std::string kernels = options.use_fused_kernel ? "tern-fused" : "tern-plain";
  io::JsonObject row;
  row.set("model", options.model)
      .set("arch", "gpt2")
      .set("B", options.batch)
      .set("T", options.length)
      .set("V", options.vocab);
  row.set("p", options.dropout)
      .set("dtype", "fp32")
      .set("impl", kernels + (options.capture ? "-graph" : ""))
      .set("device", device.type == DeviceType::cpu ? "cpu" : "cuda");
  if (device.type == DeviceType::cpu) row.set("threads", num_threads());
  row.set("step_ms", rounded(whole.median, 1e3))
      .set("step_mean_ms", rounded(whole.mean, 1e3))
      .set("step_deviation_ms", rounded(whole.deviation, 1e3));
  if (device.type == DeviceType::cuda) row.set("host_ms", rounded(enqueue.median, 1e3));
  if (captured.nodes() > 0) row.set("graph_nodes", static_cast<std::int64_t>(captured.nodes()));
  row.set("burst_ms", rounded(burst_ms, 1e3))
      .set("fwd_ms", rounded(forward_only.median, 1e3))
      .set("optimizer_ms", rounded(update.median, 1e3));
  row.set("tok_s", std::round(tokens / burst_ms * 1e3))
      .set("params", params)
      .set("tflops", rounded(flops / burst_ms / 1e9, 10));
  row.set("peak_gb", rounded(peak / 0x1p30, 100));
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
  add("--model", options->model, "mt, ar, small, medium, large or xl", apps::one_of(models), "NAME");
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
  command->add_option("--json", options->json, "append the row to this file, one JSON object a line")
      ->type_name("FILE");
  apps::add_device_option(*command, options->device);
  command->callback([options] { step(*options); });
}

}  // namespace tern::bench
