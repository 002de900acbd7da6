#include "ops/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "autodiff/node.h"
#include "backend/parse.h"
#include "ops/autocast.h"

namespace tern {

// Note [Activation checkpointing]
// The function runs once, and its ops are recorded as usual, so backward walks one graph, with or without checkpoints. But each tensor that
// an op saves becomes a slot of the call, which keeps only its shape. When backward first needs a slot, the function runs again on its
// inputs under the random position, autocast and precision of the first run. This second run records a graph that is never walked: its
// saved tensors fill the slots in the same order. An exception stops the run after the last slot that is needed. A slot's tensor is
// released with the node that owns it, so second runs fill memory for one call at a time. Nested calls: an inner call saves its inputs in
// slots of the outer one. A second run of the outer function runs the inner one too, for its results. Costly results
// (SavedTensorHooks::costly) are numbered as well. `selective` keeps all of them. `full` keeps the last one if it is a result of the call,
// which is alive anyway: a block that ends with a product does not compute it twice.

namespace {

/// Exception that ends a second run when all slots are filled.
struct AllFilled {};

class CheckpointedCall final : public RefCounted {
 public:
  CheckpointedCall(std::function<Tensors(const Tensors&)> f, const Tensors& inputs, CheckpointPolicy policy)
      : f_(std::move(f)), policy_(policy) {
    inputs_.reserve(inputs.size());
    for (const Tensor& x : inputs) inputs_.emplace_back(x);
    if (const Autocast* autocast = context().autocast) autocast_ = autocast->dtype();
  }

  Tensors run_first(const Tensors& inputs);
  /// Returns a slot's tensor, for the backward of an op.
  Tensor fill(std::size_t slot, const char* op);
  /// Releases a slot that no op will read again.
  void drop(std::size_t slot) { slots_[slot].is_wanted = false, slots_[slot].tensor = {}; }

 private:
  class FirstRun;
  class SecondRun;
  struct Slot {
    Shape shape;
    DType dtype;
    bool is_wanted = true;
    Tensor tensor = {};  ///< tensor saved by the second run
    std::uint32_t version = 0;
  };
  /// A tensor that is kept, and its version.
  struct Kept {
    Tensor tensor;
    std::uint32_t version = 0;
  };
  struct PackedSlot;

  void run_again(const char* op);
  void keep_what_lives(const Tensors& outputs);

  std::function<Tensors(const Tensors&)> f_;
  CheckpointPolicy policy_;
  std::vector<Saved> inputs_;
  std::vector<Slot> slots_;
  std::vector<std::vector<Kept>> costly_;  ///< results in order; empty if not kept
  Generator generator_ = context().generator;
  Context::Kernels kernels_ = context().kernels;
  std::optional<DType> autocast_;
};

struct CheckpointedCall::PackedSlot final : PackedTensor {
  PackedSlot(Ref<CheckpointedCall> call_, std::size_t slot_) : call(std::move(call_)), slot(slot_) {}
  ~PackedSlot() override { call->drop(slot); }
  Tensor unpack(const char* op) override { return call->fill(slot, op); }

  Ref<CheckpointedCall> call;
  std::size_t slot;
};

class CheckpointedCall::FirstRun final : public SavedTensorHooks {
 public:
  explicit FirstRun(CheckpointedCall& call) : call_(call) {}

  Ref<PackedTensor> pack(const Tensor& x) override {
    call_.slots_.push_back({x.shape(), x.dtype()});
    return make_ref<PackedSlot>(Ref<CheckpointedCall>(&call_), call_.slots_.size() - 1);
  }

  Tensors costly(const std::function<Tensors()>& compute) override {
    const Tensors results = compute();
    if (call_.policy_ == CheckpointPolicy::full && !call_.costly_.empty()) call_.costly_.back().clear();
    std::vector<Kept>& kept = call_.costly_.emplace_back();
    for (const Tensor& x : results) kept.push_back({x.detach(), x.version()});
    return results;
  }

 private:
  CheckpointedCall& call_;
  ScopedValue<SavedTensorHooks*> scope_{context().saved_tensor_hooks, this};
};

class CheckpointedCall::SecondRun final : public SavedTensorHooks {
 public:
  explicit SecondRun(CheckpointedCall& call) : call_(call) {
    for (std::size_t i = 0; i < call.slots_.size(); ++i)
      if (call.slots_[i].is_wanted) end_ = i + 1;
  }

  Ref<PackedTensor> pack(const Tensor& x) override {
    Slot& slot = call_.slots_[next_];
    if (x.shape() != slot.shape || x.dtype() != slot.dtype)
      fail("checkpoint", fmt::format("expected the function to save the same tensors again, but tensor {} was {} {} and is {} {} now: what "
                                     "it computes must depend on its inputs alone",
                                     next_, name(slot.dtype), to_string(slot.shape), name(x.dtype()), to_string(x.shape())));
    auto packed = make_ref<Filled>(x);
    if (slot.is_wanted) slot.tensor = x, slot.version = x.version();
    if (++next_ == end_) throw AllFilled{};
    return packed;
  }

  Tensors costly(const std::function<Tensors()>& compute) override {
    const std::size_t number = next_costly_++;
    if (number >= call_.costly_.size()) return compute();
    const std::vector<Kept>& kept = call_.costly_[number];
    const auto is_intact = [](const Kept& x) { return x.tensor.version() == x.version; };
    if (kept.empty() || !std::all_of(kept.begin(), kept.end(), is_intact)) return compute();
    Tensors results;
    for (const Kept& x : kept) results.push_back(x.tensor.detach());
    return results;
  }

  std::size_t filled() const { return next_; }
  std::size_t end() const { return end_; }

 private:
  /// Packed tensor for a backward pass within the function.
  struct Filled final : PackedTensor {
    explicit Filled(const Tensor& x) : tensor(x) {}
    Tensor unpack(const char*) override { return tensor; }
    Tensor tensor;
  };

  CheckpointedCall& call_;
  std::size_t next_ = 0, end_ = 0, next_costly_ = 0;
  ScopedValue<SavedTensorHooks*> scope_{context().saved_tensor_hooks, this};
};

Tensors CheckpointedCall::run_first(const Tensors& inputs) {
  Tensors outputs;
  {
    const FirstRun hooks(*this);
    outputs = f_(inputs);
  }
  if (policy_ == CheckpointPolicy::full) keep_what_lives(outputs);
  return outputs;
}

void CheckpointedCall::keep_what_lives(const Tensors& outputs) {
  if (costly_.empty()) return;
  const auto lives = [&](const Kept& kept) {
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](const Tensor& y) { return y.defined() && y.impl().storage == kept.tensor.impl().storage; });
  };
  std::vector<Kept>& last = costly_.back();
  if (!std::all_of(last.begin(), last.end(), lives)) last.clear();
}

void CheckpointedCall::run_again(const char* op) {
  const backend::PassScope observed("recompute");
  Tensors inputs;
  for (const Saved& x : inputs_) inputs.push_back(x.unpack(op));
  const GradMode recorded(true);
  const ScopedValue<Generator> draws(context().generator, generator_);
  const ScopedValue<Context::Kernels> kernels(context().kernels, kernels_);
  const NoAutocast unless_the_call_had_it;
  std::optional<Autocast> autocast;
  if (autocast_) autocast.emplace(*autocast_);
  SecondRun hooks(*this);
  try {
    f_(inputs);
  } catch (const AllFilled&) {
    for (std::vector<Kept>& results : costly_) results.clear();  // the slots hold what is still needed
    return;
  }
  fail("checkpoint", fmt::format("expected the function to save {} tensors again, but it saved {}: what it computes must depend on its "
                                 "inputs alone",
                                 hooks.end(), hooks.filled()));
}

Tensor CheckpointedCall::fill(std::size_t slot, const char* op) {
  if (!slots_[slot].tensor.defined()) run_again(op);
  const Slot& filled = slots_[slot];
  if (filled.tensor.version() != filled.version)
    fail(op, fmt::format("expected the tensor {} saved for backward to be unchanged, but the checkpointed function edited it in place: use "
                         "the op that returns a new tensor",
                         to_string(filled.shape)));
  return filled.tensor;
}

}  // namespace

const char* name(CheckpointPolicy policy) {
  switch (policy) {
    case CheckpointPolicy::none: return "none";
    case CheckpointPolicy::selective: return "selective";
    case CheckpointPolicy::full: break;
  }
  return "full";
}

std::optional<CheckpointPolicy> checkpoint_policy_of(std::string_view name) {
  return backend::enum_of<CheckpointPolicy>(name, std::size_t(CheckpointPolicy::full) + 1);
}

Tensors checkpoint(std::function<Tensors(const Tensors&)> f, const Tensors& inputs, CheckpointPolicy policy) {
  if (!context().grad || context().tangents.only || policy == CheckpointPolicy::none) return f(inputs);
  return make_ref<CheckpointedCall>(std::move(f), inputs, policy)->run_first(inputs);
}

Tensor checkpoint(std::function<Tensor(const Tensor&)> f, const Tensor& input, CheckpointPolicy policy) {
  return checkpoint([f = std::move(f)](const Tensors& in) -> Tensors { return {f(in[0])}; }, Tensors{input}, policy)[0];
}

}  // namespace tern
