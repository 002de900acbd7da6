#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Functions of each element that are composed of the ops of ops/pointwise.h: a kernel for each of those, two to five.

/// sin(x) / cos(x).
Tensor tan(const Tensor& x);
/// x where x > 0, else slope x; the derivative at 0 is `slope`. Maas et al., 2013.
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
/// x where x > 0, else alpha (exp(x) - 1). Clevert et al., 2016.
Tensor elu(const Tensor& x, double alpha = 1);

/// @{
/// Bool, of any dtype: integers are finite.
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// @}
/// Bool: |a - b| <= absolute + relative |b|, equal infinities and, where `equal_nan`, two NaNs included; a and b are broadcast.
Tensor isclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false);
/// Whether all elements are close; waits for the device.
bool allclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false);

}  // namespace tern
