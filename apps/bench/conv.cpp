#include "ops/conv.h"

#include <fmt/format.h>

#include "autodiff/engine.h"
#include "bench/commands.h"
#include "bench/timing.h"
#include "common/program.h"
#include "ops/factory.h"
#include "ops/random.h"

namespace tern::bench {
namespace {

struct Options : TimingOptions {
  std::string dtype = "fp32,fp16", taps = "3,4,7", layout = "last";
};

/// A convolution of u (batch, length, channels) with `taps` taps, ConvPadding::same and a bias.
struct Case {
  std::int64_t batch, length, channels, taps;
  DType dtype;
  bool channels_first;

  std::int64_t elements() const { return batch * length * channels; }
  std::int64_t signal_bytes() const { return elements() * static_cast<std::int64_t>(size_of(dtype)); }
  double flops() const { return 2.0 * static_cast<double>(taps * elements()); }
  std::vector<std::int64_t> shape() const { return {batch, length, channels, taps}; }
};

/// The shapes of the reference benchmark.
std::vector<Shape> shapes_of(Device device) {
  if (device.type == DeviceType::cpu) return {{1, 1024, 1024}, {1, 8192, 1024}, {4, 2048, 768}};
  return {{1, 1024, 1024}, {1, 8192, 1024}, {1, 8192, 8192}, {16, 1024, 768}, {16, 2048, 2048}, {1, 131072, 1024}};
}

class Bench : OpTimer {
 public:
  using OpTimer::OpTimer;

  /// Measures the roofline: the bandwidth of a large copy, counting reads and writes, and the FLOP/s of a large f32 GEMM.
  void roofs() {
    const double copy_ms = measure_peak(), copy_gbs = peak_gbs();
    rows_.add(row("copy", {peak_count()}, "fp32", "tern", copy_ms).set("gbs", rounded(copy_gbs, 10)));
    const auto [side, ms, tflops] = measure_product(device(), DType::f32);
    rows_.add(row("product", {side, side, side}, "fp32", "tern", ms).set("tflops", rounded(tflops, 1e4)));
    fmt::print("{}: a copy moves {:.0f} GB/s, reading and writing counted; a product of f32 matrices computes {:.2f} TFLOP/s\n",
               apps::describe(device()), copy_gbs, tflops);
    fmt::print("{:<10} {:>3} {:>7} {:>5} {:>2} {:<5} {:>11} {:>11} {:>7} {:>7} {:>8} {:>8} {:>14}\n", "direction", "B", "L", "D", "K",
               "mode", "plain us", "fused us", "ratio", "GB/s", "TFLOP/s", "of copy", "of equal copy");
  }

  void run(const Case& c, const std::string& mode) {
    const Shape shape = c.channels_first ? Shape{c.batch, c.channels, c.length} : Shape{c.batch, c.length, c.channels};
    const auto leaf = [&](const Shape& of) { return cast(randn(of, 0, 1, DType::f32, device()), c.dtype).set_requires_grad(); };
    const Tensor u = leaf(shape), w = leaf({c.channels, c.taps}), bias = leaf({c.channels}), g = leaf(shape).detach();
    const DepthwiseConvOptions options{.padding = ConvPadding::same, .channels_first = c.channels_first};
    double forward[2], backward[2];
    for (const bool fused : {false, true}) {
      const FusedKernels kernels(fused);
      const auto call = [&] { return depthwise_conv1d(u, w, bias, options); };
      forward[fused] = measure([&] {
        const NoGrad unrecorded;
        call();
      });
      const Tensor y = call();
      backward[fused] = measure([&] { grad({y}, {u, w, bias}, {g}, false, true); });
    }
    report(c, "fwd", mode, forward, 2 * c.signal_bytes(), c.flops());
    report(c, "bwd", mode, backward, 3 * c.signal_bytes(), 2 * c.flops());
  }

 private:
  void report(const Case& c, const std::string& direction, const std::string& mode, const double (&ms)[2], std::int64_t bytes,
              double flops) {
    const std::string op = (c.channels_first ? "conv1d_first_" : "conv1d_") + direction;
    const double copy_ms = equal_ms(bytes);
    const std::pair<const char*, double> figures[] = {{"tern-plain", ms[0]}, {"tern-fused", ms[1]}, {"copy", copy_ms}};
    for (const auto& [impl, time] : figures) {
      const double rate = gbs(bytes, time);
      io::JsonObject line = row(op, c.shape(), mode, impl, time);
      line.set("gbs", rounded(rate, 10)).set("of_copy", rounded(rate / peak_gbs(), 1e4)).set("tflops", rounded(flops / time / 1e9, 1e5));
      rows_.add(line.set("flop_per_byte", rounded(flops / static_cast<double>(bytes), 1e4)));
    }
    const double fused = gbs(bytes, ms[1]);
    fmt::print("{:<10} {:>3} {:>7} {:>5} {:>2} {:<5} {:11.2f} {:11.2f} {:6.2f}x {:7.0f} {:8.3f} {:7.1f}% {:13.1f}%\n", direction, c.batch,
               c.length, c.channels, c.taps, mode, ms[0] * 1e3, ms[1] * 1e3, ms[0] / ms[1], fused, flops / ms[1] / 1e9,
               100 * fused / peak_gbs(), 100 * copy_ms / ms[1]);
    std::fflush(stdout);
  }
};

void conv(const Options& options) {
  manual_seed(0);
  Bench bench(options);
  bench.roofs();
  for (const Shape& shape : shapes_of(apps::use(options)))
    for (const std::string& mode : words(options.dtype))
      for (const std::string& taps : words(options.taps))
        bench.run({shape[0], shape[1], shape[2], std::stoll(taps), float_modes().at(mode).first, options.layout == "first"}, mode);
}

}  // namespace

void add_conv(CLI::App& app) {
  auto* command = app.add_subcommand("conv1d", "time the depthwise convolution, composed and by its kernel, beside a copy");
  const auto options = std::make_shared<Options>();
  add_list(*command, "--dtype", options->dtype, {"fp32", "fp16", "bf16", "fp64"});
  add_value(*command, "--taps", options->taps, "numbers of taps", list_of(apps::whole_number(1, 1024)), "LIST");
  add_value(*command, "--layout", options->layout, "which dimension is contiguous: channels last (B, L, D), or first (B, D, L)",
            apps::one_of({"last", "first"}), "NAME");
  add_timing_options(*command, *options);
  command->callback([options] { conv(*options); });
}

}  // namespace tern::bench
