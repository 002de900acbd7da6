#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tern::bench {

/// Floating-point operations and memory traffic of one part of a computation.
struct Count {
  std::string part;
  double flops = 0;  ///< a multiplication and an addition are two
  double bytes = 0;  ///< of memory: each kernel reads its operands and writes its result once, and caches keep nothing between kernels
  double intensity() const { return flops / bytes; }  ///< FLOP per byte
};

/// The peak rates of a device.
struct DevicePeak {
  std::string name;
  double flops_16, flops_32;  ///< FLOP/s of 16-bit products (on tensor cores, dense), and in f32
  double bandwidth;           ///< bytes/s of its memory
  double flops(int bytes_per_element) const { return bytes_per_element <= 2 ? flops_16 : flops_32; }
  /// The FLOP per byte above which arithmetic is what takes the time.
  double ridge(int bytes_per_element) const { return flops(bytes_per_element) / bandwidth; }
};
/// A100 (80 GB, SXM), T4, H100 (SXM) and H200 (SXM) as NVIDIA publishes them: the data sheets "A100 Tensor Core GPU" (312 and 19.5 TFLOP/s,
/// 2039 GB/s), "H100 Tensor Core GPU" (989 and 67 TFLOP/s, 3.35 TB/s) and "H200 Tensor Core GPU" (989 and 67 TFLOP/s, 4.8 TB/s), and for
/// the T4 the white paper "NVIDIA Turing GPU Architecture" (65 and 8.1 TFLOP/s, 320 GB/s).
std::span<const DevicePeak> known_devices();
/// Throws Error for a name that is not among them.
const DevicePeak& known_device(const std::string& name);

/// B sequences of N tokens of width D, with H heads.
struct TransformerSize {
  std::int64_t batch, length, width, heads;
  int bytes_per_element = 2;
};
/// The forward pass of a layer's parts, without biases: input projections (three products), QK^T / sqrt(d), mask (added; one for all
/// heads), softmax (exponential, sum, division), AV, the last four together as multi-head attention (MHA), the same in one kernel (Dao et
/// al., "FlashAttention", 2022), and the MLP D -> 4 D -> D. Throws Error for a size below 1.
std::vector<Count> count_transformer(const TransformerSize& size);

/// A depthwise convolution of (B, L, D) with K taps and a bias in two kernels, one that pads and one that convolves, each of them alone,
/// both, and in one kernel. Padded are K - 1 zeros at each end. Throws Error for a size below 1.
std::vector<Count> count_padded_conv1d(std::int64_t batch, std::int64_t length, std::int64_t channels, std::int64_t taps,
                                       int bytes_per_element = 2);
/// The one in one kernel.
Count count_depthwise_conv1d(std::int64_t batch, std::int64_t length, std::int64_t channels, std::int64_t taps, int bytes_per_element = 2);

}  // namespace tern::bench
