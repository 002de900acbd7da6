#pragma once
#include <functional>
#include <memory>

#include "tensor/tensor.h"

namespace tern {

struct Node;

/// Form in which hooks keep a tensor that an op saves for backward.
struct PackedTensor : RefCounted {
  /// Returns the tensor, with or without history. `op` is the one whose backward needs it, for messages.
  virtual Tensor unpack(const char* op) = 0;
};

/// Saved-tensor hooks. While set as context().saved_tensor_hooks, they pack each tensor that an op of this thread saves for backward:
/// activation checkpointing (ops/checkpoint.h) keeps nothing, and recomputes the tensor. After torch.autograd.graph.saved_tensors_hooks.
/// Leaves that require gradients, such as a model's parameters, are saved as they are.
class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  /// Packs a tensor, detached; backward calls unpack() of the result.
  virtual Ref<PackedTensor> pack(const Tensor& x) = 0;
  /// Returns the results of a matrix product or of attention, which `compute` gives without history: they cost far more to compute than to
  /// keep, so a hook may keep them.
  virtual Tensors costly(const std::function<Tensors()>& compute) { return compute(); }
};

/// Tensor saved for backward. An output of the op itself is kept without its history, which would be a reference cycle.
class Saved {
 public:
  /// Saves output number `output` of the op that `owner` records.
  Saved(const Tensor& x, const Node& owner, std::uint32_t output);
  /// Saves an input or an intermediate result of an op; it may be undefined.
  explicit Saved(const Tensor& x);
  Saved(Saved&&) noexcept;  ///< leaves the source empty
  ~Saved();
  /// Returns the saved tensor with its history. Throws Error if it was edited in place since.
  Tensor unpack(Node& owner) const;
  /// The same for a tensor that is not an output of the node's op; `op` is for messages.
  Tensor unpack(const char* op) const;
  /// Bytes of the tensor's elements; 0 if hooks have packed it.
  std::size_t bytes() const;
  /// The tensor as it is kept; undefined if hooks have packed it.
  const Tensor& kept() const { return tensor_; }

 private:
  struct Packed;
  bool pack(const Tensor& x);
  Tensor content(const char* op) const;

  Tensor tensor_;
  std::uint32_t version_ = 0;
  std::int32_t output_ = -1;
  std::unique_ptr<const Packed> packed_;
};

}  // namespace tern
