#pragma once
#include "tensor/quant_format.h"
#include "tensor/view.h"

namespace tern::kernels {

/// A quantised weight (out, in) as kernels take it: its rows, one behind the other.
struct QuantizedRows {
  const std::uint8_t* data;
  QuantFormat format;
  std::int64_t out, in;
  TERN_HOST_DEVICE const std::uint8_t* row(std::int64_t i) const { return data + i * bytes; }
  std::int64_t bytes = row_bytes(format, in);  ///< of a row
};

/// y (M, out) = x (M, in) @ w transposed, plus bias (out), or nothing where bias.data is null. x and y of one of f32, bf16 and f16, x's
/// rows contiguous, y contiguous, bias of any stride. x is rounded as ops/quantize.h says; sums are exact ones of integers within a block,
/// and float32 over blocks. A row of x that is not finite gives a row of NaN.
void quantized_linear(Cpu, const View& x, const QuantizedRows& w, const View& bias, const View& y);
/// Of 16-bit x, or of few rows: see has_quantized_linear. x is as it is in every format.
void quantized_linear(Cuda, const View& x, const QuantizedRows& w, const View& bias, const View& y);
bool has_quantized_linear(Cuda, const View& x);

/// y (N, in) = the rows of w that ids (N), i64 and contiguous, choose, or the first N where ids.data is null. y is contiguous, of a
/// floating dtype. An id outside of [0, out) gives zeros on a GPU; on the CPU it is the caller's to check.
void dequantize(Cpu, const QuantizedRows& w, const View& ids, const View& y);
void dequantize(Cuda, const QuantizedRows& w, const View& ids, const View& y);

}  // namespace tern::kernels
