#pragma once
#include <memory>
#include <mutex>

#include "autodiff/gradient_sink.h"
#include "autodiff/node.h"
#include "tensor/tensor.h"

namespace tern {

/// Autograd state of a tensor. For a leaf that requires a gradient, several threads may use it at once: Note [Threads and leaves].
struct AutogradState final : RefCounted {
  bool requires_grad = false;          ///< result of Tensor::requires_grad()
  std::mutex accumulator_lock;         ///< held while a leaf's `accumulator` is looked up or created
  std::uint32_t output = 0;            ///< index among the op's outputs
  std::unique_ptr<GradientSink> sink;  ///< of a leaf that requires a gradient or has one, else null
  Ref<Node> node;                      ///< op that computed the tensor; null for a leaf
  Node* accumulator = nullptr;         ///< a leaf's node in the current graphs, which own it
  Ref<RefCounted> tangents;            ///< one for each running jvp: see Note [Tangents]
};

/// Autograd state of a tensor; null until it requires a gradient, gets one or is an op's output.
inline AutogradState* autograd_state(const Tensor& x) { return static_cast<AutogradState*>(x.impl().autograd.get()); }
/// Autograd state of a tensor, created if there is none.
AutogradState& ensure_autograd_state(const Tensor& x);
/// Gradient sink of a leaf, created if there is none, which is an edit of the leaf.
GradientSink& gradient_sink(const Tensor& leaf);

}  // namespace tern
