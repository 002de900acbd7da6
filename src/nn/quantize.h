#pragma once
#include "nn/module.h"
#include "tensor/quant_format.h"

namespace tern::nn {

/// Makes a model one for inference: each Linear's weight and each Embedding's table takes the format (ops/quantize.h), a tied one once for
/// all its owners, and is a buffer of bytes from then on, no parameter. What is left of the parameters (biases, norms) is frozen.
/// Generation and `io` take such a model as any other; a gradient that is asked of it is an Error. Throws Error as tern::quantize does,
/// naming the place, and for a model that is quantised already; the model is then as it was.
void quantize(Module& module, QuantFormat format);

/// The same without a look at the weights: the bytes of the format are there, uninitialised, for a file to be read into them.
void make_quantized(Module& module, QuantFormat format);

/// The path of a buffer of which a scale is not finite, as only a made-up file has one; "" where all are.
std::string find_bad_scale(const Module& module);

}  // namespace tern::nn
