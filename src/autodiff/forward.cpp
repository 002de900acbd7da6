#include <fmt/format.h>

#include <algorithm>

#include "autodiff/autograd_state.h"
#include "autodiff/engine.h"
#include "autodiff/node.h"

namespace tern {

// Note [Tangents]
// While jvp runs a function, a tensor may carry its tangent: the derivative of its elements along the tangents of the function's inputs.
// An observer of the thread sets the tangents of an op's outputs as soon as the op has run. No graph is built: a tangent lives as long as
// its tensor, so memory does not grow with the depth of the function.
//
// No op needs a second derivation for this. An op's backward is linear in the incoming gradient u, g(u) = J^T u, and is written in ops. So
// it is called with a u of zeros, recorded, and the gradient of <g(u), t> with respect to u is J t: the transpose of one op, whose small
// graph is freed right after (Townsend's trick, autodiff/engine.h, for one op at a time). That costs a backward of the op and one of
// this backward. Ops with a cheaper way name it: enum Tangent. A fused op, whose backward calls vjp(call, inputs,
// reference) with its plain reference when it is recorded, gets the tangents of that reference.
//
// NoGrad stops tangents as it stops recording: what is computed there is a constant. Recording and tangents are separate in the context:
// with `Context::tangents.only` ops carry tangents, and are not recorded. jvp runs its function so, and backward passes within jvp run so
// too: their gradients carry tangents, which are Hessian-vector products.
//
// A jvp within a jvp is a level within a level. The tangents of a level are computed at the levels outside of it only: tangents of the
// inner level then carry tangents of the outer one, and never the reverse.

namespace {

/// Tangent of x at a level, undefined if it has none. Throws Error that names `op` if x was edited in place after it got the tangent.
Tensor tangent_of(const Tensor& x, const ForwardLevel& level, const char* op) {
  for (const TangentLink* t = detail::tangents_of(x); t; t = t->next.get()) {
    if (t->level.get() != &level) continue;
    if (t->version != x.version())
      fail(op, fmt::format("expected the operand {} of a function that jvp differentiates to be unchanged, but it was edited in place "
                           "(version {}, its tangent is of {}): use the op that returns a new tensor",
                           to_string(x.shape()), x.version(), t->version));
    return t->value;
  }
  return {};
}

/// Sets a tangent, of x's shape and dtype, of x, which has no other user yet.
void set_tangent(const Tensor& x, ForwardLevel& level, const Tensor& tangent) {
  auto made = make_ref<TangentLink>();
  made->level = Ref<ForwardLevel>(&level);
  made->value = tangent;
  made->version = x.version();
  Ref<RefCounted>& slot = ensure_autograd_state(x).tangents;
  if (slot) made->next = Ref<TangentLink>(static_cast<TangentLink*>(slot.get()));
  slot = made;
}

/// x.detach() with x's tangents but that of one level, the innermost that x has.
Tensor without_tangent(const Tensor& x, const ForwardLevel& level) {
  Tensor result = detail::without_history(x);
  const TangentLink* const first = detail::tangents_of(result);
  if (first && first->level.get() == &level) ensure_autograd_state(result).tangents = Ref<RefCounted>(first->next);
  return result;
}

/// Scope in which ops carry tangents and are not recorded, at the given level, if any, and those outside of it.
class CarryTangents {
 public:
  explicit CarryTangents(ForwardLevel* level) : level_(context().tangents.level, level), grad_(context().grad, true) {}

 private:
  ScopedValue<ForwardLevel*> level_;
  ScopedValue<bool> grad_, only_{context().tangents.only, true};
};

/// Tangents of a fused op from its plain reference.
class Reference final : public detail::ReferenceTangents {
 public:
  Reference(ForwardLevel& level, const Tensors& tangents) : level_(level), tangents_(tangents) {}

  void find(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& reference) override {
    Tensors own;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      own.push_back(detail::without_history(inputs[i]));
      if (inputs[i].defined() && tangents_[i].defined()) set_tangent(own[i], level_, tangents_[i]);
    }
    const CarryTangents carried(&level_);
    for (const Tensor& y : reference(own)) results_.push_back(tangent_of(y, level_, "jvp"));
    found_ = true;
  }
  bool found() const { return found_; }
  const Tensors& results() const { return results_; }

 private:
  ForwardLevel& level_;
  const Tensors& tangents_;  ///< tangents of the op's inputs
  Tensors results_;          ///< tangents of its outputs
  bool found_ = false;
};

/// Zeros of x's shape in the memory of one element.
Tensor zero_like(const Tensor& x) {
  const Tensor zero = empty({}, x.dtype(), x.device());
  detail::fill_gradient(zero, 0);
  return zero.window(x.shape(), Strides::filled(x.dims(), 0), 0);
}

bool is_alike(const Tensor& a, const Tensor& b) { return a.shape() == b.shape() && a.dtype() == b.dtype(); }

/// Node that backward sees. The saved tensors are constants for it, even its own output.
struct OneCall final : Node {
  OneCall(const char* name, std::span<const Tensor> tensors) : Node(name) {
    saved.reserve(tensors.size());
    for (const Tensor& x : tensors) saved.emplace_back(detail::without_history(x));
  }
  Tensors backward(const Backward&) override { return {}; }
};

/// Computes the tangents of a call's outputs at one level; runs at the levels outside of it.
class Rules {
 public:
  Rules(const OpCall& call, ForwardLevel& level, const Tensors& tangents) : call_(call), level_(level), tangents_(tangents) {}

  Tensors outputs() const {
    switch (call_.op.tangent) {
      case Tangent::linear: return linear();
      case Tangent::product: return tangents_[0].defined() || tangents_[1].defined() ? product() : transposed();
      case Tangent::symmetric:
        if (std::all_of(tangents_.begin(), tangents_.end(), [&](const Tensor& t) { return !t.defined() || is_alike(t, call_.outputs[0]); }))
          return symmetric();
        break;
      case Tangent::transposed: break;
    }
    return transposed();
  }

 private:
  Tensors linear() const {
    Tensors in = tangents_;
    for (std::size_t i = 0; i < in.size(); ++i)
      if (const Tensor& x = call_.inputs[i]; !in[i].defined() && x.defined()) in[i] = is_floating(x.dtype()) ? zero_like(x) : x;
    return call_.again(in);
  }

  Tensors product() const {
    Tensor total;
    for (std::size_t i = 0; i < 2; ++i) {
      if (!tangents_[i].defined()) continue;
      Tensors in(call_.inputs.begin(), call_.inputs.end());
      in[i] = tangents_[i];
      if (in.size() > 2) in[2] = total.defined() ? Tensor() : tangents_[2];
      const Tensor part = call_.again(in)[0];
      total = total.defined() ? detail::sum_of_gradients(total, part) : part;
    }
    return {total};
  }

  Tensors symmetric() const {
    OneCall node(call_.op.name, call_.saved);
    const Ref<Node> any = make_ref<OneCall>(call_.op.name, std::span<const Tensor>());
    Tensor total;
    for (std::size_t i = 0; i < tangents_.size(); ++i) {
      if (!tangents_[i].defined()) continue;
      node.next.assign(tangents_.size(), Edge{});
      node.next[i].node = any;
      const Tensor part = call_.backward(Backward(node, {&tangents_[i], 1}))[i];
      if (part.defined()) total = total.defined() ? detail::sum_of_gradients(total, part) : part;
    }
    return {total};
  }

  Tensors transposed() const {
    OneCall node(call_.op.name, call_.saved);
    Tensors arriving, wanted, transposes, gradients;
    for (const Tensor& y : call_.outputs) {
      arriving.push_back(is_floating(y.dtype()) ? zero_like(y).set_requires_grad() : Tensor());
      if (arriving.back().defined()) wanted.push_back(arriving.back());
    }
    for (const Tensor& t : tangents_) node.next.push_back(t.defined() ? edge_of(wanted[0]) : Edge{});
    Reference reference(level_, tangents_);
    Tensors found;
    {
      const GradMode recorded(true);
      transposes = call_.backward(Backward(node, arriving, nullptr, &reference));
    }
    if (reference.found()) return reference.results();
    Tensors sources;
    for (std::size_t i = 0; i < transposes.size() && i < tangents_.size(); ++i) {
      if (!tangents_[i].defined() || !transposes[i].defined() || !transposes[i].requires_grad()) continue;
      sources.push_back(transposes[i]);
      gradients.push_back(tangents_[i]);
    }
    Tensors results(call_.outputs.size());
    if (sources.empty()) return results;
    found = grad(sources, wanted, gradients);
    for (std::size_t j = 0, next = 0; j < results.size(); ++j)
      if (arriving[j].defined()) results[j] = found[next++];
    return results;
  }

  const OpCall& call_;
  ForwardLevel& level_;
  const Tensors& tangents_;
};

/// Sets the tangents of an op's outputs, at each level at which an input has one.
void carry_tangents(const OpCall& call) {
  std::vector<ForwardLevel*> levels;  // outermost first: saved tensors then carry the tangents that the next level needs
  for (ForwardLevel* level = context().tangents.level; level; level = level->outer.get()) levels.insert(levels.begin(), level);
  const NoAutocast as_the_op_chose;
  const ScopedValue<SavedTensorHooks*> unkept(context().saved_tensor_hooks, nullptr);
  const ScopedValue<bool> unsearched(context().diagnosis.anomaly, false);
  for (ForwardLevel* const level : levels) {
    Tensors tangents, results;
    bool any = false;
    for (const Tensor& x : call.inputs) {
      tangents.push_back(x.defined() ? tangent_of(x, *level, call.op.name) : x);
      any = any || tangents.back().defined();
    }
    if (!any) continue;
    if (ForwardLevel* const outer = level->outer.get()) {
      const CarryTangents carried(outer);
      results = Rules(call, *level, tangents).outputs();
    } else {
      const ScopedValue<ForwardLevel*> outermost(context().tangents.level, nullptr);
      const NoGrad unrecorded;
      results = Rules(call, *level, tangents).outputs();
    }
    for (std::size_t j = 0; j < results.size() && j < call.outputs.size(); ++j) {
      const Tensor &t = results[j], &y = call.outputs[j];
      if (!t.defined() || !is_floating(y.dtype())) continue;
      if (!is_alike(t, y))
        fail(call.op.name, fmt::format("expected a tangent of shape {}, {} for output {} but got {}, {}", to_string(y.shape()),
                                       name(y.dtype()), j, to_string(t.shape()), name(t.dtype())));
      set_tangent(y, *level, t);
    }
  }
}

/// Watches the ops of this thread while a jvp runs; one observer serves those within it.
class Follow : backend::Observer {
 public:
  Follow() {
    if (running++ == 0) watch_last();
  }
  ~Follow() override {
    --running;
    unwatch();
  }

 private:
  void end_op(const OpCall& call) override {
    if (call.backward && context().tangents.level && needs_record(call.inputs)) carry_tangents(call);
  }
  static inline thread_local int running = 0;
};

}  // namespace

JacobianProduct jvp(const TensorFunction& f, const Tensors& inputs, const Tensors& tangents) {
  detail::check_vectors("jvp", "tangent", tangents, inputs);
  const auto level = make_ref<ForwardLevel>(context().grad ? context().tangents.level : nullptr);
  const Follow observed;
  const CarryTangents carried(level.get());
  Tensors in;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    in.push_back(detail::without_history(inputs[i]));
    if (tangents[i].defined()) set_tangent(in[i], *level, detail::without_history(tangents[i]));
  }
  const Tensors outputs = f(in);
  JacobianProduct result;
  for (const Tensor& y : outputs) {
    Tensor product = y.defined() ? tangent_of(y, *level, "jvp") : Tensor();
    if (!product.defined() && y.defined() && is_floating(y.dtype())) product = detail::zeros_as(y);
    result.products.push_back(detail::without_history(product));
    result.outputs.push_back(y.defined() ? without_tangent(y, *level) : y);
  }
  return result;
}

}  // namespace tern
