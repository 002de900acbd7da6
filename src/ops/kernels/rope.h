#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// y (B, H, T, D) = x with each pair of elements at position t of the first `heads` heads, (2i, 2i + 1) or with `halves` (i, D / 2 + i),
/// rotated by the angle whose cosine and sine are table[t, i] (T, D / 2, 2), contiguous, f32 (f64 for f64 x); rotated back if `inverse`.
/// The other heads are copied. x and y have unit last stride, and any other strides.
void rope(Cpu, const View& x, const View& table, const View& y, std::int64_t heads, bool halves, bool inverse);
void rope(Cuda, const View& x, const View& table, const View& y, std::int64_t heads, bool halves, bool inverse);

}  // namespace tern::kernels
