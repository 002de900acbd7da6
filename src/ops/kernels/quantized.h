#pragma once
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace tern::kernels {

/// Quantized weight (out, in) as kernels take it: its rows, one after the other.
struct QuantizedRows {
  const std::uint8_t* data;
  QuantFormat format;
  std::int64_t out, in;
  TERN_HOST_DEVICE const std::uint8_t* row(std::int64_t i) const { return data + i * bytes; }
  std::int64_t bytes = row_bytes(format, in);  ///< bytes of a row
};

/// y (M, out) = x (M, in) @ w transposed, plus bias (out), or no bias if bias.data is null. x and y of one of f32, bf16 and f16, x's rows
/// contiguous, y contiguous, bias of any stride. x is rounded as in ops/quantize.h; sums are exact integers within a block, and float32
/// over blocks. A row of x that is not finite gives a row of NaN.
void quantized_linear(Cpu, const View& x, const QuantizedRows& w, const View& bias, const View& y);
/// For 16-bit x, or few rows: see has_quantized_linear. x is not rounded in any format.
void quantized_linear(Cuda, const View& x, const QuantizedRows& w, const View& bias, const View& y);
bool has_quantized_linear(Cuda, const View& x);

/// y (N, in) = the rows of w selected by ids (N), i64 and contiguous, or the first N if ids.data is null. y is contiguous, of a floating
/// dtype. An id outside of [0, out) gives zeros on a GPU; on the CPU the caller checks ids.
void dequantize(Cpu, const QuantizedRows& w, const View& ids, const View& y);
void dequantize(Cuda, const QuantizedRows& w, const View& ids, const View& y);

}  // namespace tern::kernels
