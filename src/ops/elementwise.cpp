#include <fmt/format.h>

#include <limits>

#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/op.h"
#include "ops/operators.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

namespace tern {

static constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor tan(const Tensor& x) {
  detail::check_floating("tan", x);
  // In 16 bits the quotient of a rounded sine and a rounded cosine would have both rounding errors.
  if (size_of(x.dtype()) == 2) return cast(tan(cast(x, DType::f32)), x.dtype());
  return sin(x) / cos(x);
}

Tensor leaky_relu(const Tensor& x, double slope) {
  detail::check_floating("leaky_relu", x);
  return where(gt(x, 0), x, x * slope);
}

Tensor elu(const Tensor& x, double alpha) {
  detail::check_floating("elu", x);
  // The exponential of a large x is not selected, but it would overflow, and its gradient would be 0 times infinity.
  return where(gt(x, 0), x, expm1(clamp(x, -infinity, 0)) * alpha);
}

Tensor isnan(const Tensor& x) { return ne(x, x); }
Tensor isinf(const Tensor& x) { return is_floating(x.dtype()) ? eq(abs(x), infinity) : full(x.shape(), 0, DType::boolean, x.device()); }
Tensor isfinite(const Tensor& x) { return is_floating(x.dtype()) ? lt(abs(x), infinity) : full(x.shape(), 1, DType::boolean, x.device()); }

Tensor isclose(const Tensor& a_, const Tensor& b_, double relative, double absolute, bool equal_nan) {
  check_one_device("isclose", {&a_, &b_});
  if (!(relative >= 0) || !(absolute >= 0)) fail("isclose", fmt::format("expected tolerances >= 0 but got {} and {}", relative, absolute));
  broadcast_shapes(a_.shape(), b_.shape(), "isclose");
  const NoGrad unrecorded;
  const Tensor a = cast(a_, DType::f64), b = cast(b_, DType::f64);
  // Equal elements are close, also infinities, whose difference is NaN; a finite number is never close to an infinity.
  const Tensor is_near = logical_and(le(abs(a - b), abs(b) * relative + absolute), isfinite(b));
  const Tensor close = logical_or(eq(a, b), is_near);
  return equal_nan ? logical_or(close, logical_and(isnan(a), isnan(b))) : close;
}

bool allclose(const Tensor& a, const Tensor& b, double relative, double absolute, bool equal_nan) {
  check_one_device("allclose", {&a, &b});
  return all(isclose(a, b, relative, absolute, equal_nan)).item<bool>();
}

}  // namespace tern
