#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// y = x, converted to y's dtype; same shape, any strides (x may be broadcast, y may not). To bool: x != 0.
void copy(Cpu, const View& x, const View& y);
void copy(Cuda, const View& x, const View& y);

/// Note [Sums in 16 bits]: y, of a 16-bit dtype, is a running sum, whose exact form `sum` is in f32: sum += x, and y = sum rounded. Where y
/// is not sum rounded, because others wrote to it, the sum goes on from y. One shape, everything contiguous; x has y's dtype.
void add_rounded(Cpu, const View& x, const View& sum, const View& y);
void add_rounded(Cuda, const View& x, const View& sum, const View& y);
/// Additions to a 16-bit sum that may round to 16 bits each; longer sums use add_rounded.
inline constexpr int max_rounded_sums = 8;

/// Sets every element of y to value.
void fill(Cpu, const View& y, double value);
void fill(Cuda, const View& y, double value);

/// y[i] = start + i * step, for a one-dimensional y of a numeric dtype.
void arange(Cpu, const View& y, double start, double step);
void arange(Cuda, const View& y, double start, double step);

/// y = x where column - row <= diagonal (lower) or >= diagonal (upper), else 0; the last two dimensions.
void triangle(Cpu, const View& x, const View& y, std::int64_t diagonal, bool upper);
void triangle(Cuda, const View& x, const View& y, std::int64_t diagonal, bool upper);

}  // namespace tern::kernels
