#pragma once
#include "tensor/tensor.h"

namespace tern::detail {

/// x minus its mean over the dimensions (all where none is named), in ops. A mean is rounded: near 1e5 by up to 4e-3 in f32, which every
/// difference then has too much. The differences are small, so that their own mean, taken off as well, leaves the rounding of x alone.
Tensor centered(const Tensor& x, const Dims& dims);

}  // namespace tern::detail
