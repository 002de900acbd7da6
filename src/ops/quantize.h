#pragma once
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace tern {

/// Quantized weight (out, in) of 8 bits or fewer per element, for inference: products and lookups read it without a dequantized copy, and
/// it gets no gradient. A handle like Tensor: copies share the bytes.
struct QuantizedWeight {
  bool defined() const { return rows.defined(); }    ///< false for an empty handle
  std::int64_t out() const { return rows.size(0); }  ///< rows
  Device device() const { return rows.device(); }    ///< device of the bytes

  QuantFormat format = QuantFormat::int8;  ///< memory format of a row
  std::int64_t in = 0;                     ///< number of weights in a row
  Tensor rows;                             ///< (out, row_bytes(format, in)) of u8
};

/// Rounds a floating weight (out, in) to the nearest of a format's values. int8: the scale of a row is its largest magnitude / 127. q8_0
/// and q4_0 are ggml's: d = the largest magnitude / 127, and d = the value of the largest magnitude / -8 with q = floor(w / d + 8.5), at
/// most 15. Throws Error for another shape, and for values that are not finite or that a f16 scale does not hold.
QuantizedWeight quantize(const Tensor& weight, QuantFormat format);

/// Dequantizes a weight to (out, in) of a floating dtype.
Tensor dequantize(const QuantizedWeight& weight, DType dtype = DType::f32);

/// linear(x, dequantize(weight), bias) without that copy: x (..., in) of f32, bf16 or f16 -> (..., out). The product reads the quantized
/// weights and dequantizes them on the fly. On a CPU, where integer products are the fast ones, x is rounded to scale * q: with
/// dynamic_int8 for each row, q in [-127, 127]; with q8_0 and q4_0 for each block of 32, as in ggml; with int8 for each row, q in [-32767,
/// 32767]. On a GPU x is not rounded. Throws Error for other shapes and dtypes, and where x or the bias requires a gradient: it is for
/// inference.
Tensor quantized_linear(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias = {});

/// embedding(dequantize(table, dtype), ids) without that copy: ids (...), i64 -> (..., in). Throws Error for an id that is out of range; on
/// a GPU such an id gives zeros.
Tensor quantized_embedding(const QuantizedWeight& table, const Tensor& ids, DType dtype = DType::f32);

}  // namespace tern
