#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Elementwise functions that are composed of the ops of ops/pointwise.h, two to five kernels each.

/// sin(x) / cos(x).
Tensor tan(const Tensor& x);
/// x where x > 0, else slope * x; the derivative at 0 is `slope`. Maas et al., 2013.
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
/// x where x > 0, else alpha (exp(x) - 1). Clevert et al., 2016.
Tensor elu(const Tensor& x, double alpha = 1);

/// @{
/// Bool result for any dtype; integers are finite.
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// @}
/// Bool: |a - b| <= absolute + relative |b|; equal infinities are close, and so are two NaNs if `equal_nan`. a and b are broadcast.
Tensor isclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false);
/// True if all elements are close (isclose); waits for the device.
bool allclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false);

}  // namespace tern
