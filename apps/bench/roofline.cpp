#include "bench/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "backend/error.h"

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

}  // namespace tern::bench
