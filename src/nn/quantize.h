#pragma once
#include "nn/module.h"
#include "tensor/quant_format.h"

namespace tern::nn {

/// Quantizes a model for inference: each Linear's weight and each Embedding's table is converted to the format (ops/quantize.h), a tied one
/// once for all its owners, and becomes a buffer of bytes instead of a parameter. The remaining parameters (biases, norms) are frozen.
/// Generation and `io` accept such a model like any other; requiring a gradient from it throws Error. Throws Error as tern::quantize does,
/// naming the module, and for a model that is already quantized; the model is then unchanged.
void quantize(Module& module, QuantFormat format);

/// The same without reading the weights: the buffers are uninitialized, for a file to be loaded into them.
void make_quantized(Module& module, QuantFormat format);

/// Path of a buffer with a scale that is not finite, as only a corrupt file has; "" if there is none.
std::string find_bad_scale(const Module& module);

}  // namespace tern::nn
