#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "autodiff/engine.h"
#include "bench/attention_case.h"
#include "bench/commands.h"
#include "bench/lists.h"
#include "bench/timing.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"

namespace tern::bench {
namespace {

struct Options {
  std::string sweep = "models", impl = "plain,fused", dtype = "bf16", lengths, widths, precision = "fp32", device = "auto", json;
  int threads = 0;
  double seconds = 0.2;
};

using Case = AttentionCase;

/// Shapes of the translator, of GPT-2, and of longer sequences.
const std::vector<Case> models_on_gpu = {
    {128, 8, 40, 32, true},   {64, 4, 64, 32, true},    {4, 12, 1024, 64, true},  {8, 12, 1024, 64, true},   {1, 16, 4096, 64, true},
    {1, 16, 16384, 64, true}, {4, 16, 4096, 128, true}, {8, 1, 16384, 128, true}, {8, 1, 16384, 128, false}, {1, 1, 65536, 128, true}};
const std::vector<Case> models_on_cpu = {{32, 8, 40, 32, true},  {8, 8, 512, 64, true},  {8, 8, 512, 64, false}, {4, 8, 1024, 64, true},
                                         {2, 8, 2048, 64, true}, {1, 8, 4096, 64, true}, {1, 8, 4096, 64, false}};

/// The shapes of the sweep `masks`.
const std::vector<Case> masks_on_gpu = {{4, 16, 4096, 128, true}, {1, 16, 4096, 64, true}};
const std::vector<Case> masks_on_cpu = {{2, 8, 1024, 64, true}};

/// All variants of each shape, the plain one first.
std::vector<Case> cases_of_masks(std::vector<Case> shapes, const std::vector<std::int64_t>& lengths,
                                 const std::vector<std::int64_t>& widths) {
  const auto varied = [&](std::int64_t Case::* field, const std::vector<std::int64_t>& values) {
    std::vector<Case> result;
    for (Case c : shapes)
      for (const std::int64_t value : values) c.*field = value, result.push_back(c);
    if (!values.empty()) shapes = result;
  };
  if (!widths.empty()) shapes.resize(1);
  varied(&Case::width, widths);
  varied(&Case::length, lengths);
  std::vector<Case> result;
  for (Case c : shapes)
    for (const AttentionForm form : attention_forms(c.width)) c.form = form, result.push_back(c);
  return result;
}

/// The cases of a sweep. Given lengths and widths replace its own.
std::vector<Case> cases_of(const Options& options, Device device) {
  std::vector<std::int64_t> lengths = numbers(options.lengths), widths = numbers(options.widths);
  if (options.sweep == "masks") return cases_of_masks(device == cpu ? masks_on_cpu : masks_on_gpu, lengths, widths);
  if (options.sweep == "models" && lengths.empty() && widths.empty()) return device == cpu ? models_on_cpu : models_on_gpu;
  const bool is_batch = options.sweep == "batch";
  if (lengths.empty()) {
    if (is_batch) lengths = {256, 1024, 4096, 8192, 16384};
    else
      for (std::int64_t n = 128; n <= 65536; n *= 2) lengths.push_back(n);
  }
  if (widths.empty()) widths = {16, 32, 64, 128};
  std::vector<Case> result;
  for (const std::int64_t width : widths)
    for (const std::int64_t length : lengths) result.push_back({is_batch ? 8 : 1, 1, length, width, !is_batch});
  return result;
}

const char* mask_of(const Case& c) { return c.form ? name(*c.form) : c.causal ? "causal" : "full"; }

class Bench {
 public:
  explicit Bench(const Options& options)
      : device_(apps::resolve_device(options.device)), timer_(device_, options.seconds), rows_(options.json) {}

  void head() const {
    fmt::print("{}\n{:>4} {:>3} {:>6} {:>4} {:<7} {:<5} {:<6} {:>11} {:>11} {:>11} {:>9} {:>12} {:>12}\n", apps::describe(device_), "B",
               "H", "N", "d", "mask", "mode", "kernel", "forward ms", "backward ms", "both ms", "TFLOP/s", "kept MiB", "peak MiB");
  }

  void run(const Case& c, const std::string& mode, const std::string& impl) {
    fmt::print("{:>4} {:>3} {:>6} {:>4} {:<7} {:<5} {:<6} ", c.batch, c.heads, c.length, c.width, mask_of(c), mode, impl);
    std::fflush(stdout);
    if (c.form == AttentionForm::plain) causal_tflops_.erase(mode + impl);
    try {
      measure(c, mode, impl);
    } catch (const OutOfMemory&) {
      rows_.add(row("attention_fwd_bwd", c, mode, impl).set("error", "out of memory"));
      fmt::print("out of memory\n");
    }
  }

 private:
  void measure(const Case& c, const std::string& mode, const std::string& impl) {
    manual_seed(0);  // the same numbers in every row, so that results of variants differ by the mask only
    const AttentionInputs in(c, float_modes().at(mode).first, device_);
    const FusedKernels kernels(impl == "fused");
    const auto call = [&] {
      const Tensors parts = in.parts();
      return scaled_dot_product_attention(parts[0], parts[1], parts[2], in.params);
    };
    synchronize(device_);
    reset_peak_memory(device_);
    const std::size_t before = memory_statistics(device_).allocated;
    double kept = 0, peak = 0, forward = 0, backward = 0, mean_square = 0;
    {
      const Tensor y = call();
      kept = mebibytes(memory_statistics(device_).allocated - before);
      backward = timer_.measure([&] { grad({y}, in.projections, {in.output_gradient}, false, true); });
      peak = mebibytes(memory_statistics(device_).peak_allocated - before);
      if (c.form) mean_square = mean(square(cast(y.detach(), DType::f64))).item<double>();
    }
    forward = timer_.measure([&] {
      const NoGrad unrecorded;
      call();
    });
    const double both = timer_.measure([&] { grad({call()}, in.projections, {in.output_gradient}); });
    const std::array<double, 3> ms = {forward, backward, both}, passes = {1, 2.5, 3.5};
    const std::array<const char*, 3> ops = {"attention_fwd", "attention_bwd", "attention_fwd_bwd"};
    std::array<double, 3> tflops{};
    for (std::size_t i = 0; i < ms.size(); ++i) tflops[i] = passes[i] * in.flops / ms[i] / 1e9;
    if (c.form == AttentionForm::plain) causal_tflops_[mode + impl] = tflops;
    const auto causal = causal_tflops_.find(mode + impl);
    const bool has_ratio = c.form && causal != causal_tflops_.end();
    fmt::print("{:11.3f} {:11.3f} {:11.3f} {:9.3f} {:12.2f} {:12.2f}", forward, backward, both, tflops[2], kept, peak);
    if (has_ratio) fmt::print("  of causal's TFLOP/s");
    for (std::size_t i = 0; i < ms.size(); ++i) {
      io::JsonObject one = row(ops[i], c, mode, impl);
      one.set("ms", rounded(ms[i], 1e5)).set("tflops", rounded(tflops[i], 1e4));
      if (has_ratio) {
        const double of_causal = tflops[i] / causal->second[i];
        one.set("of_causal", rounded(of_causal, 1e3));
        fmt::print(" {:.3f}", of_causal);
      }
      if (c.form) one.set("gflop", passes[i] * in.flops / 1e9).set("mean_square", mean_square);
      rows_.add(one.set("kept_mib", rounded(kept, 1e3)).set("peak_mib", rounded(peak, 1e3)));
    }
    fmt::print("\n");
  }

  static double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

  io::JsonObject row(const char* op, const Case& c, const std::string& mode, const std::string& impl) const {
    io::JsonObject result;
    result.set("op", op)
        .set("shape", c.shape())
        .set("causal", c.causal)
        .set("mask", mask_of(c))
        .set("dtype", float_modes().at(mode).second)
        .set("impl", "tern-" + impl);
    set_device(result, device_);
    if (device_.type == DeviceType::cuda && mode == "fp32") result.set("precision", precision_name());
    return result;
  }
  static const char* precision_name() {
    switch (context().kernels.matmul_precision) {
      case MatmulPrecision::tf32: return "tf32";
      case MatmulPrecision::tf32x3: return "tf32x3";
      default: return "fp32";
    }
  }

  Device device_;
  ColdTimer timer_;
  RowFile rows_;
  std::map<std::string, std::array<double, 3>> causal_tflops_;  ///< of the last plain row of the sweep `masks`, by mode and kernel
};

void attention(const Options& options) {
  if (options.threads > 0) set_num_threads(options.threads);
  const MatmulPrecisionMode precision(options.precision == "tf32"     ? MatmulPrecision::tf32
                                      : options.precision == "tf32x3" ? MatmulPrecision::tf32x3
                                                                      : MatmulPrecision::fp32);
  Bench bench(options);
  bench.head();
  for (const Case& c : cases_of(options, apps::resolve_device(options.device)))
    for (const std::string& mode : words(options.dtype))
      for (const std::string& impl : words(options.impl)) bench.run(c, mode, impl);
}

}  // namespace

void add_attention(CLI::App& app) {
  auto* command = app.add_subcommand("attention", "time attention, plain and fused, and the memory that it keeps for backward");
  const auto options = std::make_shared<Options>();
  add_value(
      *command, "--sweep", options->sweep,
      "models: shapes of models; batch: 8 sequences, every key seen; length: one sequence, causal, of 128 to 65536 tokens; masks: causal "
      "attention in all its forms (grouped heads, padding, windows, ...), by what is left to do",
      apps::one_of({"models", "batch", "length", "masks"}), "NAME");
  add_value(*command, "--impl", options->impl, "of plain, fused", list_of(apps::one_of({"plain", "fused"})), "LIST");
  add_value(*command, "--dtype", options->dtype, "of fp32, fp16, bf16, fp64", list_of(apps::one_of({"fp32", "fp16", "bf16", "fp64"})),
            "LIST");
  add_value(*command, "--precision", options->precision, "of fp32 products on a GPU", apps::one_of({"fp32", "tf32x3", "tf32"}), "NAME");
  add_value(*command, "--lengths", options->lengths, "tokens, instead of the sweep's", list_of(apps::whole_number(1, 1 << 24)), "LIST");
  add_value(*command, "--widths", options->widths, "elements of a head, instead of the sweep's", list_of(apps::whole_number(1, 1024)),
            "LIST");
  add_value(*command, "--seconds", options->seconds, "how long each figure is measured, about", apps::real_number(1e-6, 3600), "X");
  apps::add_threads_option(*command, options->threads);
  add_json_option(*command, options->json);
  apps::add_device_option(*command, options->device);
  command->callback([options] { attention(*options); });
}

}  // namespace tern::bench
