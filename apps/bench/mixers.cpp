#include <fmt/format.h>

#include "autodiff/engine.h"
#include "bench/commands.h"
#include "bench/mixer_cost.h"
#include "bench/timing.h"
#include "common/program.h"
#include "common/training_settings.h"
#include "nn/transformer.h"
#include "ops/factory.h"
#include "ops/random.h"
#include "train/precision.h"

namespace tern::bench {
namespace {

struct Options : TimingOptions {
  std::string mixers = fmt::format("{}", fmt::join(apps::mixer_names(), ",")), precisions = "fp32", lengths = "1024";
  std::int64_t batch = 4, width = 256, heads = 4;
};

/// A transformer layer's norm, mixer and residual sum, on an input (B, T, width), with rotary positions.
struct Case {
  nn::MixerKind kind;
  TransformerSize size;
  train::Precision precision;

  double tokens() const { return static_cast<double>(size.batch) * static_cast<double>(size.length); }
};

class Bench : OpTimer {
 public:
  using OpTimer::device;
  using OpTimer::OpTimer;

  void head(const Options& options) const {
    fmt::print("{}: one layer of a mixer, B {}, D {}, H {}\n{:<15} {:>7} {:<6} {:>11} {:>11} {:>9} {:>12} {:>14} {:>12}\n",
               apps::describe(device()), options.batch, options.width, options.heads, "mixer", "N", "mode", "forward ms", "both ms",
               "of attn", "tokens/s", "MFLOP a token", "state KiB");
  }

  /// Of the cases that follow, attention's is another.
  void begin() { attention_ms_ = 0; }

  void run(const Case& c) {
    fmt::print("{:<15} {:>7} {:<6} ", nn::name(c.kind), c.size.length, train::name(c.precision));
    std::fflush(stdout);
    try {
      measure_case(c);
    } catch (const OutOfMemory&) {
      rows_.add(case_row(c, "fwd_bwd", 0).set("error", "out of memory"));
      fmt::print("out of memory\n");
    }
    std::fflush(stdout);
  }

 private:
  void measure_case(const Case& c) {
    manual_seed(0);
    const TransformerSize& size = c.size;
    const nn::TransformerOptions options{.length = size.length,
                                         .width = size.width,
                                         .heads = size.heads,
                                         .ff = 0,
                                         .mixers = {{.kind = c.kind}},
                                         .dropout = 0,
                                         .device = device()};
    nn::TransformerLayer layer(options, false, rope_table(size.length, size.width / size.heads, options.rope_base, device()));
    const DType dtype = train::dtype_of(c.precision);
    nn::to(layer, dtype);
    const train::PrecisionScope scope(c.precision);
    const auto made = [&] { return cast(randn({size.batch, size.length, size.width}, 0, 1, DType::f32, device()), dtype); };
    const Tensor x = made().set_requires_grad(), dy = made();
    Tensors leaves = nn::parameters(layer);
    leaves.push_back(x);
    const auto call = [&] { return layer.forward(x, {.causal = true}); };
    const double forward = measure([&] {
      const NoGrad unrecorded;
      call();
    });
    const double both = measure([&] { grad({call()}, leaves, {dy}); });
    if (c.kind == nn::MixerKind::attention) attention_ms_ = both;
    const MixerCost cost = count_mixer(c.kind, size);
    const double rate = c.tokens() / both * 1e3, a_token = cost.flops / c.tokens();
    fmt::print("{:11.3f} {:11.3f} {:>9} {:12.0f} {:14.4g} {:12.6g}\n", forward, both,
               attention_ms_ > 0 ? fmt::format("{:.2f}", both / attention_ms_) : "-", rate, a_token / 1e6, cost.state_bytes / 1024);
    for (const auto& [pass, ms] : {std::pair("fwd", forward), std::pair("fwd_bwd", both)})
      rows_.add(case_row(c, pass, ms)
                    .set("tok_s", std::round(c.tokens() / ms * 1e3))
                    .set("flops_a_token", a_token)
                    .set("state_bytes", cost.state_bytes));
  }

  io::JsonObject case_row(const Case& c, const char* pass, double ms) const {
    const bool is_narrow = size_of(train::dtype_of(c.precision)) == 2;
    return row(fmt::format("mixer_{}_{}", nn::name(c.kind), pass), {c.size.batch, c.size.length, c.size.width, c.size.heads},
               is_narrow ? train::name(c.precision) : "fp32", "tern", ms)
        .set("precision", train::name(c.precision));
  }

  double attention_ms_ = 0;  ///< of both passes; 0: not measured
};

void mixers(const Options& options) {
  const std::int64_t dim = options.width / options.heads;
  if (options.width % options.heads != 0 || dim % 2 != 0)
    throw apps::UsageError(fmt::format("--heads: expected heads of an even size, for rotary positions, but got {} in a width of {}",
                                       options.heads, options.width));
  Bench bench(options);
  std::vector<train::Precision> precisions;
  for (const std::string& name : words(options.precisions)) {
    precisions.push_back(train::precision_of(name).value());
    apps::require_precision(precisions.back(), bench.device());
  }
  bench.head(options);
  for (const train::Precision precision : precisions)
    for (const std::int64_t length : numbers(options.lengths)) {
      const int bytes = static_cast<int>(size_of(train::dtype_of(precision)));
      bench.begin();
      for (const std::string& name : words(options.mixers))
        bench.run({nn::mixer_kind_of(name).value(), {options.batch, length, options.width, options.heads, bytes}, precision});
    }
}

}  // namespace

void add_mixers(CLI::App& app) {
  auto* command = app.add_subcommand("mixers", "time a layer of each token mixer, beside attention's");
  const auto options = std::make_shared<Options>();
  options->seconds = 0.2;
  add_list(*command, "--mixer", options->mixers, apps::mixer_names());
  add_list(*command, "--precision", options->precisions, apps::precision_names);
  add_value(*command, "--batch", options->batch, "sequences, B", apps::whole_number(1, 1 << 24), "N");
  add_value(*command, "--length", options->lengths, "tokens of a sequence, N", list_of(apps::whole_number(1, 1 << 24)), "LIST");
  add_value(*command, "--width", options->width, "of the layer, D", apps::whole_number(1, 1 << 20), "N");
  add_value(*command, "--heads", options->heads, "H, of the mixers that have heads", apps::whole_number(1, 1 << 16), "N");
  add_timing_options(*command, *options);
  command->callback([options] { mixers(*options); });
}

}  // namespace tern::bench
