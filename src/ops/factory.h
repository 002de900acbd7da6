#pragma once
#include <optional>

#include "tensor/tensor.h"

// New tensors: of numbers, and copies of others.
namespace tern {

/// @{
/// New row-major tensor whose elements are all 0, 1 or `value`; an integer dtype truncates `value`. Throws Error for a negative size, and
/// for a value outside an integer dtype's range.
Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = default_device());
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = default_device());
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = default_device());
/// @}
/// @{
/// The same with named options: zeros({2, 3}, {.dtype = DType::f64}).
inline Tensor zeros(const Shape& shape, const TensorOptions& options) { return zeros(shape, options.dtype, options.device); }
inline Tensor ones(const Shape& shape, const TensorOptions& options) { return ones(shape, options.dtype, options.device); }
inline Tensor full(const Shape& shape, double value, const TensorOptions& options) {
  return full(shape, value, options.dtype, options.device);
}
/// @}
/// @{
/// The same in f32 on the given device.
inline Tensor zeros(const Shape& shape, Device device) { return zeros(shape, DType::f32, device); }
inline Tensor ones(const Shape& shape, Device device) { return ones(shape, DType::f32, device); }
/// @}
/// @{
/// The same with x's shape, dtype and device; row-major for any strides of x.
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
Tensor full_like(const Tensor& x, double value);
/// @}
/// (n): start, start + step, ... below stop (above it for a negative step). Throws Error for a step of 0, and for numbers
/// that are not in an integer dtype's range.
Tensor arange(double start, double stop, double step = 1, DType dtype = DType::i64, Device device = default_device());
/// (n): 0, 1, ... n - 1.
inline Tensor arange(std::int64_t n, DType dtype = DType::i64, Device device = default_device()) {
  return arange(0, static_cast<double>(n), 1, dtype, device);
}

/// (n): `count` numbers from start to stop, both included, equally spaced; a floating dtype. Throws Error for a negative count.
Tensor linspace(double start, double stop, std::int64_t count, DType dtype = DType::f32, Device device = default_device());
/// The same with dtype and device as named options.
inline Tensor linspace(double start, double stop, std::int64_t count, const TensorOptions& options) {
  return linspace(start, stop, count, options.dtype, options.device);
}
/// (n, m): ones on a diagonal (column - row = diagonal) and zeros elsewhere; m = n where it is not given. Throws Error for a negative size.
Tensor eye(std::int64_t n, std::optional<std::int64_t> m = std::nullopt, std::int64_t diagonal = 0, DType dtype = DType::f32,
           Device device = default_device());
/// The identity matrix (n, n).
inline Tensor eye(std::int64_t n, const TensorOptions& options) { return eye(n, n, 0, options.dtype, options.device); }

/// Sets every element, in place, as full() does; any strides. Returns x.
Tensor fill_(const Tensor& x, double value);
/// Sets every element to 0, in place. Returns x.
inline Tensor zero_(const Tensor& x) { return fill_(x, 0); }

/// A contiguous copy in new memory.
Tensor clone(const Tensor& x);
/// Returns x itself if it is contiguous, else a contiguous copy.
Tensor contiguous(const Tensor& x);
/// Converts x to a dtype; returns x itself if it has it already. Floats to integers truncate; to bool means != 0. Gradients flow between
/// floating dtypes.
Tensor cast(const Tensor& x, DType dtype);
/// Moves x to a device; returns x itself if it is there already. Copies to a device, from the CPU or from another device, are asynchronous;
/// copies to the CPU wait.
Tensor to(const Tensor& x, Device device);
/// Writes source, broadcast to target's shape and converted to its dtype, into target in place, on any device. Returns target.
Tensor copy_(const Tensor& target, const Tensor& source);

}  // namespace tern
