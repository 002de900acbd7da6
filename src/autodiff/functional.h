#pragma once
#include <functional>

#include "tensor/tensor.h"

namespace tern {

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
/// kernel ("once differentiable", within the limits of autodiff/function.h; or one that declares once_differentiable).
JacobianProduct jvp(const TensorFunction& f, const Tensors& inputs, const Tensors& tangents);

namespace detail {
/// New zeros of x's shape, dtype and device.
Tensor zeros_as(const Tensor& x);
/// Throws unless there is a vector for each tensor, and each defined one has its tensor's shape, dtype and device.
void check_vectors(const char* where, const char* what, const Tensors& vectors, const Tensors& tensors);
}  // namespace detail

}  // namespace tern
