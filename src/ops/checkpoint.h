#pragma once
#include <functional>
#include <optional>
#include <string_view>

#include "tensor/tensor.h"

namespace tern {

/// Policy of activation checkpointing: the activations of a function that are kept for its backward pass.
enum class CheckpointPolicy : std::uint8_t {
  none,       ///< all, as if it were not checkpointed
  selective,  ///< results of matrix products and of attention are kept; memory-bound ops are recomputed
  full,       ///< only its inputs are kept; the whole function is recomputed
};

/// Name of a policy: "none", "selective" or "full".
const char* name(CheckpointPolicy policy);
/// Policy of that name; none for any other name.
std::optional<CheckpointPolicy> checkpoint_policy_of(std::string_view name);

/// Activation checkpointing: computes f(inputs) without keeping its activations; backward runs f again, once, for those that it needs (Chen
/// et al., "Training deep nets with sublinear memory cost", 2016; `selective`: Korthikanti et al., "Reducing activation recomputation in
/// large transformer models", 2022). Gradients are bit for bit those of f(inputs): the graph is the same, dropout draws the same numbers,
/// and autocast and the matmul precision are those of the call. Calls may be nested, and may be captured in a CUDA graph together with
/// their backward pass.
///
///     x = checkpoint([&](const Tensor& in) { return block.forward(in); }, x);
///
/// Inputs are kept alive. f, and the other tensors that it reads, parameters among them, must live and stay unchanged until backward, and
/// its result may depend on nothing else that changes. With retain_graph, recomputed activations are kept as long as the graph. Throws
/// Error in backward if an input was edited in place since, or if f saves other tensors than before.
Tensors checkpoint(std::function<Tensors(const Tensors&)> f, const Tensors& inputs, CheckpointPolicy policy = CheckpointPolicy::full);
/// checkpoint() of a function from one tensor to one.
Tensor checkpoint(std::function<Tensor(const Tensor&)> f, const Tensor& input, CheckpointPolicy policy = CheckpointPolicy::full);

}  // namespace tern
