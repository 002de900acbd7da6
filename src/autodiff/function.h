#pragma once
#include <array>

#include "autodiff/node.h"

namespace tern {

namespace detail {
/// Gives gradients that lack the history of what they were computed from, or all where `every`, one that throws when it is followed.
void forbid_second_derivative(const char* op, const Backward& call, Tensors& gradients, bool every);
}  // namespace detail

/// An op of a user's own with its own backward:
///
///     struct Cube : Function<Cube> {
///       static Tensor forward(Tensors& saved, const Tensor& x) { saved = {x}; return x * x * x; }
///       static Tensors backward(const Backward& call) { return {3 * call.saved(0) * call.saved(0) * call.grad()}; }
///     };
///     Tensor y = Cube::apply(x);
///
/// forward takes tensors only, runs unrecorded, and puts what backward needs into `saved` (inputs, its output, or
/// intermediate results). backward returns one gradient for each input; written in ops, it can be differentiated again.
/// One that is written otherwise, by a kernel or by a loop over elements, cannot: under create_graph a gradient that comes back without
/// history, although the gradients or saved tensors that it was computed from have one, throws Error ("once differentiable") where it is
/// differentiated. A saved tensor that the gradient does not depend on (its shape alone is used) is saved as x.detach(). A gradient with
/// a part of its history, such as kernel(x) * grad, cannot be told from a whole one: such a Function has the member
///
///       static constexpr bool once_differentiable = true;
template <class Derived>
struct Function {
  /// The op's result: forward of the inputs, recorded with backward where a gradient is wanted.
  template <class... Inputs>
  static Tensor apply(const Inputs&... inputs) {
    Tensors saved;
    Tensor output;
    {
      const NoGrad unrecorded;
      output = Derived::forward(saved, inputs...);
    }
    // An output that is one of the inputs would become its own input; a fresh handle keeps the two apart.
    if ((output.is_same(inputs) || ...)) output = output.detach();
    // A gradient of another form would be read out of bounds by the kernels that it goes on to.
    const auto spec = [](const Tensor& x) { return x.defined() ? detail::TensorSpec{x.shape(), x.dtype()} : detail::TensorSpec{}; };
    const std::array<detail::TensorSpec, sizeof...(Inputs)> specs = {spec(inputs)...};
    return record("function", output, {inputs...}, saved, [specs](const Backward& call) {
      Tensors gradients = Derived::backward(call);
      detail::check_gradient_specs("function", specs, gradients);
      constexpr bool is_once = requires { requires Derived::once_differentiable; };
      if (context().grad) detail::forbid_second_derivative("function", call, gradients, is_once);
      return gradients;
    });
  }
};

}  // namespace tern
