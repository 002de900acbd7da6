#pragma once
#include <array>
#include <functional>

#include "autodiff/node.h"

// Derivatives: of recorded tensors, of functions, and of a custom op.
namespace tern {

/// Gradients of sum(outputs[i] * grad_outputs[i]) with respect to `inputs`, leaves or not; the accumulated gradients of leaves stay
/// unchanged. An entry is undefined if no output depends on the input. `grad_outputs` has one gradient for each output, and may be omitted
/// if each output has one element. With `create_graph` the computation is recorded, so that the result can be differentiated; it implies
/// retain_graph. Throws Error if a shape does not fit or the graph was freed.
Tensors grad(TensorList outputs, TensorList inputs, TensorList grad_outputs = {}, bool create_graph = false, bool retain_graph = false);

/// Adds gradients to every leaf, as Tensor::backward, for several outputs at once.
void backward(TensorList outputs, TensorList grad_outputs = {}, bool retain_graph = false, bool create_graph = false);

/// A function of several tensors, written in ops.
using TensorFunction = std::function<Tensors(const Tensors&)>;

/// Result of vjp and jvp: f's outputs, detached, and the products.
struct JacobianProduct {
  Tensors outputs;   ///< outputs of f
  Tensors products;  ///< vjp: one for each input; jvp: one for each output
};

/// Vector-Jacobian product of f at `inputs`: the gradients of sum(outputs[i] * cotangents[i]) with respect to each input, zeros if no
/// output depends on it. One call of f and one backward pass. Inputs are used without their history, and may be integers (whose product is
/// undefined); gradients of leaves that f uses in other ways stay unchanged. There is one cotangent for each output, of its shape and
/// dtype; an undefined one means zeros. Throws Error if number, shape or dtype do not match.
JacobianProduct vjp(const TensorFunction& f, const Tensors& inputs, const Tensors& cotangents);

/// Jacobian-vector product of f at `inputs`: the derivative of each output along `tangents`, zeros if it does not depend on the inputs;
/// undefined for an integer output. Forward mode: one call of f, whose ops compute tangents together with their values (Note [Tangents] in
/// autodiff/forward.cpp). Nothing is recorded: a tangent is freed with its tensor, and memory does not grow with the depth of f.
///
/// Cost on one thread in f32, relative to f without gradients: 2 times the time for a multilayer perceptron (8 layers of 256) and for a
/// transformer of plain ops (4 layers of 128), 3.4 times for one with fused kernels, whose tangents are those of their plain compositions;
/// peak memory 1.2, 1.8 and 2.3 times. Two reverse passes, which give the same product, took 8, 7.5 and 11 times the time and 9, 22 and 19
/// times the memory.
///
/// Values that f computes under NoGrad, or from x.detach(), are constants. f may differentiate: jvp of a function that calls vjp gives
/// Hessian-vector products, and a jvp within a jvp has its own tangents. If f calls grad(), it must open GradMode(true) first, because
/// otherwise nothing is recorded. There is one tangent for each input, of its shape and dtype; an undefined one means zeros. Inputs are
/// used without their history. Throws Error if number, shape or dtype do not match. Throws Error, which names the op, if f edits a tensor
/// with a tangent in place, adds gradients with tangents to leaves (Tensor::backward), or calls a user's Function whose backward is a
/// kernel ("once differentiable", within the limits of Function; or one that declares once_differentiable).
JacobianProduct jvp(const TensorFunction& f, const Tensors& inputs, const Tensors& tangents);

namespace detail {
/// Shape and dtype of an op's input, which its gradient must have.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::f32;
};
/// Throws Error that names the op and the first gradient whose shape or dtype is not that of its input. Undefined gradients are accepted.
void check_gradient_specs(const char* op, std::span<const TensorSpec> inputs, std::span<const Tensor> gradients);
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
/// that it was computed from have one, throws Error ("once differentiable") when it is differentiated. Gradients arrive with any strides,
/// 0 among them: what reads their memory asks for contiguous(call.grad()). Save a tensor that the gradient does not depend on (only its
/// shape is used) as x.detach(). A gradient with a part of its history, such as kernel(x) * grad, is
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
