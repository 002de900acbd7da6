#pragma once
#include <functional>
#include <optional>
#include <string_view>

#include "tensor/tensor.h"

namespace tern {

/// Policy of activation checkpointing: which activations of a function are kept for its backward pass.
enum class CheckpointPolicy : std::uint8_t {
  none,       ///< all, as if it were not checkpointed
  selective,  ///< results of matrix products and of attention are kept; memory-bound ops are recomputed
  full,       ///< its inputs alone; the whole function is computed again
};

/// "none", "selective", "full".
const char* name(CheckpointPolicy policy);
/// The policy of that name, if there is one.
std::optional<CheckpointPolicy> checkpoint_policy_of(std::string_view name);

/// Activation checkpointing: f(inputs), of which backward computes again what it needs, once, instead of keeping it (Chen et al., "Training
/// deep nets with sublinear memory cost", 2016; `selective`: Korthikanti et al., "Reducing activation recomputation in large transformer
/// models", 2022). Gradients are bit for bit those of f(inputs): the graph is the same, dropout draws the same numbers, and autocast and
/// the precision of products are those of the call. It nests, and can be captured in a CUDA graph together with its backward pass.
///
///     x = checkpoint([&](const Tensor& in) { return block.forward(in); }, x);
///
/// f may read other tensors, parameters among them, which must live and stay as they are until backward, as f itself must: inputs are kept
/// alive. What it computes may depend on nothing else that changes. Under retain_graph what was computed again is kept as long as the
/// graph. Throws Error in backward if an input was edited in place since, or if f saves other tensors than before.
Tensors checkpoint(std::function<Tensors(const Tensors&)> f, const Tensors& inputs, CheckpointPolicy policy = CheckpointPolicy::full);
/// The same of a function from one tensor to one.
Tensor checkpoint(std::function<Tensor(const Tensor&)> f, const Tensor& input, CheckpointPolicy policy = CheckpointPolicy::full);

}  // namespace tern
