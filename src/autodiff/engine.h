#pragma once
#include "autodiff/node.h"

namespace tern {

/// Gradients of sum(outputs[i] * grad_outputs[i]) with respect to `inputs`, leaves or not; the accumulated gradients of leaves stay
/// unchanged. An entry is undefined if no output depends on the input. `grad_outputs` has one gradient for each output, and may be omitted
/// if each output has one element. With `create_graph` the computation is recorded, so that the result can be differentiated; it implies
/// retain_graph. Throws Error if a shape does not fit or the graph was freed.
Tensors grad(TensorList outputs, TensorList inputs, TensorList grad_outputs = {}, bool create_graph = false, bool retain_graph = false);

/// Adds gradients to every leaf, as Tensor::backward, for several outputs at once.
void backward(TensorList outputs, TensorList grad_outputs = {}, bool retain_graph = false, bool create_graph = false);

}  // namespace tern
