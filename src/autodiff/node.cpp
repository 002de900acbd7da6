#include "autodiff/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "autodiff/anomaly.h"
#include "autodiff/autograd_state.h"
#include "autodiff/parameter_buffer.h"

namespace tern {

AutogradState& ensure_autograd_state(const Tensor& x) {
  Ref<RefCounted>& slot = x.impl().autograd;
  if (!slot) slot = make_ref<AutogradState>();
  return static_cast<AutogradState&>(*slot);
}

const TangentLink* detail::tangents_of(const Tensor& x) {
  const AutogradState* const state = x.defined() ? autograd_state(x) : nullptr;
  return state ? static_cast<const TangentLink*>(state->tangents.get()) : nullptr;
}

bool detail::carries_tangent(const Tensor& x) {
  for (const TangentLink* t = tangents_of(x); t; t = t->next.get())
    for (const ForwardLevel* level = context().tangents.level; level; level = level->outer.get())
      if (t->level.get() == level) return true;
  return false;
}

Tensor detail::without_history(const Tensor& x) {
  if (!x.defined()) return x;
  Tensor result = x.detach();
  if (const AutogradState* const state = autograd_state(x); state && state->tangents)
    ensure_autograd_state(result).tangents = state->tangents;
  return result;
}

GradientSink& gradient_sink(const Tensor& leaf) {
  Ref<GradientSink>& sink = ensure_autograd_state(leaf).sink;
  if (!sink) sink = make_ref<GradientSink>();
  return *sink;
}

// Note [Threads and leaves]
// Threads may run a model's forward and backward at the same time, each on its own graph; they share the leaves. A leaf's accumulator,
// which the graphs own together, may be destroyed in one thread while another looks it up, so both take a lock, and the look-up only takes
// a reference to one that is not about to be destroyed. A leaf takes gradients from one thread at a time: Note [Gradient sink]. Not allowed
// from several threads at once: a backward through one graph, and edits of a leaf (an optimizer's step, set_requires_grad, a hook) while it
// is in use.

/// Node at which a leaf's gradients arrive. The leaf's state does not own it: it lives as long as a graph needs it.
struct AccumulateGrad final : Node {
  explicit AccumulateGrad(const Tensor& x) : Node("accumulate"), of(x) {}
  ~AccumulateGrad() override {
    AutogradState& state = *autograd_state(of);
    const std::lock_guard lock(state.accumulator_lock);
    if (state.accumulator == this) state.accumulator = nullptr;
  }
  Tensors backward(const Backward&) override { return {}; }
  const Tensor* leaf() const override { return &of; }
  Tensor of;
};

std::uint64_t Node::next_sequence(std::uint64_t after) noexcept {
  thread_local std::uint64_t recorded = 0;
  return recorded = std::max(recorded, after) + 1;
}

Node::Node(const char* name) : op(name), sequence(next_sequence()) {}

void Node::release_saved() {
  saved.clear();
  released = true;
}

// Note [Iterative release]
// A node owns the nodes of its inputs, directly and through saved tensors, so a plain destructor would recurse as deep as the graph is long
// and overflow the stack on a chain of a million ops. Instead the outermost release works through a list to which the inner ones append.
void Node::destroy() noexcept {
  thread_local std::vector<Node*> pending;
  thread_local bool running = false;
  pending.push_back(this);
  if (running) return;
  running = true;
  while (!pending.empty()) {
    Node* node = pending.back();
    pending.pop_back();
    delete node;
  }
  running = false;
}

void set_history(const Tensor& x, const Edge& edge) {
  AutogradState& state = ensure_autograd_state(x);
  state.requires_grad = true;
  state.node = edge.node;
  state.output = edge.output;
}

Edge edge_of(const Tensor& x) {
  if (!x.defined()) return {};
  AutogradState* state = autograd_state(x);
  if (!state || !state->requires_grad) return {};
  if (state->node) return {state->node, state->output};
  const std::lock_guard lock(state->accumulator_lock);
  Node*& accumulator = state->accumulator;
  if (accumulator && accumulator->try_retain()) return {Ref<Node>::adopt(accumulator), 0};
  const auto made = make_ref<AccumulateGrad>(x);
  accumulator = made.get();
  return {made, 0};
}

bool detail::needs_graph(const TensorList& inputs) {
  if (!context().grad || context().tangents.only) return false;
  for (const Tensor& x : inputs)
    if (x.defined() && x.requires_grad()) return true;
  return false;
}

bool needs_record(const TensorList& inputs) {
  if (detail::needs_graph(inputs)) return true;
  return context().tangents.level && context().grad && std::any_of(inputs.begin(), inputs.end(), detail::carries_tangent);
}

void detail::attach(Ref<Node> node, std::span<const Tensor> outputs, const TensorList& inputs, const TensorList& saved) {
  node->next.reserve(inputs.size());
  std::uint64_t latest = 0;
  for (const Tensor& x : inputs) {
    node->next.push_back(edge_of(x));
    if (const Node* input = node->next.back().node.get()) latest = std::max(latest, input->sequence);
  }
  // Edges to leaves seen for the first time have just created accumulators; the op's number must be higher.
  node->sequence = Node::next_sequence(latest);
  node->outputs = static_cast<std::uint32_t>(outputs.size());
  if (context().diagnosis.anomaly || context().diagnosis.names) node->module = running_module();
  if (backend::observer)
    backend::tell([&](backend::Observer& told) {
      if (const std::uint32_t number = told.module()) node->observed_module = number;
    });
  node->saved.reserve(saved.size());
  for (const Tensor& x : saved) {
    std::int32_t output = -1;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (x.is_same(outputs[i])) output = static_cast<std::int32_t>(i);
    node->saved.emplace_back(x, output);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    set_history(outputs[i], {node, static_cast<std::uint32_t>(i)});
  }
}

double detail::observed_bytes(std::span<const Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& x : tensors)
    if (x.defined())
      bytes += std::min(static_cast<double>(x.numel()) * static_cast<double>(size_of(x.dtype())),
                        static_cast<double>(x.impl().storage->bytes()));
  return bytes;
}

double OpCall::bytes() const { return detail::observed_bytes(outputs) + detail::observed_bytes(inputs); }

void detail::end_call(const Op& op, std::span<const Tensor> outputs, const TensorList& inputs) {
  if (!backend::observer) return;
  const OpCall call{op, outputs, inputs, {}, false, nullptr, nullptr};
  backend::tell([&](backend::Observer& told) { told.end_op(call); });
}

void Backward::fail_index(const char* what, std::size_t index, std::size_t count) const {
  fail(node_.op, fmt::format("expected backward to ask for one of {} {}s, counted from 0, but got {}", count, what, index));
}

GradientTarget Backward::sink(std::size_t input) const {
  const Ref<Node>& node = edge(input).node;
  const Tensor* const leaf = leaves_ && node ? node->leaf() : nullptr;
  return leaf ? leaves_->open(node) : GradientTarget{};
}

GradientTarget Backward::sink(std::size_t input, const Shape& shape, const Tensor& like) const {
  if (!needs(input)) return {};
  const GradientTarget own = sink(input);
  return own ? own : GradientTarget{empty(shape, like.dtype(), like.device()), Write::overwrite, nullptr, true};
}

void begin_in_place(const char* op, const Tensor& target, TensorList sources) {
  if (backend::observer) backend::tell([&](backend::Observer& told) { told.begin_in_place(op); });
  if (needs_record({target}) || needs_record(sources))
    fail(op, fmt::format("expected an in-place edit of {} outside autograd: wrap it in NoGrad, or use the op that "
                         "returns a new tensor",
                         to_string(target.shape())));
  if (target.impl().storage->is_read_only())
    fail(op, fmt::format("expected a target that may be written but the memory of {} is read-only: write to a clone",
                         to_string(target.shape())));
  if (overlap(target) != Overlap::none)
    fail(op, fmt::format("expected a target of which no two elements share memory but got shape {} with strides {}: write to a clone",
                         to_string(target.shape()), to_string(target.strides())));
  for (const Tensor& source : sources)
    if (const Overlap shared = overlap(target, source); shared == Overlap::partial || shared == Overlap::undecided)
      fail(op, fmt::format("expected a source that shares no memory with the target, unless it is the same window, but got {} at {} and "
                           "{} at {}{}: clone() the source",
                           to_string(source.shape()), source.offset(), to_string(target.shape()), target.offset(),
                           shared == Overlap::undecided ? ", which interlock so that this could not be decided" : ""));
  target.impl().storage->bump_version();
}

void on_gradient_ready(const Tensor& leaf, std::function<void(const Tensor&)> hook) {
  if (!leaf.is_leaf() || !leaf.requires_grad()) fail("on_gradient_ready", "expected a leaf that requires a gradient");
  if (!hook) fail("on_gradient_ready", "expected a function but got none");
  gradient_sink(leaf).on_ready(std::move(hook));
}

bool Tensor::requires_grad() const {
  const AutogradState* state = autograd_state(*this);
  return state && state->requires_grad;
}

Tensor& Tensor::set_requires_grad(bool requires_grad) {
  if (!is_leaf()) fail("set_requires_grad", "expected a leaf: detach() gives one");
  if (requires_grad && !is_floating(dtype())) fail("set_requires_grad", fmt::format("expected a floating dtype but got {}", name(dtype())));
  if (const AutogradState* state = autograd_state(*this); state && state->requires_grad != requires_grad) count_mode_change();
  ensure_autograd_state(*this).requires_grad = requires_grad;  // also for a frozen tensor, which then has an autograd state
  if (requires_grad) gradient_sink(*this);                     // now, because several threads may look for it later
  return *this;
}

bool Tensor::is_leaf() const {
  const AutogradState* state = autograd_state(*this);
  return !state || !state->node;
}

Tensor Tensor::grad() const {
  const AutogradState* state = autograd_state(*this);
  return state && state->sink ? state->sink->get() : Tensor();
}

void Tensor::set_grad(const Tensor& gradient) {
  if (gradient.defined() && (gradient.shape() != shape() || gradient.dtype() != dtype() || gradient.device() != device()))
    fail("set_grad", fmt::format("expected a gradient of shape {}, {} on {} but got {}, {} on {}", to_string(shape()), name(dtype()),
                                 to_string(device()), to_string(gradient.shape()), name(gradient.dtype()), to_string(gradient.device())));
  gradient_sink(*this).set(gradient);
}

Tensor Tensor::detach() const { return window(shape(), strides(), offset()); }

Saved::Saved(const Tensor& x, std::int32_t output) : output_(output) {
  if (!x.defined() || pack(x)) return;
  tensor_ = output < 0 ? x : detail::without_history(x);
  version_ = x.version();
}

bool Saved::pack(const Tensor& x) {
  if (!context().saved_tensor_hooks) return false;
  const AutogradState* state = autograd_state(x);
  const bool is_leaf = !state || !state->node;
  if (is_leaf && x.requires_grad()) return false;
  // For an output of the owner this is the owner, set by unpack.
  if (!is_leaf && state->requires_grad && output_ < 0) history_ = {state->node, state->output};
  packed_ = context().saved_tensor_hooks->pack(detail::without_history(x));
  return true;
}

Tensor Saved::unpack(const char* op) const {
  if (packed_) {
    const Tensor x = detail::without_history(packed_->unpack(op));
    if (history_.node) set_history(x, history_);
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

Tensor Saved::unpack(Node& owner) const {
  Tensor x = unpack(owner.op);
  if (output_ < 0) return x;
  x = detail::without_history(x);
  set_history(x, {Ref<Node>(&owner), static_cast<std::uint32_t>(output_)});
  return x;
}

std::size_t Saved::bytes() const { return tensor_.defined() ? static_cast<std::size_t>(tensor_.numel()) * size_of(tensor_.dtype()) : 0; }

}  // namespace tern
