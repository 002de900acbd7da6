#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// y = x, converted to y's dtype; same shape, any strides (x may be broadcast, y may not). To bool: x != 0.
void copy(Cpu, const View& x, const View& y);
void copy(Cuda, const View& x, const View& y);

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
