#pragma once
#include "tensor/tensor.h"

namespace tern {

Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = cpu);
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = cpu);
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = cpu);
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
Tensor full_like(const Tensor& x, double value);
/// (n): start, start + step, ... below stop (above it for a negative step). Throws Error for a step of 0.
Tensor arange(double start, double stop, double step = 1, DType dtype = DType::i64, Device device = cpu);
inline Tensor arange(std::int64_t n, DType dtype = DType::i64, Device device = cpu) {
  return arange(0, static_cast<double>(n), 1, dtype, device);
}

/// Sets every element, in place; any strides. Returns x.
Tensor fill_(const Tensor& x, double value);
inline Tensor zero_(const Tensor& x) { return fill_(x, 0); }

}  // namespace tern
