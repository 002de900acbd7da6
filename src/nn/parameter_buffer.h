#pragma once
#include "autodiff/parameter_buffer.h"
#include "nn/module.h"

namespace tern::nn {

/// One dtype's parameters of a module, one after the other, and their gradients in the same places.
struct FlatParameters {
  Tensor parameters;  ///< (N), padding included; the padding is zero and stays zero
  Tensor gradients;   ///< (N), in the same places; undefined where none were asked for
  Tensor masters;     ///< (N), f32, the values that parameters of 16 bits are rounded from; else undefined
};

/// Moves the parameters that require gradients into one storage per dtype, each slice aligned to 16 bytes, and binds
/// their gradients to slices of a buffer of the same layout. Every parameter stays an ordinary leaf behind its old
/// handle and keeps its value and gradient. From then on zero_grad costs nothing (Note [Gradient sink]: read gradients
/// through grad()), and an optimizer's step is one kernel.
/// Parameters of 16 bits get masters, which optimizers update. Throws Error if parameters of one dtype lie on several devices.
std::vector<FlatParameters> flatten_parameters(Module& module);
/// These alone, all of which require gradients. Without a buffer of gradients they have none, and `gradients` is undefined.
std::vector<FlatParameters> flatten_parameters(const Tensors& parameters, bool with_gradients = true);
/// Moreover stores the parameters in a floating dtype; in 16 bits, the masters keep the values that they have now.
std::vector<FlatParameters> flatten_parameters(Module& module, DType dtype);

/// As named_parameters, for files: those of 16 bits are replaced by their masters, where there are any.
std::vector<NamedTensor> named_masters(const Module& module);

}  // namespace tern::nn
