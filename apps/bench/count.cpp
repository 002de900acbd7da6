#include <fmt/format.h>

#include <cmath>

#include "bench/commands.h"
#include "bench/mixer_cost.h"
#include "bench/roofline.h"
#include "bench/timing.h"
#include "common/program.h"
#include "common/training_settings.h"
#include "io/files.h"
#include "ops/factory.h"

namespace tern::bench {
namespace {

struct Options : apps::Processors {
  TransformerSize size{16, 16384, 4096, 32, 2};
  std::int64_t taps = 3;
  std::string of = "transformer", device_name = "A100", json, roofline;
};

/// The measured peak rates of this device: of a large copy, and of large GEMMs in f32 and in 16 bits.
DevicePeak measured(Device device) {
  const bool on_gpu = device.type == DeviceType::cuda;
  const Tensor x = zeros({std::int64_t{1} << (on_gpu ? 30 : 25)}, DType::f32, device), y = empty_like(x);
  const double copy_ms = timed_on_device(device, 2, 7, [] {}, [&] { copy_(y, x); }).median;
  const double flops_32 = 1e12 * measure_product(device, DType::f32).tflops;
  return {apps::describe(device) + ", measured", on_gpu ? 1e12 * measure_product(device, DType::bf16).tflops : flops_32, flops_32,
          1e9 * gbs(8 * x.numel(), copy_ms)};
}

std::vector<Count> counts_of(const Options& options, const TransformerSize& size) {
  if (options.of == "transformer") return count_transformer(size);
  return count_padded_conv1d(size.batch, size.length, size.width, options.taps, size.bytes_per_element);
}

/// The exponent e of a figure proportional to N^e, from its values at N and 2 N.
double exponent(double at_length, double at_twice) { return std::log2(at_twice / at_length); }

/// A row that begins with the part and the sizes.
io::JsonObject row_of(const std::string& part, const TransformerSize& size) {
  io::JsonObject row;
  return row.set("part", part).set("B", size.batch).set("N", size.length).set("D", size.width);
}

/// The size with texts of twice the length, by which exponents are found.
TransformerSize longer(TransformerSize size) {
  size.length *= 2;
  return size;
}

void count_mixers(const Options& options) {
  if (!options.roofline.empty()) throw apps::UsageError("--roofline: expected --of transformer or conv1d, whose bytes are counted");
  const TransformerSize& size = options.size;
  if (size.width % size.heads != 0)
    throw apps::UsageError(fmt::format("--heads: expected a divisor of the width {} but got {}", size.width, size.heads));
  RowFile rows(options.json);
  fmt::print("B {}, N {}, D {}, H {}, {} bytes an element: a mixer's forward pass, and what decoding keeps of a text\n", size.batch,
             size.length, size.width, size.heads, size.bytes_per_element);
  fmt::print("{:<15} {:>12} {:>14} {:>8} {:>12} {:>9}\n", "mixer", "GFLOP", "MFLOP a token", "FLOP as", "state KiB", "state as");
  for (const std::string& name : apps::mixer_names()) {
    const nn::MixerKind kind = nn::mixer_kind_of(name).value();
    const MixerCost cost = count_mixer(kind, size), at_twice = count_mixer(kind, longer(size));
    const double a_token = cost.flops / static_cast<double>(size.batch) / static_cast<double>(size.length);
    const double flops_as = exponent(cost.flops, at_twice.flops), state_as = exponent(cost.state_bytes, at_twice.state_bytes);
    fmt::print("{:<15} {:>12.6g} {:>14.6g} {:>8} {:>12.6g} {:>9}\n", name, cost.flops / 1e9, a_token / 1e6,
               fmt::format("N^{:.2f}", flops_as), cost.state_bytes / 1024, fmt::format("N^{:.2f}", state_as));
    rows.add(row_of(name, size)
                 .set("H", size.heads)
                 .set("bytes_per_element", size.bytes_per_element)
                 .set("flops", cost.flops)
                 .set("flops_a_token", a_token)
                 .set("state_bytes", cost.state_bytes)
                 .set("flops_exponent", flops_as)
                 .set("state_exponent", state_as));
  }
}

void count(const Options& options) {
  if (options.of == "mixers") return count_mixers(options);
  const DevicePeak device = options.device_name == "measured" ? measured(apps::use(options)) : known_device(options.device_name);
  RowFile rows(options.json);
  const TransformerSize& size = options.size;
  const double ridge = device.ridge(size.bytes_per_element);
  const bool is_conv = options.of == "conv1d";
  fmt::print("B {}, N {}, D {}, {}, {} bytes an element; {}: {:.4g} TFLOP/s, {:.4g} GB/s, compute-bound above {:.4g} FLOP/byte\n",
             size.batch, size.length, size.width, is_conv ? fmt::format("K {}", options.taps) : fmt::format("H {}", size.heads),
             size.bytes_per_element, device.name, device.flops(size.bytes_per_element) / 1e12, device.bandwidth / 1e9, ridge);
  fmt::print("{:<21} {:>12} {:>12} {:>10} {:>11} {:>9} {:>12} {:>12}\n", "part", "GFLOP", "GB", "FLOP/byte", "ms at least", "bound by",
             "FLOP as", "bytes as");
  const std::vector<Count> counts = counts_of(options, size), at_twice = counts_of(options, longer(size));
  if (!options.roofline.empty())
    io::write_file_atomically(options.roofline, io::svg::to_svg(roofline(device, counts, size.bytes_per_element)));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const Count& c = counts[i];
    const double compute_ms = c.flops / device.flops(size.bytes_per_element) * 1e3, memory_ms = c.bytes / device.bandwidth * 1e3;
    const char* const bound = compute_ms > memory_ms ? "compute" : "memory";
    const double flops_as = c.flops > 0 ? exponent(c.flops, at_twice[i].flops) : 0, bytes_as = exponent(c.bytes, at_twice[i].bytes);
    fmt::print("{:<21} {:>12.6g} {:>12.6g} {:>10.4g} {:>11.4g} {:>9} {:>12} {:>12}\n", c.part, c.flops / 1e9, c.bytes / 1e9, c.intensity(),
               std::max(compute_ms, memory_ms), bound, fmt::format("N^{:.2f}", flops_as), fmt::format("N^{:.2f}", bytes_as));
    io::JsonObject row = row_of(c.part, size);
    if (is_conv) row.set("K", options.taps);
    else row.set("H", size.heads);
    row.set("bytes_per_element", size.bytes_per_element).set("device", device.name).set("flops", c.flops).set("bytes", c.bytes);
    row.set("flop_per_byte", c.intensity()).set("bound", bound).set("ms", std::max(compute_ms, memory_ms));
    rows.add(row.set("flops_exponent", flops_as).set("bytes_exponent", bytes_as));
  }
}

}  // namespace

void add_count(CLI::App& app) {
  auto* command = app.add_subcommand("count", "count FLOPs and bytes of a transformer's parts, token mixers, or a depthwise convolution");
  const auto options = std::make_shared<Options>();
  add_value(
      *command, "--of", options->of,
      "transformer; mixers: FLOPs and state of each token mixer; or conv1d: a depthwise convolution, padded by a kernel of its own and "
      "in one",
      apps::one_of({"transformer", "mixers", "conv1d"}), "NAME");
  add_value(*command, "--batch", options->size.batch, "sequences, B", apps::whole_number(1, 1 << 24), "N");
  add_value(*command, "--length", options->size.length, "tokens of a sequence, N", apps::whole_number(1, 1 << 30), "N");
  add_value(*command, "--width", options->size.width, "of the model, D", apps::whole_number(1, 1 << 24), "N");
  add_value(*command, "--heads", options->size.heads, "H", apps::whole_number(1, 1 << 16), "N");
  add_value(*command, "--taps", options->taps, "of the convolution's filters, K", apps::whole_number(1, 1 << 20), "N");
  add_value(*command, "--bytes", options->size.bytes_per_element, "per element", apps::whole_number(1, 8), "N");
  add_value(*command, "--device-name", options->device_name, "A100, T4, H100 or H200 as published, or the measured rates of --device",
            apps::one_of({"A100", "T4", "H100", "H200", "measured"}), "NAME");
  command->add_option("--roofline", options->roofline, "draw the device's roofs with the parts on them")->type_name("FILE.svg");
  add_json_option(*command, options->json);
  apps::add_processor_options(*command, *options);
  command->callback([options] { count(*options); });
}

}  // namespace tern::bench
