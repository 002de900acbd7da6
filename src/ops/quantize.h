#pragma once
#include "tensor/quant_format.h"
#include "tensor/tensor.h"

namespace tern {

/// A weight (out, in) of 8 bits or fewer an element, for inference: products and lookups read it as it is, and no gradient reaches it. A
/// handle, as a Tensor is: copies share the bytes.
struct QuantizedWeight {
  bool defined() const { return rows.defined(); }    ///< false for a weight that is not quantised
  std::int64_t out() const { return rows.size(0); }  ///< rows
  Device device() const { return rows.device(); }    ///< of the bytes

  QuantFormat format = QuantFormat::int8;  ///< how a row lies in memory
  std::int64_t in = 0;                     ///< weights of a row
  Tensor rows;                             ///< (out, row_bytes(format, in)) of u8
};

/// Rounds a floating weight (out, in) to the nearest of a format's values. int8: the scale of a row is its largest magnitude / 127. q8_0
/// and q4_0 are ggml's: d = the largest magnitude / 127, and d = the value of the largest magnitude / -8 with q = floor(w / d + 8.5), at
/// most 15. Throws Error for another shape, and for values that are not finite or that a f16 scale does not hold.
QuantizedWeight quantize(const Tensor& weight, QuantFormat format);

/// The values that a quantised weight stands for: (out, in) of a floating dtype.
Tensor dequantize(const QuantizedWeight& weight, DType dtype = DType::f32);

/// linear(x, dequantize(weight), bias) without that copy: x (..., in) of f32, bf16 or f16 -> (..., out). Weights are read as they are, and
/// dequantised within the product. On a CPU, whose fast products are those of integers, x is rounded to scale q: with dynamic_int8 each
/// row, q in [-127, 127]; with q8_0 and q4_0 each block of 32, as in ggml; with int8 each row, q in [-32767, 32767]. On a GPU x stays as it
/// is. Throws Error for other shapes and dtypes, and where x or the bias asks for a gradient: it is for inference.
Tensor quantized_linear(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias = {});

/// embedding(dequantize(table, dtype), ids) without that copy: ids (...), i64 -> (..., in). Throws Error for an id that is out of range; on
/// a GPU such an id gives zeros.
Tensor quantized_embedding(const QuantizedWeight& table, const Tensor& ids, DType dtype = DType::f32);

}  // namespace tern
