#pragma once
#include <array>

#include "autodiff/node.h"

namespace tern {

namespace detail {
/// Replaces gradients without the history of what they were computed from, or all of them if `every`, by ones that throw when
/// differentiated.
void forbid_second_derivative(const char* op, const Backward& call, Tensors& gradients, bool every);
}  // namespace detail

/// Custom op with a custom backward:
///
///     struct Cube : Function<Cube> {
///       static Tensor forward(Tensors& saved, const Tensor& x) { saved = {x}; return x * x * x; }
///       static Tensors backward(const Backward& call) { return {3 * call.saved(0) * call.saved(0) * call.grad()}; }
///     };
///     Tensor y = Cube::apply(x);
///
/// forward takes only tensors, runs unrecorded, and puts what backward needs into `saved` (inputs, its output, or intermediate results).
/// backward returns one gradient for each input; if it is written in ops, it can be differentiated again. If it is written otherwise, with
/// a kernel or a loop over elements, it cannot: under create_graph a gradient that has no history, although the gradients or saved tensors
/// that it was computed from have one, throws Error ("once differentiable") when it is differentiated. Save a tensor that the gradient does
/// not depend on (only its shape is used) as x.detach(). A gradient with a part of its history, such as kernel(x) * grad, is
/// indistinguishable from a complete one: such a Function needs the member
///
///       static constexpr bool once_differentiable = true;
template <class Derived>
struct Function {
  /// The op's result: forward of the inputs, recorded with backward if a gradient is required.
  template <class... Inputs>
  static Tensor apply(const Inputs&... inputs) {
    Tensors saved;
    Tensor output;
    {
      const NoGrad unrecorded;
      output = Derived::forward(saved, inputs...);
    }
    // An output that is one of the inputs would become its own input; a new handle avoids that.
    if ((output.is_same(inputs) || ...)) output = output.detach();
    // Kernels that receive a gradient of another shape would read out of bounds.
    const auto spec = [](const Tensor& x) { return x.defined() ? detail::TensorSpec{x.shape(), x.dtype()} : detail::TensorSpec{}; };
    const std::array<detail::TensorSpec, sizeof...(Inputs)> specs = {spec(inputs)...};
    return record({"function"}, output, {inputs...}, saved, [specs](const Backward& call) {
      Tensors gradients = Derived::backward(call);
      detail::check_gradient_specs("function", specs, gradients);
      constexpr bool is_once = requires { requires Derived::once_differentiable; };
      if (context().grad) detail::forbid_second_derivative("function", call, gradients, is_once);
      return gradients;
    });
  }
};

}  // namespace tern
