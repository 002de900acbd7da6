#include "ops/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "autodiff/engine.h"
#include "bench/commands.h"
#include "bench/timing.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::bench {
namespace {

struct Options : TimingOptions {
  std::string sweep = "models", impl = "plain,fused", dtype = "bf16", lengths, widths, precision = "fp32";
};

/// Variants of causal attention, the rows of the sweep `masks`.
enum class Form : std::uint8_t {
  plain,
  grouped,  ///< grouped-query attention: a quarter as many key and value heads, if that divides
  queries,  ///< only the last half of the queries: T != S
  lengths,  ///< padding: a random length for each batch row, from half to all of the keys
  prefix,   ///< prefix LM: a random prefix for each batch row, of up to half the keys
  window,   ///< sliding window of a quarter of the keys
  dropout,  ///< dropout of 0.1
  packed,   ///< packed sequences: four for each batch row, of random lengths
  rope,     ///< rotary positions, applied to queries and keys before; counted in the time, but not in the FLOPs
};
struct Case {
  std::int64_t batch, heads, length, width;
  bool causal;
  std::optional<Form> form = {};

  std::vector<std::int64_t> shape() const { return {batch, heads, length, width}; }
};

/// The tensors of a case. Random values are the same for all variants with tensors of the same shape.
struct Inputs {
  Inputs(const Case& c, DType dtype, Device device);
  /// Returns q, k and v.
  Tensors parts() const;

  Tensors projections;  ///< q, k and v are slices of these, as in a model: one tensor for self attention, else one for q and one for k, v
  Tensor output_gradient;  ///< of q's shape
  Tensor table;            ///< rotary positions; undefined without them
  AttentionParams params;
  std::int64_t heads, kv_heads;
  /// FLOPs of the two GEMMs of forward: 4 D for each visible pair of query and key in a head. Variants count the visible pairs; other cases
  /// N^2, or half of it if causal, as other benchmarks do.
  double flops = 0;
};

using Numbers = std::vector<std::int64_t>;

/// Random numbers that are the same on every machine and in every run.
class HostRandom {
 public:
  /// A number in [low, high].
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(high - low + 1));
  }
  Numbers operator()(std::int64_t count, std::int64_t low, std::int64_t high) {
    Numbers result(static_cast<std::size_t>(count));
    for (std::int64_t& number : result) number = (*this)(low, high);
    return result;
  }

 private:
  std::mt19937_64 bits_;
};

/// The limits of a causal mask for one batch row.
struct Limits {
  std::int64_t queries, keys, length, prefix = 0, window = 0;

  double pairs() const {
    std::int64_t sum = 0;
    for (std::int64_t t = 0; t < queries; ++t) {
      const std::int64_t own = t + keys - queries, end = std::min(std::max(own + 1, prefix), length);
      sum += std::max<std::int64_t>(end - (window > 0 ? std::max<std::int64_t>(own + 1 - window, 0) : 0), 0);
    }
    return static_cast<double>(sum);
  }
};

Tensor on_device(const Numbers& numbers, Device device) {
  return to(Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())}), device);
}

const char* name(Form form) {
  constexpr const char* names[] = {"causal", "grouped", "queries", "lengths", "prefix", "window", "dropout", "packed", "rope"};
  return names[static_cast<int>(form)];
}

/// The variants for a head size, the plain one first. Rotary positions need an even size.
std::vector<Form> forms_of(std::int64_t width) {
  std::vector<Form> forms = {Form::plain,  Form::grouped, Form::queries, Form::lengths, Form::prefix,
                             Form::window, Form::dropout, Form::packed,  Form::rope};
  if (width % 2 != 0) forms.pop_back();
  return forms;
}

Inputs::Inputs(const Case& c, DType dtype, Device device) : heads(c.heads), kv_heads(c.heads) {
  const Form form = c.form.value_or(Form::plain);
  HostRandom random;
  params.mask.causal = c.causal;
  const std::int64_t n = c.length, half = std::max<std::int64_t>(n / 2, 1);
  std::int64_t queries = n;
  Numbers lengths(static_cast<std::size_t>(c.batch), n), prefixes(static_cast<std::size_t>(c.batch), 0);
  double pairs = 0;
  switch (form) {
    case Form::grouped:
      if (c.heads % 4 == 0) kv_heads = c.heads / 4;
      break;
    case Form::queries: queries = half; break;
    case Form::lengths: params.mask.key_lengths = on_device(lengths = random(c.batch, half, n), device); break;
    case Form::prefix: params.mask.prefix = on_device(prefixes = random(c.batch, 1, half), device); break;
    case Form::window: params.mask.window = std::max<std::int64_t>(n / 4, 1); break;
    case Form::dropout: params.dropout = 0.1, params.training = true; break;
    case Form::rope: table = rope_table(n, c.width, 10000, device); break;
    case Form::packed: {
      Numbers starts = random(4 * c.batch - 1, 0, c.batch * n);
      starts.insert(starts.end(), {0, c.batch * n});
      std::sort(starts.begin(), starts.end());
      for (std::size_t i = 1; i < starts.size(); ++i) {
        const std::int64_t length = starts[i] - starts[i - 1];
        params.max_queries = params.max_keys = std::max(params.max_keys, length);
        pairs += Limits{length, length, length}.pairs();
      }
      params.query_starts = params.key_starts = on_device(starts, device);
      break;
    }
    case Form::plain: break;
  }
  if (!c.form) {
    pairs = static_cast<double>(c.batch) * static_cast<double>(n) * static_cast<double>(n) / (c.causal ? 2 : 1);
  } else if (form != Form::packed) {
    for (std::size_t row = 0; row < lengths.size(); ++row)
      pairs += Limits{queries, n, lengths[row], prefixes[row], params.mask.window}.pairs();
  }
  flops = 4.0 * static_cast<double>(c.heads * c.width) * pairs;

  const auto rows = [&](std::int64_t tokens, std::int64_t of_heads) {
    const Shape shape = form == Form::packed ? Shape{c.batch * tokens, of_heads, c.width} : Shape{c.batch, tokens, of_heads, c.width};
    return cast(randn(shape, 0, 1, DType::f32, device), dtype);
  };
  if (form == Form::queries) projections = {rows(queries, heads), rows(n, 2 * kv_heads)};
  else projections = {rows(n, heads + 2 * kv_heads)};
  for (Tensor& projection : projections) projection.set_requires_grad();
  output_gradient = rows(queries, heads);
}

Tensors Inputs::parts() const {
  const int dim = projections[0].dims() - 2;
  if (projections.size() > 1) {
    Tensors parts = split(projections[1], kv_heads, dim);
    parts.insert(parts.begin(), projections[0]);
    return parts;
  }
  const Tensor& joined = projections[0];
  const Tensor rotated = table.defined() ? transpose(rope(transpose(joined, 1, 2), table, heads + kv_heads), 1, 2) : joined;
  return split(rotated, {heads, kv_heads, kv_heads}, dim);
}

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
    for (const Form form : forms_of(c.width)) c.form = form, result.push_back(c);
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

class Bench : OpTimer {
 public:
  using OpTimer::OpTimer;

  void head() const {
    fmt::print("{}\n{:>4} {:>3} {:>6} {:>4} {:<7} {:<5} {:<6} {:>11} {:>11} {:>11} {:>9} {:>12} {:>12}\n", apps::describe(device()), "B",
               "H", "N", "d", "mask", "mode", "kernel", "forward ms", "backward ms", "both ms", "TFLOP/s", "kept MiB", "peak MiB");
  }

  void run(const Case& c, const std::string& mode, const std::string& impl) {
    fmt::print("{:>4} {:>3} {:>6} {:>4} {:<7} {:<5} {:<6} ", c.batch, c.heads, c.length, c.width, mask_of(c), mode, impl);
    std::fflush(stdout);
    if (c.form == Form::plain) causal_tflops_.erase(mode + impl);
    try {
      measure_case(c, mode, impl);
    } catch (const OutOfMemory&) {
      rows_.add(row("attention_fwd_bwd", c, mode, impl).set("error", "out of memory"));
      fmt::print("out of memory\n");
    }
  }

 private:
  void measure_case(const Case& c, const std::string& mode, const std::string& impl) {
    manual_seed(0);  // the same numbers in every row, so that results of variants differ by the mask only
    const Inputs in(c, float_modes().at(mode).first, device());
    const FusedKernels kernels(impl == "fused");
    const auto call = [&] {
      const Tensors parts = in.parts();
      return scaled_dot_product_attention(parts[0], parts[1], parts[2], in.params);
    };
    synchronize(device());
    reset_peak_memory(device());
    const std::size_t before = memory_statistics(device()).allocated;
    double kept = 0, peak = 0, forward = 0, backward = 0, mean_square = 0;
    {
      const Tensor y = call();
      kept = mebibytes(memory_statistics(device()).allocated - before);
      backward = measure([&] { grad({y}, in.projections, {in.output_gradient}, false, true); });
      peak = mebibytes(memory_statistics(device()).peak_allocated - before);
      if (c.form) mean_square = mean(square(cast(y.detach(), DType::f64))).item<double>();
    }
    forward = measure([&] {
      const NoGrad unrecorded;
      call();
    });
    const double both = measure([&] { grad({call()}, in.projections, {in.output_gradient}); });
    const std::array<double, 3> ms = {forward, backward, both}, passes = {1, 2.5, 3.5};
    const std::array<const char*, 3> ops = {"attention_fwd", "attention_bwd", "attention_fwd_bwd"};
    std::array<double, 3> tflops{};
    for (std::size_t i = 0; i < ms.size(); ++i) tflops[i] = passes[i] * in.flops / ms[i] / 1e9;
    if (c.form == Form::plain) causal_tflops_[mode + impl] = tflops;
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
    set_device(result, device());
    if (device().type == DeviceType::cuda && mode == "fp32") result.set("precision", precision_name());
    return result;
  }
  static const char* precision_name() {
    switch (context().kernels.matmul_precision) {
      case MatmulPrecision::tf32: return "tf32";
      case MatmulPrecision::tf32x3: return "tf32x3";
      default: return "fp32";
    }
  }

  std::map<std::string, std::array<double, 3>> causal_tflops_;  ///< of the last plain row of the sweep `masks`, by mode and kernel
};

void attention(const Options& options) {
  const MatmulPrecisionMode precision(options.precision == "tf32"     ? MatmulPrecision::tf32
                                      : options.precision == "tf32x3" ? MatmulPrecision::tf32x3
                                                                      : MatmulPrecision::fp32);
  Bench bench(options);
  bench.head();
  for (const Case& c : cases_of(options, apps::use(options)))
    for (const std::string& mode : words(options.dtype))
      for (const std::string& impl : words(options.impl)) bench.run(c, mode, impl);
}

}  // namespace

void add_attention(CLI::App& app) {
  auto* command = app.add_subcommand("attention", "time attention, plain and fused, and the memory that it keeps for backward");
  const auto options = std::make_shared<Options>();
  options->seconds = 0.2;
  add_value(
      *command, "--sweep", options->sweep,
      "models: shapes of models; batch: 8 sequences, every key seen; length: one sequence, causal, of 128 to 65536 tokens; masks: causal "
      "attention in all its forms (grouped heads, padding, windows, ...), by what is left to do",
      apps::one_of({"models", "batch", "length", "masks"}), "NAME");
  add_list(*command, "--impl", options->impl, {"plain", "fused"});
  add_list(*command, "--dtype", options->dtype, {"fp32", "fp16", "bf16", "fp64"});
  add_value(*command, "--precision", options->precision, "of fp32 products on a GPU", apps::one_of({"fp32", "tf32x3", "tf32"}), "NAME");
  add_value(*command, "--lengths", options->lengths, "tokens, instead of the sweep's", list_of(apps::whole_number(1, 1 << 24)), "LIST");
  add_value(*command, "--widths", options->widths, "elements of a head, instead of the sweep's", list_of(apps::whole_number(1, 1024)),
            "LIST");
  add_timing_options(*command, *options);
  command->callback([options] { attention(*options); });
}

}  // namespace tern::bench
