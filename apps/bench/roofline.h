#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/json_object.h"
#include "io/svg.h"

namespace tern::bench {

/// Floating-point operations and memory traffic of one part of a computation.
struct Count {
  std::string part;
  double flops = 0;  ///< a multiply-add is two
  double bytes = 0;  ///< memory traffic: each kernel reads its operands and writes its result once, without caches between kernels
  double intensity() const { return flops / bytes; }  ///< FLOP per byte
};

/// The peak rates of a device.
struct DevicePeak {
  std::string name;
  double flops_16, flops_32;  ///< FLOP/s of 16-bit GEMMs (dense, on tensor cores) and in f32
  double bandwidth;           ///< bytes/s of memory
  double flops(int bytes_per_element) const { return bytes_per_element <= 2 ? flops_16 : flops_32; }
  /// The ridge point: FLOP per byte above which a kernel is compute bound.
  double ridge(int bytes_per_element) const { return flops(bytes_per_element) / bandwidth; }
};
/// A100 (80 GB, SXM), T4, H100 (SXM) and H200 (SXM) as NVIDIA publishes them: the data sheets "A100 Tensor Core GPU" (312 and 19.5 TFLOP/s,
/// 2039 GB/s), "H100 Tensor Core GPU" (989 and 67 TFLOP/s, 3.35 TB/s) and "H200 Tensor Core GPU" (989 and 67 TFLOP/s, 4.8 TB/s), and for
/// the T4 the white paper "NVIDIA Turing GPU Architecture" (65 and 8.1 TFLOP/s, 320 GB/s).
std::span<const DevicePeak> known_devices();
/// The device of a name. Throws Error for an unknown name.
const DevicePeak& known_device(const std::string& name);

/// Sizes of a layer: B sequences of N tokens of width D, with H heads.
struct TransformerSize {
  std::int64_t batch, length, width, heads;
  int bytes_per_element = 2;
};
/// Costs of the forward pass of a layer's parts, without biases: input projections (three GEMMs), QK^T / sqrt(d), mask (added; one for all
/// heads), softmax (exponential, sum, division), AV, the last four together as multi-head attention (MHA), the same in one kernel (Dao et
/// al., "FlashAttention", 2022), and the MLP D -> 4 D -> D. Throws Error for a size below 1.
std::vector<Count> count_transformer(const TransformerSize& size);

/// Costs of a depthwise convolution of (B, L, D) with K taps and a bias: the padding kernel (K - 1 zeros at each end), the convolution
/// kernel, both, and a single kernel that does both. Throws Error for a size below 1.
std::vector<Count> count_padded_conv1d(std::int64_t batch, std::int64_t length, std::int64_t channels, std::int64_t taps,
                                       int bytes_per_element = 2);
/// The cost in a single kernel.
Count count_depthwise_conv1d(std::int64_t batch, std::int64_t length, std::int64_t channels, std::int64_t taps, int bytes_per_element = 2);

/// The roofline of a device (Williams, Waterman & Patterson, "Roofline", 2009), with each part at its FLOP per byte.
io::svg::Chart roofline(const DevicePeak& device, const std::vector<Count>& counts, int bytes_per_element);

/// The forward passes in rows of `tern-bench conv1d`, and of other libraries, under the measured roofline. A small signal stays in a CPU's
/// cache between calls, and may lie above the memory roof. Throws UsageError for rows without a copy, a GEMM or a forward pass of tern.
io::svg::Chart roofline(const std::vector<io::JsonObject>& rows);

}  // namespace tern::bench
