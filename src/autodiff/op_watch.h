#pragma once
#include <span>

#include "tensor/tensor.h"

namespace tern {

struct Node;

/// What a thread's ops tell while it is in force, as context().op_watch: a memory history (profile/memory_history.h) learns so which op
/// asked for a block, and what the block is. No result depends on it. Off, it costs an op a load and a branch.
class OpWatch {
 public:
  virtual ~OpWatch() = default;
  /// An op is done. `saved`: what it needs for backward, which hooks may keep in another form; empty where it is not recorded.
  virtual void on_op(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> saved) noexcept = 0;
  /// The backward function of a node begins. Passes nest.
  virtual void begin_backward(const Node& node) noexcept = 0;
  virtual void end_backward() noexcept = 0;
  /// A pass has a leaf's gradient ready.
  virtual void on_gradient(const Tensor& leaf) noexcept = 0;
};

namespace detail {
/// Tells the watch of an op whose results are `outputs`.
void tell_watch(const char* op, std::span<const Tensor> outputs, std::span<const Tensor> saved, bool is_recorded);
}  // namespace detail

}  // namespace tern
