#include "autodiff/gradient_arithmetic.h"

#include <fmt/format.h>

#include "autodiff/node.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/pointwise.h"

namespace tern::detail {

void fill_gradient(const Tensor& target, double value) {
  target.impl().storage->bump_version();
  on(target.device(), [&](auto dev) { kernels::fill(dev, target.view(), value); }, "zero_gradient");
}

void copy_gradient(const Tensor& source, const Tensor& target) {
  target.impl().storage->bump_version();
  on(target.device(), [&](auto dev) { kernels::copy(dev, source.view(), target.view()); }, "copy_gradient");
}

void add_gradient(const Tensor& source, const Tensor& target) {
  target.impl().storage->bump_version();
  on(
      target.device(), [&](auto dev) { kernels::binary(dev, functors::Add{}, target.view(), source.view(), target.view()); },
      "add_gradient");
}

void add_gradient_exactly(const Tensor& source, const Tensor& target, Tensor& exact) {
  if (!exact.defined()) {
    exact = empty(target.shape(), DType::f32, target.device());
    copy_gradient(target, exact);
  }
  const Tensor added = source.is_contiguous() ? source : cloned(source);
  target.impl().storage->bump_version();
  on(target.device(), [&](auto dev) { kernels::add_rounded(dev, added.view(), exact.view(), target.view()); }, "add_gradient");
}

Tensor cloned(const Tensor& gradient) {
  const Tensor copy = empty_like(gradient);
  on(copy.device(), [&](auto dev) { kernels::copy(dev, gradient.view(), copy.view()); }, "copy_gradient");
  return copy;
}

Tensor sum_of_gradients(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype() || a.device() != b.device())
    fail("backward",
         fmt::format("expected gradients of one tensor to be alike but got {} {} on {} and {} {} on {}", name(a.dtype()),
                     to_string(a.shape()), to_string(a.device()), name(b.dtype()), to_string(b.shape()), to_string(b.device())));
  const Tensor sum = empty_like(a);
  on(sum.device(), [&](auto dev) { kernels::binary(dev, functors::Add{}, a.view(), b.view(), sum.view()); });
  return record({.name = "add", .tangent = Tangent::symmetric}, sum, {a, b}, {},
                [](const Backward& call) -> Tensors { return {call.grad(), call.grad()}; });
}

}  // namespace tern::detail
