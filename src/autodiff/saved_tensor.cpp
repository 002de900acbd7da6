#include "autodiff/saved_tensor.h"

#include <fmt/format.h>

#include "autodiff/autograd_state.h"
#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"

namespace tern {

/// Saved tensor as hooks packed it, and the edge along which its gradient flows.
struct Saved::Packed {
  Ref<PackedTensor> tensor;
  Edge history;
};

Saved::Saved(Saved&&) noexcept = default;
Saved::~Saved() = default;

Saved::Saved(const Tensor& x) {
  if (!x.defined() || pack(x)) return;
  tensor_ = x;
  version_ = x.version();
}

Saved::Saved(const Tensor& x, const Node&, std::uint32_t output) : output_(static_cast<std::int32_t>(output)) {
  if (pack(x)) return;
  tensor_ = detail::without_history(x);
  version_ = x.version();
}

bool Saved::pack(const Tensor& x) {
  if (!context().saved_tensor_hooks) return false;
  const AutogradState* state = autograd_state(x);
  const bool is_leaf = !state || !state->node;
  if (is_leaf && x.requires_grad()) return false;
  Edge history;  // for an output of the owner this is the owner, set by unpack
  if (!is_leaf && state->requires_grad && output_ < 0) history = {state->node, state->output};
  packed_ = std::make_unique<const Packed>(Packed{context().saved_tensor_hooks->pack(detail::without_history(x)), std::move(history)});
  return true;
}

Tensor Saved::content(const char* op) const {
  if (packed_) {
    const Tensor x = detail::without_history(packed_->tensor->unpack(op));
    if (packed_->history.node) set_history(x, packed_->history);
    return x;
  }
  if (tensor_.defined() && tensor_.version() != version_)
    fail(op, fmt::format("expected the tensor {} saved for backward to be unchanged, but it was edited in place "
                         "(version {}, saved at {}): use the op that returns a new tensor",
                         to_string(tensor_.shape()), tensor_.version(), version_));
  if (tensor_.defined() && !tensor_.impl().storage->is_here()) [[unlikely]]
    if (const FlatStorage* const flat = flat_storage(tensor_); flat && flat->gather) flat->gather();
  return tensor_;
}

Tensor Saved::unpack(const char* op) const { return content(op); }

Tensor Saved::unpack(Node& owner) const {
  Tensor x = content(owner.op);
  if (output_ < 0) return x;
  x = detail::without_history(x);
  set_history(x, {Ref<Node>(&owner), static_cast<std::uint32_t>(output_)});
  return x;
}

std::size_t Saved::bytes() const { return tensor_.defined() ? static_cast<std::size_t>(tensor_.numel()) * size_of(tensor_.dtype()) : 0; }

}  // namespace tern
