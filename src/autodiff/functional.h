#pragma once
#include <functional>

#include "tensor/tensor.h"

namespace tern {

/// A function of several tensors, written in ops.
using TensorFunction = std::function<Tensors(const Tensors&)>;

/// Results of vjp and jvp: f's outputs, detached, and the products.
struct JacobianProduct {
  Tensors outputs;   ///< of f, as many as it gives
  Tensors products;  ///< of vjp one for each input, of jvp one for each output
};

/// The vector-Jacobian product of f at `inputs`: the gradients of sum(outputs[i] * cotangents[i]) with respect to each input, zeros where
/// the outputs do not depend on it. One call of f and one backward pass. Inputs are taken without their history, integers too (their
/// product is undefined), and gradients of leaves that f uses otherwise stay as they are. There is a cotangent for
/// each output, of its shape and dtype; an undefined one stands for zeros.
/// Throws Error where their number or forms do not fit.
JacobianProduct vjp(const TensorFunction& f, const Tensors& inputs, const Tensors& cotangents);

/// The Jacobian-vector product of f at `inputs`: the derivative of each output along `tangents`, zeros of its shape where it does not
/// depend on the inputs; undefined for an integer output. Forward mode: one call of f, whose ops compute tangents beside their values (Note
/// [Tangents] in autodiff/forward.cpp). Nothing is recorded, so that a tensor and its tangent go when f lets go of the tensor, and memory
/// does not grow with the depth of f. Processor time, one thread, f32: twice that of f without gradients for a multilayer perceptron (8
/// layers of 256) and for a transformer of plain ops (4 layers of 128), 3.4 times for one with fused kernels, whose tangents are those of
/// their plain compositions; peak memory 1.2, 1.8 and 2.3 times. Two reverse passes, which give the same product, took 8, 7.5 and 11 times
/// the time and 9, 22 and 19 times the memory. What f computes under NoGrad, or from x.detach(), is a constant. f may differentiate: jvp of
/// a function that calls vjp gives Hessian-vector products, and a jvp within a jvp has tangents of its own. One that calls grad() opens
/// GradMode(true) first, as nothing is recorded otherwise. Throws Error, which names the op, where f edits a tensor with a tangent in
/// place, adds gradients of what has tangents to leaves (Tensor::backward), or calls a user's Function whose backward is a kernel ("once
/// differentiable", within the limits of autodiff/function.h; or one that says once_differentiable). There is a tangent for each input, of
/// its shape and dtype; an undefined one stands for zeros. Inputs are taken without their history. Throws Error where their number or forms
/// do not fit.
JacobianProduct jvp(const TensorFunction& f, const Tensors& inputs, const Tensors& tangents);

}  // namespace tern
