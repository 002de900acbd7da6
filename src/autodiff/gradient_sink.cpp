#include "autodiff/gradient_sink.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "autodiff/autograd_state.h"
#include "autodiff/gradient_arithmetic.h"
#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "ops/kernels/copy.h"

namespace tern {

/// Entries of lazy zeros that a thread made, in its context. Those of leaves that are written, dropped or destroyed are null.
struct GradientSink::LazyZerosOfThread final : RefCounted {
  std::vector<Ref<LazyZeros>> marks;
  std::size_t next_sweep = 64;        ///< number of entries at which null ones are removed
  std::uint64_t optimizer_steps = 0;  ///< of this thread: Note [Unread gradients]

  static LazyZerosOfThread& get() {
    Ref<RefCounted>& list = context().lazy_zeros;
    if (!list) list = make_ref<LazyZerosOfThread>();
    return static_cast<LazyZerosOfThread&>(*list);
  }
};

/// Writes zeros, with one kernel for gradients that are adjacent in memory.
static void fill_with_zeros(Tensors gradients) {
  for (const Tensor& segment : contiguous_segments(std::move(gradients))) detail::fill_gradient(segment, 0);
}

GradientSink::Turn GradientSink::wait_for_turn() const {
  Turn turn = try_turn();
  if (turn) return turn;
  for (LeafWriter* writer = context().leaf_writer; writer; writer = writer->scope_.before()) writer->finish();
  turn.lock();
  return turn;
}

Tensor GradientSink::get() {
  const Turn turn = wait_for_turn();
  set_read();
  finish_deferred();
  write_zeros();
  return gradient_;
}

void GradientSink::set(const Tensor& gradient) {
  const Turn turn = wait_for_turn();
  finish_deferred();
  forget_zeros();
  gradient_ = gradient;
  exact_ = {};
  begin_sum();
}

void GradientSink::zero() {
  const Turn turn = wait_for_turn();
  if (!gradient_.defined() || !gradient_.is_contiguous()) fail("zero_grad", "expected a leaf that has a contiguous gradient");
  finish_deferred();
  begin_sum();
  if (const FlatStorage* const flat = flat_storage(gradient_); flat && flat->is_on_demand()) exact_ = {};
  if (is_zero()) return;
  zeros_ = make_ref<LazyZeros>(this);
  LazyZerosOfThread& zeroed = LazyZerosOfThread::get();
  zeroed.marks.push_back(zeros_);
  if (zeroed.marks.size() < zeroed.next_sweep) return;
  std::erase_if(zeroed.marks, [](const Ref<LazyZeros>& mark) { return !mark->sink; });
  zeroed.next_sweep = 2 * zeroed.marks.size() + 64;
}

void GradientSink::clear() {
  const Turn turn = wait_for_turn();
  if (gradient_.defined() && is_flat(gradient_)) zero();
  else set({});
}

void GradientSink::add(const Tensor& incoming) {
  const Turn turn = wait_for_turn();
  if (is_open_)
    fail("backward", "expected no gradient for a leaf whose sink is open: a backward within a backward comes before Backward::sink");
  finish_deferred();
  if (!gradient_.defined()) {
    // If there is no graph to keep, the gradient must own its memory: the incoming tensor may be visible elsewhere.
    const bool is_unique = incoming.ref()->references() == 1 && incoming.impl().storage->references() == 1;
    gradient_ = context().grad || (is_unique && incoming.is_contiguous()) ? incoming : detail::cloned(incoming);
  } else if (context().grad) {
    write_zeros();
    gradient_ = detail::sum_of_gradients(gradient_, incoming);
    is_exact_ = false;
  } else if (is_zero()) {
    detail::copy_gradient(incoming, gradient_);
    forget_zeros();
  } else if (adds_exactly() && gradient_.is_contiguous()) {
    if (!is_exact_ && exact_.defined()) detail::copy_gradient(gradient_, exact_);
    detail::add_gradient_exactly(incoming, gradient_, exact_);
    is_exact_ = true;
  } else {
    detail::add_gradient(incoming, gradient_);
  }
  ++rounded_sums_;
}

void GradientSink::begin_sum() {
  is_exact_ = is_final_ = false;
  rounded_sums_ = 0;
}

bool GradientSink::adds_exactly() const {
  return detail::needs_exact_sum(gradient_.dtype()) && (is_exact_ || is_final_ || rounded_sums_ >= kernels::max_rounded_sums);
}

void GradientSink::on_ready(Hook hook) {
  const Turn turn = wait_for_turn();
  set_read();
  hooks_.push_back(std::make_shared<const Hook>(std::move(hook)));
}

bool GradientSink::announce(const Tensor& leaf) {
  Turn turn = wait_for_turn();
  // A pass that overwrites the gradient may be recorded, and another one that adds to it: the recorded addition reads the sum.
  if (exact_.defined() && !is_exact_ && gradient_.defined() && !is_zero() && gradient_.device() != cpu) {
    detail::copy_gradient(gradient_, exact_);
    is_exact_ = true;
  }
  is_final_ = true;
  const auto hooks = hooks_;  // copied, because a hook may add one
  bool is_unread = false;
  if (!is_read_.load(std::memory_order_relaxed)) {
    const std::uint64_t steps = LazyZerosOfThread::get().optimizer_steps + 1;
    if (unread_since_ == 0) unread_since_ = steps;
    is_unread = steps >= unread_since_ + 2;
    if (is_unread) set_read();
  }
  turn.unlock();
  if (backend::observer) backend::tell([&](backend::Observer& told) { told.on_gradient(leaf); });
  for (const auto& hook : hooks) (*hook)(leaf);
  return is_unread;
}

void count_optimizer_step() { ++GradientSink::LazyZerosOfThread::get().optimizer_steps; }

void GradientSink::forget_zeros() {
  if (!zeros_) return;
  {
    const std::lock_guard lock(zeros_->mutex);
    zeros_->sink = nullptr;
  }
  zeros_ = nullptr;
}

void GradientSink::write_zeros() {
  if (!is_zero()) return;
  fill_with_zeros({gradient_});
  forget_zeros();
}

void GradientSink::finish_deferred() {
  if (LeafWriter* const writer = deferred_in_.load(std::memory_order_relaxed)) writer->finish();
}

void write_lazy_zeros() {
  const auto marks = std::exchange(GradientSink::LazyZerosOfThread::get().marks, {});
  Tensors gradients;
  std::vector<GradientSink::Turn> turns;
  const auto take = [&](GradientSink::LazyZeros& mark) {
    const std::lock_guard lock(mark.mutex);  // a thread that has the sink may wait for it, so do not wait for the sink here
    GradientSink* const sink = mark.sink;
    if (!sink) return true;
    GradientSink::Turn turn = sink->try_turn();
    if (!turn) return false;
    gradients.push_back(sink->gradient_);
    mark.sink = nullptr;
    sink->zeros_ = nullptr;
    turns.push_back(std::move(turn));
    return true;
  };
  for (const auto& mark : marks)
    while (!take(*mark)) std::this_thread::yield();
  fill_with_zeros(std::move(gradients));
}

void start_from_zeros(std::initializer_list<GradientTarget*> targets) {
  Tensors gradients;
  for (GradientTarget* target : targets) {
    if (*target && target->write == Write::overwrite) gradients.push_back(target->gradient);
    target->write = Write::accumulate;
  }
  fill_with_zeros(std::move(gradients));
}

LeafWriter::LeafWriter(Device device) : sums_(context().stream(device)) {}

LeafWriter::~LeafWriter() {
  abandon();
  if (deferred_.empty()) return;
  try {
    finish();
  } catch (...) {  // the exception that ended the pass is more informative
    for (const Opened& leaf : deferred_) leaf.sink->deferred_in_ = nullptr;
  }
}

GradientTarget LeafWriter::open(const Tensor& leaf, const Ref<Node>& node) {
  GradientSink* const sink = autograd_state(leaf)->sink.load(std::memory_order_acquire);
  GradientSink::Turn turn = sink ? sink->try_turn() : GradientSink::Turn();
  if (!turn || sink->is_open_ || !sink->gradient_.defined() || !sink->gradient_.is_contiguous()) return {};
  sink->finish_deferred();
  if (!sink->is_zero() && sink->adds_exactly()) return {};
  if (open_.empty()) sums_before_ = sums_.count();
  ++sink->rounded_sums_;
  sink->is_open_ = true;
  open_.push_back({node, sink, sink->gradient_, std::move(turn)});
  sink->gradient_.impl().storage->bump_version();
  const bool may_defer = sink->gradient_.device() == sums_.stream().device;
  return {sink->gradient_, sink->is_zero() ? Write::overwrite : Write::accumulate, may_defer ? &sums_ : nullptr, false};
}

std::vector<Ref<Node>> LeafWriter::close() {
  std::vector<Ref<Node>> written;
  for (Opened& leaf : open_) {
    leaf.sink->is_open_ = false;
    leaf.sink->forget_zeros();
    written.push_back(leaf.node);
    const std::size_t bytes = static_cast<std::size_t>(leaf.gradient.numel()) * size_of(leaf.gradient.dtype());
    if (!sums_.has_sum_to(leaf.gradient.view().data, bytes, sums_before_)) continue;
    leaf.sink->deferred_in_ = this;
    deferred_.push_back(std::move(leaf));
  }
  open_.clear();
  return written;
}

void LeafWriter::abandon() noexcept {
  for (const Opened& leaf : open_) leaf.sink->is_open_ = false;
  open_.clear();
}

void LeafWriter::finish() {
  sums_.finish();
  for (const Opened& leaf : deferred_) leaf.sink->deferred_in_ = nullptr;
  deferred_.clear();
}

}  // namespace tern
