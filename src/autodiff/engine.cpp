#include "autodiff/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "autodiff/anomaly.h"
#include "autodiff/autograd_state.h"
#include "autodiff/node.h"
#include "backend/error.h"
#include "ops/kernels/copy.h"

namespace tern {

namespace {

/// Reports a node's backward function to observers.
class ObservedBackward : backend::ObservedScope {
 public:
  explicit ObservedBackward(const Node& node) {
    backend::tell([&](backend::Observer& told) { told.begin_backward(node); });
  }
  ~ObservedBackward() {
    tell_end([this](backend::Observer& told) { told.end_backward(bytes); });
  }
  double bytes = 0;
};

/// Gradients of a node's inputs. In anomaly mode they are checked here, not in the ops that backward is written in, so an error names the
/// op of the forward pass and its module.
Tensors gradients_of(Node& node, const Backward& call) {
  if (!context().diagnosis.anomaly) return node.backward(call);
  const ScopedValue<bool> unsearched(context().diagnosis.anomaly, false);
  Tensors results = node.backward(call);
  check_gradients(node, results);
  return results;
}

/// gradients_of, reported to observers.
Tensors observed_gradients_of(Node& node, const Backward& call) {
  if (!backend::observer) [[likely]]
    return gradients_of(node, call);
  ObservedBackward observed(node);
  observed.bytes = detail::observed_bytes(call.grads());
  Tensors results = gradients_of(node, call);
  observed.bytes += detail::observed_bytes(results);
  for (const Saved& x : node.saved) observed.bytes += x.bytes();
  return results;
}

class Pass {
 public:
  /// `wanted`: edges whose gradients run() returns.
  Pass(std::vector<Edge> wanted, bool retain_graph) : wanted_(std::move(wanted)), retain_graph_(retain_graph) {}
  ~Pass() {
    if (leaves_) leaves_->end(claimed_before_);
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  void feed(const Edge& edge, const Tensor& gradient) {
    Arrived& slot = visit(edge.node)[edge.output];
    if (!slot.sum.defined()) slot.sum = gradient;
    else if (slot.count < kernels::max_rounded_sums || context().grad || !detail::needs_exact_sum(gradient.dtype()))
      slot.sum = detail::sum_of_gradients(slot.sum, gradient);
    else detail::add_gradient_exactly(gradient, slot.sum, slot.exact);
    ++slot.count;
  }

  /// Makes the pass add to the gradients of leaves, most of them on the device.
  void add_to_leaves(Device device) {
    LeafWriter& writer = LeafWriter::of_thread();
    claimed_before_ = writer.begin(device);
    leaves_ = &writer;
  }

  /// Makes the pass stop at the nodes whose gradients are required.
  void end_at_wanted() { ends_at_wanted_ = true; }

  /// Runs the pass over nodes in descending sequence order: when a node is reached, all nodes that use its outputs have been, because a
  /// node can only use outputs of nodes recorded before it.
  Tensors run() {
    Tensors results(wanted_.size());
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), earlier);
      const Ref<Node> node = std::move(queue_.back());
      queue_.pop_back();
      Tensors gradients;
      std::vector<Arrived> arrived = std::move(buffers_.extract(node.get()).mapped());
      for (Arrived& slot : arrived) gradients.push_back(std::move(slot.sum));
      bool is_wanted = false;
      for (std::size_t i = 0; i < wanted_.size(); ++i)
        if (wanted_[i].node == node) results[i] = gradients[wanted_[i].output], is_wanted = true;
      if (!is_wanted || !ends_at_wanted_) step(node, gradients);
    }
    if (!deferred_.empty()) leaves_->finish();
    for (const Ref<Node>& node : deferred_) announce(leaves_->claim(node), *node->leaf());
    if (!unread_.empty()) warn_of_unread();
    return results;
  }

 private:
  static bool earlier(const Ref<Node>& a, const Ref<Node>& b) { return a->sequence < b->sequence; }

  /// Sum of the gradients that have arrived at an output. Note [Sums in 16 bits]: from some number on in f32.
  struct Arrived {
    Tensor sum, exact;
    int count = 0;
  };
  /// Gradients that have arrived at the outputs of a node; adds the node to the queue.
  std::vector<Arrived>& visit(const Ref<Node>& node) {
    auto [place, is_new] = buffers_.try_emplace(node.get());
    if (is_new) {
      place->second.resize(node->outputs);
      queue_.push_back(node);
      std::push_heap(queue_.begin(), queue_.end(), earlier);
    }
    return place->second;
  }

  void step(const Ref<Node>& node, const Tensors& gradients) {
    if (const Tensor* leaf = node->leaf()) {
      if (leaves_) finish_leaf(node, *leaf, gradients[0]);
      return;
    }
    if (node->released)
      fail("backward", fmt::format("expected a graph that is still alive, but '{}' was freed by an earlier backward, "
                                   "which may have thrown: pass retain_graph to that one, or run forward again",
                                   node->op));
    LeafWriter* const writer = context().grad || context().diagnosis.anomaly ? nullptr : leaves_;
    const Tensors results = observed_gradients_of(*node, Backward(*node, gradients, writer));
    if (results.size() != node->next.size())
      fail(node->op, fmt::format("expected backward to return {} gradients but got {}", node->next.size(), results.size()));
    if (writer)
      for (const Ref<Node>& leaf : writer->close()) visit(leaf);
    if (!retain_graph_) node->release_saved();
    for (std::size_t i = 0; i < node->next.size(); ++i)
      if (node->next[i].node && results[i].defined()) feed(node->next[i], results[i]);
  }

  /// Finishes a leaf: all its gradients of this pass are in its sink, or are `gradient`.
  void finish_leaf(const Ref<Node>& node, const Tensor& leaf, const Tensor& gradient) {
    if (gradient.defined() && (gradient.shape() != leaf.shape() || gradient.dtype() != leaf.dtype()))
      fail("backward", fmt::format("expected a gradient of shape {}, {} for a leaf but got {}, {}", to_string(leaf.shape()),
                                   name(leaf.dtype()), to_string(gradient.shape()), name(gradient.dtype())));
    check_one_device("backward", {&leaf, &gradient});
    GradientSink& sink = leaves_->claim(node);
    if (gradient.defined()) sink.add(gradient);
    if (sink.is_deferred()) deferred_.push_back(node);
    else announce(sink, leaf);
  }

  void announce(GradientSink& sink, const Tensor& leaf) {
    if (sink.announce(leaf)) [[unlikely]]
      unread_.push_back(leaf);
  }

  void warn_of_unread() const {
    std::string shapes;
    for (std::size_t i = 0; i < std::min<std::size_t>(unread_.size(), 3); ++i) shapes += " " + to_string(unread_[i].shape());
    warn("backward",
         fmt::format("expected gradients that an optimizer or Tensor::grad() reads but nothing reads those of {} tensor{},{}{}: is "
                     "a member missing in visit, or a module in the optimizer? set_requires_grad(false) freezes what is not trained",
                     unread_.size(), unread_.size() == 1 ? "" : "s", shapes, unread_.size() > 3 ? " ..." : ""));
  }

  std::vector<Edge> wanted_;
  bool retain_graph_, ends_at_wanted_ = false;
  LeafWriter* leaves_ = nullptr;
  std::size_t claimed_before_ = 0;   ///< number of leaves that the passes around this one have claimed
  std::vector<Ref<Node>> deferred_;  ///< nodes of leaves that wait for deferred sums
  Tensors unread_;                   ///< leaves to be reported: Note [Unread gradients]
  std::unordered_map<Node*, std::vector<Arrived>> buffers_;
  std::vector<Ref<Node>> queue_;
};

/// Likely reason for a missing graph, for messages.
std::string unrecorded_by_jvp() {
  return context().tangents.only ? ": jvp records nothing, but where the function calls vjp() or opens GradMode(true)" : "";
}

Tensors run(TensorList outputs, TensorList inputs, TensorList grad_outputs, bool accumulate, bool retain_graph, bool create_graph) {
  if (grad_outputs.size() != 0 && grad_outputs.size() != outputs.size())
    fail("backward", fmt::format("expected {} gradients of outputs but got {}", outputs.size(), grad_outputs.size()));
  std::vector<Edge> wanted;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    wanted.push_back(edge_of(inputs[i]));
    if (!wanted.back().node) fail("grad", fmt::format("expected input {} to require a gradient", i) + unrecorded_by_jvp());
  }
  // Within jvp the gradients carry tangents, which leaves' sinks and flat buffers cannot hold.
  const auto any_carries = [](const TensorList& list) { return std::any_of(list.begin(), list.end(), detail::carries_tangent); };
  const bool is_followed = context().tangents.level && context().grad && (any_carries(outputs) || any_carries(grad_outputs));
  if (is_followed && accumulate)
    fail("backward", "expected a function that jvp differentiates to call grad() or vjp(): gradients of leaves carry no tangents");
  const backend::PassScope observed("backward");
  const GradMode mode(create_graph || is_followed);
  const ScopedValue<bool> unrecorded(context().tangents.only, is_followed && !create_graph);
  const NoAutocast as_forward_chose;
  Pass pass(std::move(wanted), retain_graph || create_graph);
  if (accumulate && outputs.size() > 0) pass.add_to_leaves(outputs[0].device());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& y = outputs[i];
    const Edge edge = edge_of(y);
    if (!edge.node) fail("backward", "expected a tensor that was computed from one that requires a gradient" + unrecorded_by_jvp());
    Tensor gradient = grad_outputs.size() ? grad_outputs[i] : Tensor();
    if (!gradient.defined()) {
      if (y.numel() != 1)
        fail("backward", fmt::format("expected a gradient for an output of shape {}: only one with a single element "
                                     "has the default 1",
                                     to_string(y.shape())));
      gradient = empty_like(y);
      detail::fill_gradient(gradient, 1);
    }
    if (gradient.shape() != y.shape() || gradient.dtype() != y.dtype())
      fail("backward", fmt::format("expected a gradient of shape {}, {} but got {}, {}", to_string(y.shape()), name(y.dtype()),
                                   to_string(gradient.shape()), name(gradient.dtype())));
    check_one_device("backward", {&y, &gradient});
    pass.feed(edge, gradient);
  }
  return pass.run();
}

}  // namespace

Tensors vjp(const Backward& call, const Tensors& inputs, const std::function<Tensors(const Tensors&)>& reference) {
  if (detail::ReferenceTangents* const tangents = call.reference_tangents()) {
    tangents->find(inputs, reference);
    return Tensors(inputs.size());
  }
  // The reference gets separate handles, at which the pass ends: one input may be computed from another.
  Tensors own = inputs, outputs;
  std::vector<Edge> wanted(inputs.size());
  {
    const GradMode recorded(true);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || !call.needs(i)) continue;
      own[i] = record({.name = "input", .tangent = Tangent::symmetric}, inputs[i].detach(), {inputs[i]}, {},
                      [](const Backward& gradient) -> Tensors { return {gradient.grad()}; });
      if (!own[i].requires_grad()) own[i].set_requires_grad();
      wanted[i] = edge_of(own[i]);
    }
    outputs = reference(own);
  }
  Pass pass(std::move(wanted), true);
  pass.end_at_wanted();
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (const Edge edge = edge_of(outputs[i]); edge.node && call.grad(i).defined()) pass.feed(edge, call.grad(i));
  return pass.run();
}

Tensors grad(TensorList outputs, TensorList inputs, TensorList grad_outputs, bool create_graph, bool retain_graph) {
  return run(outputs, inputs, grad_outputs, false, retain_graph, create_graph);
}

void backward(TensorList outputs, TensorList grad_outputs, bool retain_graph, bool create_graph) {
  run(outputs, {}, grad_outputs, true, retain_graph, create_graph);
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  tern::backward({*this}, {gradient}, retain_graph, create_graph);
}

void detail::check_vectors(const char* where, const char* what, const Tensors& vectors, const Tensors& tensors) {
  if (vectors.size() != tensors.size())
    fail(where, fmt::format("expected {} {}s, one for each, but got {}", tensors.size(), what, vectors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor &v = vectors[i], &x = tensors[i];
    if (!v.defined()) continue;
    if (!x.defined() || !is_floating(x.dtype()))
      fail(where, fmt::format("expected an undefined {} {} for a tensor that is not floating", what, i));
    if (v.shape() != x.shape() || v.dtype() != x.dtype() || v.device() != x.device())
      fail(where, fmt::format("expected {} {} of {} {} on {} but got {} {} on {}", what, i, name(x.dtype()), to_string(x.shape()),
                              to_string(x.device()), name(v.dtype()), to_string(v.shape()), to_string(v.device())));
  }
}

JacobianProduct vjp(const TensorFunction& f, const Tensors& inputs, const Tensors& cotangents) {
  const ScopedValue<ForwardLevel*> followed(context().tangents.level, context().grad ? context().tangents.level : nullptr);
  const GradMode recorded(true);
  Tensors leaves, wanted;  // leaves of their own, and the floating ones
  for (const Tensor& x : inputs) {
    leaves.push_back(detail::without_history(x));
    if (x.defined() && is_floating(x.dtype())) wanted.push_back(leaves.back().set_requires_grad());
  }
  const Tensors made = f(leaves);
  detail::check_vectors("vjp", "cotangent", cotangents, made);
  Tensors outputs, vectors, found(wanted.size());
  JacobianProduct result;
  for (std::size_t i = 0; i < made.size(); ++i) {
    result.outputs.push_back(detail::without_history(made[i]));
    if (!made[i].defined() || !made[i].requires_grad() || !cotangents[i].defined()) continue;
    outputs.push_back(made[i]);
    vectors.push_back(detail::without_history(cotangents[i]));
  }
  if (!outputs.empty() && !wanted.empty()) found = grad(outputs, wanted, vectors);
  std::size_t next = 0;
  for (const Tensor& x : leaves) {
    const bool is_wanted = x.defined() && x.requires_grad();
    const Tensor product = is_wanted ? found[next++] : Tensor();
    result.products.push_back(is_wanted && !product.defined() ? detail::zeros_as(x) : product);
  }
  return result;
}

void detail::check_gradient_specs(const char* op, std::span<const TensorSpec> inputs, std::span<const Tensor> gradients) {
  if (gradients.size() != inputs.size())
    fail(op, fmt::format("expected backward to return {} gradients but got {}", inputs.size(), gradients.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& g = gradients[i];
    if (g.defined() && (g.shape() != inputs[i].shape || g.dtype() != inputs[i].dtype))
      fail(op, fmt::format("expected a gradient of shape {}, {} for input {} but got {}, {}", to_string(inputs[i].shape),
                           name(inputs[i].dtype), i, to_string(g.shape()), name(g.dtype())));
  }
}

void detail::forbid_second_derivative(const char* op, const Backward& call, Tensors& gradients, bool every) {
  Tensors sources;
  const auto add = [&](const Tensor& x) {
    if (x.defined() && x.requires_grad()) sources.push_back(x);
  };
  for (const Tensor& g : call.grads()) add(g);
  for (std::size_t i = 0; i < call.saved_count(); ++i) add(call.saved(i));
  if (sources.empty()) return;
  for (Tensor& gradient : gradients) {
    if (!gradient.defined() || (gradient.requires_grad() && !every)) continue;
    gradient = record({op}, gradient.detach(), sources, {}, [op](const Backward&) -> Tensors {
      fail(op, "expected a backward written in ops, but this one is once differentiable: its gradient has no history, or says so");
    });
  }
}

}  // namespace tern
