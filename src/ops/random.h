#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Random tensors from this thread's generator (context().generator, seeded by manual_seed): Philox 4x32-10, the same numbers on every
/// device. Each thread has its own generator and begins with seed 0: to draw different numbers, threads must set different seeds
/// (docs/threads.md).

/// Uniform numbers low + (high - low) u in [low, high), with u a multiple of 2^-24 in [0, 1). A number that would round to `high` is the
/// largest one of the dtype below it; if there is none between the bounds, all are low. Throws Error unless low <= high, both of them and
/// their difference finite in the dtype.
Tensor rand(const Shape& shape, double low = 0, double high = 1, DType dtype = DType::f32, Device device = default_device());
/// Normal numbers with the given mean and standard deviation. Throws Error unless both are finite and deviation >= 0.
Tensor randn(const Shape& shape, double mean = 0, double deviation = 1, DType dtype = DType::f32, Device device = default_device());
/// @{
/// Uniform in [0, 1), or normal with mean 0 and deviation 1, with dtype and device as named options.
inline Tensor rand(const Shape& shape, const TensorOptions& options) { return rand(shape, 0, 1, options.dtype, options.device); }
inline Tensor randn(const Shape& shape, const TensorOptions& options) { return randn(shape, 0, 1, options.dtype, options.device); }
inline Tensor rand(const Shape& shape, DType dtype) { return rand(shape, 0, 1, dtype); }
inline Tensor randn(const Shape& shape, DType dtype) { return randn(shape, 0, 1, dtype); }
/// @}
/// @{
/// rand and randn with x's shape, dtype and device; row-major for any strides of x.
inline Tensor rand_like(const Tensor& x) { return rand(x.shape(), 0, 1, x.dtype(), x.device()); }
inline Tensor randn_like(const Tensor& x) { return randn(x.shape(), 0, 1, x.dtype(), x.device()); }
/// @}
/// Bernoulli numbers: 1 with the given probability, rounded up to a multiple of 2^-24, else 0. Throws Error for a probability outside [0,
/// 1].
Tensor bernoulli(const Shape& shape, double probability, DType dtype = DType::f32, Device device = default_device());
/// Whole numbers that are uniform in [low, high), of i64, i32 or u8, without bias for any bounds. Throws Error unless low < high, and all
/// of these numbers are in the dtype's range. Lemire, 2019.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, DType dtype = DType::i64, Device device = default_device());
/// Random permutation of 0 .. n-1, i64 (n).
Tensor randperm(std::int64_t n, Device device = default_device());

/// @{
/// Fill a contiguous floating tensor in place, as rand and randn do; return x. Throw Error as rand and randn do.
Tensor uniform_(const Tensor& x, double low, double high);
Tensor normal_(const Tensor& x, double mean, double deviation);
/// @}

/// Dropout: sets each element to zero with probability p and scales the others by 1 / (1 - p); returns x itself unless `training` and p >
/// 0. No mask is kept: backward draws the same numbers again from the saved random position. Throws Error unless 0 <= p < 1.
/// Srivastava et al., JMLR 2014.
Tensor dropout(const Tensor& x, double p, bool training = true);

namespace detail {
/// Dropout with the random numbers of a given position: linear in x, and its own derivative.
Tensor dropout_at(const Tensor& x, double p, PhiloxState draws);
}  // namespace detail

}  // namespace tern
