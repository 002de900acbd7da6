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
/// A running call of jvp; each tangent belongs to one call.
struct ForwardLevel final : RefCounted {
  /// A level within `outer_`, which may be null.
  explicit ForwardLevel(ForwardLevel* outer_) : outer(outer_) {}
  Ref<ForwardLevel> outer;  ///< the enclosing jvp, whose tangents flow through this one's
};

/// Tangents of a tensor, that of the innermost level first: Note [Tangents] in forward.cpp.
struct TangentLink final : RefCounted {
  Ref<ForwardLevel> level;    ///< owned, so that no other level gets its address during the tangent's lifetime
  Tensor value;               ///< the tangent
  std::uint32_t version = 0;  ///< version of the tensor that carries it
  Ref<TangentLink> next;      ///< tangent of the next level
};

namespace detail {
/// Tangents that x carries, or null.
const TangentLink* tangents_of(const Tensor& x);
/// True if jvp would follow results computed from x.
bool carries_tangent(const Tensor& x);
/// x.detach() with x's tangents.
Tensor without_history(const Tensor& x);
}  // namespace detail

/// Autograd state of a tensor, created if there is none.
AutogradState& ensure_autograd_state(const Tensor& x);
/// Gradient sink of a leaf, created if there is none, which is an edit of the leaf.
GradientSink& gradient_sink(const Tensor& leaf);

}  // namespace tern
