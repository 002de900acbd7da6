#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// y (B, H, T, D), contiguous = x with each adjacent pair (2i, 2i + 1) of position t rotated by the angle whose cosine and sine are
/// table[t, i] (T, D / 2, 2), contiguous, f32 (f64 for f64 x); rotated back if `inverse`. x has unit last stride.
void rope(Cpu, const View& x, const View& table, const View& y, bool inverse);
void rope(Cuda, const View& x, const View& table, const View& y, bool inverse);

}  // namespace tern::kernels
