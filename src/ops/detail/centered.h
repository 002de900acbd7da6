#pragma once
#include "tensor/tensor.h"

namespace tern::detail {

/// x minus its mean over the dimensions (all if none is given), in ops. In f32 the mean is rounded, near 1e5 by up to 4e-3, an error that
/// every difference would have. The differences are small, so subtracting their own mean as well leaves only the rounding of x.
Tensor centered(const Tensor& x, const Dims& dims);

}  // namespace tern::detail
