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
/// depend on the inputs; undefined for an integer output. There is no forward mode: the product is the derivative of the vjp with respect
/// to its cotangents, in which it is linear (Townsend, "A new trick for calculating Jacobian vector products", 2017). It costs one call of
/// f and two backward passes, the first of them recorded, and keeps what f saves for backward: about three times the time of f with one
/// backward pass, and twice its memory.
/// Every op of the library has the second order that this takes. A user's Function whose backward is a kernel has not, and throws Error
/// ("once differentiable") in the words and within the limits of autodiff/function.h; so does one that says once_differentiable.
/// There is a tangent for each input, of its shape and dtype; an undefined one stands for zeros.
/// Throws Error where their number or forms do not fit.
JacobianProduct jvp(const TensorFunction& f, const Tensors& inputs, const Tensors& tangents);

}  // namespace tern
