#pragma once
#include <atomic>
#include <mutex>

#include "autodiff/gradient_sink.h"
#include "autodiff/node.h"
#include "tensor/tensor.h"

namespace tern {

/// Autograd's part of a tensor. Of a leaf that asks for a gradient, several threads may use it at once: Note [Threads and leaves].
struct AutogradState final : RefCounted {
  ~AutogradState() override { delete sink.load(std::memory_order_acquire); }

  bool requires_grad = false;                ///< as Tensor::requires_grad() says
  std::mutex accumulator_lock;               ///< held while a leaf's `accumulator` is looked up or made
  std::uint32_t output = 0;                  ///< which of the op's outputs it is
  std::atomic<GradientSink*> sink{nullptr};  ///< owned, of a leaf; null before it has a gradient or a hook
  Ref<Node> node;                            ///< the op that made the tensor; null for a leaf
  Node* accumulator = nullptr;               ///< a leaf's node in the graphs that use it now; they own it
  Ref<RefCounted> tangents;                  ///< one for each jvp that runs: see Note [Tangents]
};

/// Autograd's state of a tensor; null before it requires a gradient, gets one or is an op's output.
inline AutogradState* autograd_state(const Tensor& x) { return static_cast<AutogradState*>(x.impl().autograd.get()); }
/// Autograd's state of a tensor, created if there is none.
AutogradState& ensure_autograd_state(const Tensor& x);
/// The leaf's gradient sink, created if there is none.
GradientSink& gradient_sink(const Tensor& leaf);

}  // namespace tern
