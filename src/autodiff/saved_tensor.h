#pragma once
#include <functional>
#include <memory>

#include "tensor/tensor.h"

namespace tern {

struct Node;

/// The form in which hooks keep a tensor that an op saves for backward.
struct PackedTensor : RefCounted {
  /// The tensor, with or without a history. `op` is the one whose backward asks, for messages.
  virtual Tensor unpack(const char* op) = 0;
};

/// While they are in force, as context().saved_tensor_hooks, they take each tensor that an op of this thread saves for backward, and say
/// what stands for it until then: activation checkpointing (ops/checkpoint.h) keeps nothing, and computes the tensor again. The idea is
/// that of torch.autograd.graph.saved_tensors_hooks. Leaves that require gradients, a model's parameters, are saved as they are.
class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  /// Takes a tensor over, detached; backward calls unpack() of the result.
  virtual Ref<PackedTensor> pack(const Tensor& x) = 0;
  /// Results of a product or of attention, which cost far more to compute than to keep: a hook may keep them. `compute` gives them, without
  /// a history yet.
  virtual Tensors costly(const std::function<Tensors()>& compute) { return compute(); }
};

/// A tensor kept for backward. An output of the op itself is kept without its history, which would be a cycle.
class Saved {
 public:
  /// Output number `output` of the op that `owner` records.
  Saved(const Tensor& x, const Node& owner, std::uint32_t output);
  /// An input of an op, or a tensor that it made on its way; it may be undefined.
  explicit Saved(const Tensor& x);
  Saved(Saved&&) noexcept;  ///< leaves one that holds nothing
  ~Saved();
  /// The saved tensor, with its history. Throws Error if it was edited in place since.
  Tensor unpack(Node& owner) const;
  /// Likewise, of a tensor that is no output of the node's op; `op` is for messages.
  Tensor unpack(const char* op) const;
  /// Bytes of the tensor's elements; 0 where hooks keep something in its place.
  std::size_t bytes() const;
  /// The tensor as it is kept; undefined where hooks keep something in its place.
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
