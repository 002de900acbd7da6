#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "autodiff/autograd_state.h"
#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/pointwise.h"

namespace tern::detail {

void fill_gradient(const Tensor& target, double value) {
  target.impl().storage->bump_version();
  launch(target.device(), kernels::Fill{target, value}, "zero_gradient");
}

void copy_gradient(const Tensor& source, const Tensor& target) {
  target.impl().storage->bump_version();
  launch(target.device(), kernels::Copy{source, target}, "copy_gradient");
}

void add_gradient(const Tensor& source, const Tensor& target) {
  target.impl().storage->bump_version();
  launch(target.device(), kernels::Binary{functors::Add{}, target, source, target}, "add_gradient");
}

void add_gradient_exactly(const Tensor& source, const Tensor& target, Tensor& exact) {
  if (!exact.defined()) {
    exact = empty(target.shape(), DType::f32, target.device());
    copy_gradient(target, exact);
  }
  const Tensor added = source.is_contiguous() ? source : cloned(source);
  target.impl().storage->bump_version();
  launch(target.device(), kernels::AddRounded{added, exact, target}, "add_gradient");
}

Tensor zeros_as(const Tensor& x) {
  const Tensor result = empty_like(x);
  fill_gradient(result, 0);
  return result;
}

Tensor cloned(const Tensor& gradient) {
  const Tensor copy = empty_like(gradient);
  launch(copy.device(), kernels::Copy{gradient, copy}, "copy_gradient");
  return copy;
}

Tensor sum_of_gradients(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype() || a.device() != b.device())
    fail("backward",
         fmt::format("expected gradients of one tensor to be alike but got {} {} on {} and {} {} on {}", name(a.dtype()),
                     to_string(a.shape()), to_string(a.device()), name(b.dtype()), to_string(b.shape()), to_string(b.device())));
  const Tensor sum = empty_like(a);
  launch(sum.device(), kernels::Binary{functors::Add{}, a, b, sum});
  return record({.name = "add", .tangent = Tangent::symmetric}, sum, {a, b}, {},
                [](const Backward& call) -> Tensors { return {call.grad(), call.grad()}; });
}

}  // namespace tern::detail

namespace tern {

/// Guards which thread each leaf belongs to, and which gradients stand for zeros.
static std::mutex leaves_mutex;

static GradientSink& sink_of(const Ref<Node>& node) { return *autograd_state(*node->leaf())->sink; }

/// Allocates the memory of a gradient that stands for zeros and has none (Note [Sharded gradients]).
static void allocate(const Tensor& gradient) {
  if (!gradient.impl().storage->is_here()) flat_storage(gradient)->allocate();
}

/// Writes zeros, with one kernel for gradients that are adjacent in memory.
static void fill_with_zeros(const Tensors& gradients) {
  for (const Tensor& gradient : gradients) allocate(gradient);
  for (const Tensor& segment : contiguous_segments(gradients)) detail::fill_gradient(segment, 0);
}

static void tell_use(GradientSink& sink, backend::Observer::GradientUse use) {
  if (backend::observer) backend::tell([&](backend::Observer& told) { told.on_sink(sink, use); });
}

GradientSink::GradientSink() = default;
GradientSink::~GradientSink() { take_zeros(); }

Tensor GradientSink::get() {
  tell_use(*this, backend::Observer::GradientUse::use);
  is_read_ = true;
  finish_deferred();
  write_zeros();
  return gradient_;
}

void GradientSink::set(const Tensor& gradient) {
  tell_use(*this, backend::Observer::GradientUse::set);
  finish_deferred();
  take_zeros();
  gradient_ = gradient;
  exact_ = {};
  begin_sum();
}

void GradientSink::zero() {
  if (!gradient_.defined() || !gradient_.is_contiguous()) fail("zero_grad", "expected a leaf that has a contiguous gradient");
  tell_use(*this, backend::Observer::GradientUse::zero);
  finish_deferred();
  begin_sum();
  if (!gradient_.impl().storage->is_here()) exact_ = {};
  LeafWriter& writer = LeafWriter::of_thread();
  const std::lock_guard lock(leaves_mutex);
  if (zeroed_by_) return;
  writer.zeroed_.insert(this);
  zeroed_by_ = Ref<LeafWriter>(&writer);
}

void GradientSink::clear() {
  if (gradient_.defined() && is_flat(gradient_)) zero();
  else set({});
}

void GradientSink::add(const Tensor& incoming) {
  finish_deferred();
  if (!gradient_.defined()) {
    // If there is no graph to keep, the gradient must own its memory: the incoming tensor may be visible elsewhere.
    const bool is_unique = incoming.ref()->references() == 1 && incoming.impl().storage->has_one_owner();
    gradient_ = context().grad || (is_unique && incoming.is_contiguous()) ? incoming : detail::cloned(incoming);
  } else if (context().grad) {
    write_zeros();
    gradient_ = detail::sum_of_gradients(gradient_, incoming);
    is_exact_ = false;
  } else if (take_zeros()) {
    allocate(gradient_);
    detail::copy_gradient(incoming, gradient_);
  } else if (adds_exactly() && gradient_.is_contiguous()) {
    if (!is_exact_ && exact_.defined()) detail::copy_gradient(gradient_, exact_);
    detail::add_gradient_exactly(incoming, gradient_, exact_);
    is_exact_ = true;
  } else {
    detail::add_gradient(incoming, gradient_);
  }
  ++rounded_sums_;
}

bool GradientSink::is_alike(const State& other) const {
  if (gradient_.defined() != other.gradient.defined()) return false;
  if (!gradient_.defined() || !detail::needs_exact_sum(gradient_.dtype())) return true;
  return exact_.defined() == other.exact.defined() && is_exact_ == other.is_exact && rounded_sums_ == other.rounded_sums;
}

bool GradientSink::is_in_memory_of(const State& other) const {
  const auto is_same = [](const Tensor& a, const Tensor& b) {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    return a.impl().storage == b.impl().storage && a.offset() == b.offset() && a.strides() == b.strides();
  };
  return is_same(gradient_, other.gradient) && is_same(exact_, other.exact);
}

GradientSink::State GradientSink::state() const {
  return {gradient_.defined() ? gradient_.detach() : Tensor(), exact_, is_exact_, rounded_sums_};
}

void GradientSink::restore(const State& state) {
  gradient_ = state.gradient;
  exact_ = state.exact;
  is_exact_ = state.is_exact;
  rounded_sums_ = state.rounded_sums;
}

void GradientSink::begin_sum() {
  is_exact_ = false;
  rounded_sums_ = 0;
}

bool GradientSink::adds_exactly() const {
  return detail::needs_exact_sum(gradient_.dtype()) && (is_exact_ || rounded_sums_ >= kernels::max_rounded_sums);
}

void GradientSink::on_ready(Hook hook) {
  set_read();
  hooks_.push_back(std::make_shared<const Hook>(std::move(hook)));
}

bool GradientSink::announce(const Tensor& leaf) {
  // A pass that overwrites the gradient may be kept for later runs, and another one that adds to it: that addition reads the sum.
  if (exact_.defined() && !is_exact_ && gradient_.defined()) {
    detail::copy_gradient(gradient_, exact_);
    is_exact_ = true;
  }
  rounded_sums_ = kernels::max_rounded_sums;  // another pass adds exactly
  bool is_unread = false;
  if (!is_read_) {
    const std::uint64_t steps = LeafWriter::of_thread().optimizer_steps + 1;
    if (unread_since_ == 0) unread_since_ = steps;
    is_read_ = is_unread = steps >= unread_since_ + 2;
  }
  if (backend::observer) backend::tell([&](backend::Observer& told) { told.on_gradient(leaf); });
  const auto hooks = hooks_;  // copied, because a hook may add one
  for (const auto& hook : hooks) (*hook)(leaf);
  return is_unread;
}

bool GradientSink::take_zeros() {
  const std::lock_guard lock(leaves_mutex);
  if (!zeroed_by_) return false;
  zeroed_by_->zeroed_.erase(this);
  zeroed_by_ = nullptr;
  return true;
}

void GradientSink::write_zeros() {
  if (take_zeros()) fill_with_zeros({gradient_});
}

bool GradientSink::is_deferred() const {
  const kernels::DeferredSums& sums = LeafWriter::of_thread().sums_;
  return !sums.is_empty() && gradient_.defined() && gradient_.impl().storage->is_here() && sums.has_sum_to(gradient_.view());
}

void GradientSink::finish_deferred() const {
  if (is_deferred()) LeafWriter::of_thread().finish();
}

void write_lazy_zeros() {
  LeafWriter& writer = LeafWriter::of_thread();
  Tensors gradients;
  // Held until the zeros are written: a thread whose pass claims one of these leaves then finds them.
  const std::lock_guard lock(leaves_mutex);
  std::erase_if(writer.zeroed_, [&](GradientSink* sink) {
    if (sink->owner_ && sink->owner_ != &writer) return false;
    gradients.push_back(sink->gradient_);
    sink->zeroed_by_ = nullptr;
    return true;
  });
  fill_with_zeros(gradients);
}

void start_from_zeros(std::initializer_list<GradientTarget*> targets) {
  Tensors gradients;
  for (GradientTarget* target : targets) {
    if (*target && target->write == Write::overwrite) gradients.push_back(target->gradient);
    target->write = Write::accumulate;
  }
  fill_with_zeros(gradients);
}

LeafWriter& LeafWriter::of_thread() {
  Ref<RefCounted>& slot = context().leaf_writer;
  if (!slot) slot = make_ref<LeafWriter>();
  return static_cast<LeafWriter&>(*slot);
}

std::size_t LeafWriter::begin(Device device) {
  if (!open_.empty())
    fail("backward", "expected no gradient for a leaf whose sink is open: a backward within a backward comes before Backward::sink");
  if (passes++ == 0) sums_ = kernels::DeferredSums(context().stream(device));
  return claimed_.size();
}

void LeafWriter::end(std::size_t claimed_before) noexcept {
  open_.clear();
  try {
    finish();
  } catch (...) {  // the exception that ended the pass is more informative
  }
  {
    const std::lock_guard lock(leaves_mutex);
    for (std::size_t i = claimed_before; i < claimed_.size(); ++i) sink_of(claimed_[i]).owner_ = nullptr;
  }
  claimed_.resize(claimed_before);
  --passes;
}

GradientSink& LeafWriter::claim(const Ref<Node>& node) {
  GradientSink& sink = sink_of(node);
  tell_use(sink, backend::Observer::GradientUse::use);
  const std::lock_guard lock(leaves_mutex);
  if (sink.owner_ == this) return sink;
  if (sink.owner_)
    fail("backward", "expected a leaf that no other thread's backward adds to but one of shape " + to_string(node->leaf()->shape()) +
                         " is in use: let the threads take turns, or give each its own copy of the model");
  claimed_.push_back(node);
  sink.owner_ = this;
  return sink;
}

GradientTarget LeafWriter::open(const Ref<Node>& node) {
  GradientSink& sink = claim(node);
  const Tensor& gradient = sink.gradient_;
  if (!gradient.defined() || !gradient.is_contiguous() || std::find(open_.begin(), open_.end(), node) != open_.end()) return {};
  sink.finish_deferred();
  const bool is_zero = bool(sink.zeroed_by_);
  if (!is_zero && sink.adds_exactly()) return {};
  ++sink.rounded_sums_;
  allocate(gradient);
  open_.push_back(node);
  gradient.impl().storage->bump_version();
  const bool may_defer = gradient.device() == sums_.stream().device;
  return {gradient, is_zero ? Write::overwrite : Write::accumulate, may_defer ? &sums_ : nullptr, false};
}

std::vector<Ref<Node>> LeafWriter::close() {
  for (const Ref<Node>& node : open_) sink_of(node).take_zeros();
  return std::exchange(open_, {});
}

}  // namespace tern
