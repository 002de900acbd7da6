#include "bench/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "backend/error.h"
#include "common/program.h"

namespace tern::bench {

std::span<const DevicePeak> known_devices() {
  static const std::array devices = {DevicePeak{"A100", 312e12, 19.5e12, 2.039e12}, DevicePeak{"T4", 65e12, 8.1e12, 0.320e12},
                                     DevicePeak{"H100", 989e12, 67e12, 3.35e12}, DevicePeak{"H200", 989e12, 67e12, 4.8e12}};
  return devices;
}

const DevicePeak& known_device(const std::string& name) {
  const auto devices = known_devices();
  const auto found = std::find_if(devices.begin(), devices.end(), [&](const DevicePeak& device) { return device.name == name; });
  if (found == devices.end()) fail("known_device", fmt::format("expected A100, T4, H100 or H200 but got {}", name));
  return *found;
}

std::vector<Count> count_transformer(const TransformerSize& size) {
  if (size.batch < 1 || size.length < 1 || size.width < 1 || size.heads < 1 || size.bytes_per_element < 1)
    fail("count_transformer",
         fmt::format("expected sizes of at least 1 but got batch {}, length {}, width {}, heads {}, {} bytes an element", size.batch,
                     size.length, size.width, size.heads, size.bytes_per_element));
  const auto b = static_cast<double>(size.batch), n = static_cast<double>(size.length), d = static_cast<double>(size.width);
  const auto heads = static_cast<double>(size.heads), s = static_cast<double>(size.bytes_per_element);
  const double tokens = b * n * d, scores = b * heads * n * n, rows = b * heads * n, weights = d * d, mask = n * n;

  const Count projections{"input projections", 3 * 2 * tokens * d, s * 3 * (2 * tokens + weights)};
  const Count products{"QK^T", 2 * tokens * n + scores, s * (2 * tokens + scores)};
  const Count masking{"mask", scores, s * (2 * scores + mask)};
  const Count softmax{"softmax", 3 * scores - rows, s * 2 * scores};
  const Count output{"AV", 2 * tokens * n, s * (scores + 2 * tokens)};
  Count attention{"MHA"};
  for (const Count& part : {products, masking, softmax, output}) attention.flops += part.flops, attention.bytes += part.bytes;
  const Count fused{"MHA in one kernel", attention.flops, s * 4 * tokens};
  const Count mlp{"MLP", 2 * 2 * 4 * tokens * d, s * (2 * (tokens + 4 * tokens) + 2 * 4 * weights)};
  return {projections, products, masking, softmax, output, attention, fused, mlp};
}

Count count_depthwise_conv1d(std::int64_t batch, std::int64_t length, std::int64_t channels, std::int64_t taps, int bytes_per_element) {
  const auto elements = static_cast<double>(batch) * static_cast<double>(length) * static_cast<double>(channels);
  const auto k = static_cast<double>(taps);
  return {"depthwise convolution", 2 * k * elements, bytes_per_element * (2 * elements + (k + 1) * static_cast<double>(channels))};
}

std::vector<Count> count_padded_conv1d(std::int64_t batch, std::int64_t length, std::int64_t channels, std::int64_t taps,
                                       int bytes_per_element) {
  if (batch < 1 || length < 1 || channels < 1 || taps < 1 || bytes_per_element < 1)
    fail("count_padded_conv1d", fmt::format("expected sizes of at least 1 but got ({}, {}, {}), {} taps, {} bytes an element", batch,
                                            length, channels, taps, bytes_per_element));
  const Count whole = count_depthwise_conv1d(batch, length, channels, taps, bytes_per_element);
  const double row = static_cast<double>(batch) * static_cast<double>(channels), s = bytes_per_element;
  const double elements = row * static_cast<double>(length), padded = row * static_cast<double>(length + 2 * (taps - 1));
  const Count padding{"padding", 0, s * (elements + padded)};
  const Count of_padded{"convolution, padded", whole.flops, whole.bytes + s * (padded - elements)};
  return {padding, of_padded, {"both", whole.flops, padding.bytes + of_padded.bytes}, whole};
}

namespace {

/// A chart of the roofs from `low` to `high` FLOP per byte, or to twice the ridge point.
io::svg::Chart roofs(const std::string& name, double flops, double bandwidth, double low, double high) {
  const double ridge = flops / bandwidth;
  const auto corner = [&](double x) { return io::svg::Point{x, std::min(flops, x * bandwidth) / 1e12}; };
  return {.title = fmt::format("{}: {:.4g} TFLOP/s, {:.4g} GB/s", name, flops / 1e12, bandwidth / 1e9),
          .x_label = "FLOP per byte",
          .left = {.label = "TFLOP/s"},
          .series = {{.name = "roofs",
                      .points = {corner(std::min(low, ridge / 2)), corner(ridge), corner(std::max(high, 2 * ridge))},
                      .mark = io::svg::Mark::none}},
          .is_log = true};
}

/// A row's forward pass: its library and its style in the chart.
struct Measured {
  const char* impl;
  const char* name;
  io::svg::Mark mark;
};
// Drawn in this order, with tern's last, so that other marks do not cover them.
constexpr Measured known[] = {{"eager", "PyTorch, eager", io::svg::Mark::square},
                              {"compile-shifted", "PyTorch, compiled", io::svg::Mark::diamond},
                              {"tern-fused", "tern", io::svg::Mark::disc}};
struct Float {
  const char* name;
  int bytes;
};
constexpr Float floats[] = {{"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"float64", 8}};

bool is_forward(const io::JsonObject& row, const char* impl, const char* dtype) {
  if (!row.contains("op") || !row.contains("ms") || !row.contains("impl") || !row.contains("dtype")) return false;
  const std::string op = row.get_string("op");
  return (op == "conv1d_fwd" || op == "conv1d_first_fwd") && row.get_string("impl") == impl && row.get_string("dtype") == dtype;
}

/// The maximum of a figure over tern's rows of an op; 0 if there is none.
double largest(const std::vector<io::JsonObject>& rows, const char* op, const char* key) {
  double result = 0;
  for (const io::JsonObject& row : rows)
    if (row.contains("op") && row.get_string("op") == op && row.contains(key) && row.get_string("impl") == "tern")
      result = std::max(result, row.get_double(key));
  return result;
}

}  // namespace

io::svg::Chart roofline(const DevicePeak& device, const std::vector<Count>& counts, int bytes_per_element) {
  const double peak = device.flops(bytes_per_element);
  double low = device.ridge(bytes_per_element) / 100, high = device.ridge(bytes_per_element) * 10;
  for (const Count& c : counts)
    if (c.flops > 0) low = std::min(low, c.intensity()), high = std::max(high, c.intensity());
  io::svg::Chart chart = roofs("Roofline of " + device.name, peak, device.bandwidth, low, high);
  for (const Count& c : counts)
    if (c.flops > 0)
      chart.series.push_back(
          {.name = c.part, .points = {{c.intensity(), std::min(peak, c.intensity() * device.bandwidth) / 1e12}}, .has_line = false});
  return chart;
}

io::svg::Chart roofline(const std::vector<io::JsonObject>& rows) {
  const double bandwidth = 1e9 * largest(rows, "copy", "gbs"), flops = 1e12 * largest(rows, "product", "tflops");
  std::vector<io::svg::Series> series;
  std::string device;
  double low = INFINITY, high = 0;
  for (const Measured& measured : known)
    for (const Float& type : floats) {
      io::svg::Series points{
          .name = fmt::format("{}, {}", measured.name, type.name),
          .has_line = false,
          // A ring, as the points of bfloat16 coincide with those of float16.
          .mark = type.name == std::string("bfloat16") && measured.mark == io::svg::Mark::disc ? io::svg::Mark::ring : measured.mark,
          .colour = 1 + static_cast<std::size_t>(&type - floats)};
      for (const io::JsonObject& row : rows) {
        if (!is_forward(row, measured.impl, type.name)) continue;
        const std::vector<std::int64_t> shape = row.get_ints("shape");
        if (shape.size() != 4)
          throw apps::UsageError(fmt::format("--roofline: expected a shape (B, L, D, K) but got ({})", fmt::join(shape, ", ")));
        const Count count = count_depthwise_conv1d(shape[0], shape[1], shape[2], shape[3], type.bytes);
        const double ms = row.get_double("ms");
        points.points.push_back({count.intensity(), count.flops / ms / 1e9, 0, 0, fmt::format("({}): {} ms", fmt::join(shape, ", "), ms)});
        low = std::min(low, count.intensity());
        high = std::max(high, count.intensity());
        if (measured.mark == io::svg::Mark::disc && row.contains("device")) device = row.get_string("device");
      }
      if (!points.points.empty()) series.push_back(std::move(points));
    }
  if (bandwidth <= 0 || flops <= 0 || series.empty() || !series.back().name.starts_with("tern"))
    throw apps::UsageError("--roofline: expected rows of tern-bench conv1d: a copy, a product and forward passes");
  io::svg::Chart chart = roofs(fmt::format("Depthwise convolutions, forward ({})", device), flops, bandwidth, low, high);
  chart.width = 760;
  chart.series.insert(chart.series.end(), std::make_move_iterator(series.begin()), std::make_move_iterator(series.end()));
  return chart;
}

}  // namespace tern::bench
