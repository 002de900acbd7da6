#pragma once
#include "autodiff/parameter_buffer.h"
#include "nn/module.h"

namespace tern::nn {

/// The parameters of a module in one dtype, one after the other, and their gradients in the same layout.
struct FlatParameters {
  Tensor parameters;  ///< (N), padding included; the padding is zero and stays zero
  Tensor gradients;   ///< (N), in the same layout; undefined if not requested
  Tensor masters;     ///< (N), f32, the masters of 16-bit parameters; else undefined
};

/// Moves the parameters that require gradients into one storage per dtype, each slice aligned to 16 bytes, and binds their gradients to
/// slices of a buffer of the same layout. Every parameter stays an ordinary leaf under its old handle and keeps its value and gradient.
/// Afterwards zero_grad costs nothing (Note [Gradient sink]: read gradients through grad()), and an optimizer's step is one kernel. 16-bit
/// parameters get masters, which optimizers update. Throws Error if parameters of one dtype are on several devices.
std::vector<FlatParameters> flatten_parameters(Module& module);
/// Flattens these parameters, all of which require gradients. Without a buffer of gradients they have none, and `gradients` is undefined.
std::vector<FlatParameters> flatten_parameters(const Tensors& parameters, bool with_gradients = true);
/// Also converts the parameters to a floating dtype; in 16 bits, the masters keep their current values.
std::vector<FlatParameters> flatten_parameters(Module& module, DType dtype);

/// As named_parameters, for files: 16-bit parameters are replaced by their masters, if there are any.
std::vector<NamedTensor> named_masters(const Module& module);

}  // namespace tern::nn
