#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "autodiff/gradient_target.h"
#include "ops/kernels/deferred_sums.h"
#include "tensor/tensor.h"

namespace tern {

struct Node;
class LeafWriter;

/// Note [Gradient sink]
/// All gradients of a leaf go into its sink, which owns the gradient tensor and knows the state of its memory:
///  - zero: zero_grad of a flat gradient costs nothing. The gradient counts as zeros, which are only written when Tensor::grad() or
///    write_lazy_zeros() is called, or never if a pass overwrites it first. A read of the memory through another handle sees old elements.
///  - open: a backward call has taken it (Backward::sink) and its kernels write directly into the gradient, a slice of the flat buffer:
///    overwriting zeros, accumulating onto anything else. Lazy zeros stay so if the call throws.
///  - deferred: such a kernel left partial sums (kernels::DeferredSums). One kernel adds up all partial sums of a pass at its end, or
///    earlier if the gradient is read or written by others, including another pass within the pass.
/// A 16-bit gradient is the rounded value of an f32 sum, Note [Sums in 16 bits], as soon as a second pass adds to it, or many calls of one
/// pass. Kernels then write to new memory, because they would round each time. The sum takes 4 bytes for each element, and stays for
/// the next time; a gradient that one pass writes needs none.
/// When all contributions of a pass are in, and summed, the leaf is ready: hooks are called, once for each pass and leaf that gradients
/// reached, by any path. A leaf with hooks uses the same kernels as one without.
/// Passes of several threads may reach one leaf: each holds the sink while it adds to it, or while it is open or deferred. A kernel that
/// finds it held by another thread writes to new memory, and its pass adds that when it gets the sink: all contributions arrive, in no
/// fixed order, so the last bits may differ. A thread adds up its own deferred sums before it waits, so it never holds a sink that another
/// waits for. On a GPU the threads must order their streams themselves, as for all shared memory.
class GradientSink {
 public:
  GradientSink() = default;
  ~GradientSink() {
    const auto turn = wait_for_turn();
    forget_zeros();
  }
  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;

  /// The gradient, with its elements written; undefined if there is none.
  Tensor get();
  /// Replaces the gradient; undefined: none. Lazy zeros and deferred sums are dropped.
  void set(const Tensor& gradient);
  /// Zeroes the gradient, which must be contiguous, lazily.
  void zero();
  /// Drops the gradient; one in a flat buffer (autodiff/parameter_buffer.h) stays there and is zeroed lazily.
  void clear();
  /// Accumulates a gradient: takes it over if there is none, adds in place if there is one (so that a slice of a flat buffer stays one),
  /// and makes a new tensor if the sum itself is recorded.
  void add(const Tensor& incoming);

  /// True if the writer's pass has left partial sums of this leaf that are not added up yet.
  bool is_deferred_in(const LeafWriter& writer) const { return deferred_in_.load(std::memory_order_relaxed) == &writer; }

  using Hook = std::function<void(const Tensor&)>;  ///< called with the leaf
  /// Adds a hook, called by announce(); it cannot be removed. See on_gradient_ready.
  void on_ready(Hook hook);
  /// Calls the hooks: the leaf's gradient is final for this pass. True if nothing has ever read the leaf's gradients though an optimizer
  /// has stepped, once for each leaf: see Note [Unread gradients].
  bool announce(const Tensor& leaf);
  /// Marks the gradient as one that is read: by an optimizer, which need not call get().
  void set_read() { is_read_.store(true, std::memory_order_relaxed); }

 private:
  friend class LeafWriter;
  friend void write_lazy_zeros();
  friend void count_optimizer_step();
  /// Entry in the list of the thread that zeroed the gradient; `sink` is null once the zeros are written or dropped.
  struct LazyZeros final : RefCounted {
    explicit LazyZeros(GradientSink* of) : sink(of) {}
    std::mutex mutex;  ///< held to set `sink` to null, and to use the sink, which then stays alive
    std::atomic<GradientSink*> sink;
  };
  struct LazyZerosOfThread;
  using Turn = std::unique_lock<std::recursive_mutex>;

  /// Locks the sink for this thread, for the lifetime of the result.
  Turn wait_for_turn() const;
  /// The same without waiting: a lock that owns nothing if another thread has the sink.
  Turn try_turn() const { return Turn(mutex_, std::try_to_lock); }
  bool is_zero() const { return bool(zeros_); }
  /// Forgets what the gradient was the sum of.
  void begin_sum();
  /// True if an addition to the gradient goes to the exact sum.
  bool adds_exactly() const;
  void forget_zeros();
  void write_zeros();
  /// Adds up the deferred sums.
  void finish_deferred();

  mutable std::recursive_mutex mutex_;  ///< recursive: a pass within a pass has the lock of the outer one
  Tensor gradient_;
  Ref<LazyZeros> zeros_;
  std::atomic<LeafWriter*> deferred_in_{nullptr};  ///< writer of the pass that holds deferred sums of this leaf, or null
  bool is_open_ = false;
  Tensor exact_;           ///< memory of the f32 sum of a 16-bit gradient; undefined until it is needed
  bool is_exact_ = false;  ///< the gradient is exact_ rounded
  bool is_final_ = false;  ///< a pass has ended that wrote to the gradient
  int rounded_sums_ = 0;   ///< contributions that were rounded one by one
  std::vector<std::shared_ptr<const Hook>> hooks_;
  std::atomic<bool> is_read_{false};  ///< get() was called, the leaf has a hook or is an optimizer's, or it was reported
  std::uint64_t unread_since_ = 0;    ///< 1 + optimizer steps of the thread at the first unread gradient; 0: there was none
};

/// Note [Unread gradients]
/// A gradient that nothing reads is a mistake that shows nowhere: a member that visit leaves out, a module that no optimizer has, a part
/// that was meant to be frozen. A leaf is reported on stderr, once, if gradients reached it before and after two steps of an optimizer in
/// this thread, and no optimizer has it, no hook waits for it and Tensor::grad() never read it. An input whose gradient a program
/// inspects, a second optimizer's parameter and a frozen tensor are therefore never reported; nor is a parameter that a function which
/// reads all gradients was given, such as clip_grad_norm, or that is trained in replays of a captured step alone.
void count_optimizer_step();

/// Writes the lazy zeros of gradients that this thread zeroed, with one fill for those that are adjacent in memory. Call it before and
/// after work that is captured, where memory must have its actual content.
void write_lazy_zeros();

/// Writer of one backward pass into the sinks of leaves. It lives in the thread of the pass.
class LeafWriter {
 public:
  /// For a pass on the device's current stream: context().leaf_writer points to it until it ends.
  explicit LeafWriter(Device device);
  /// Adds up the sums that an exception left behind.
  ~LeafWriter();

  /// Target in a leaf's gradient, for the running backward call; none if the leaf has no contiguous gradient, or one that is an exact sum,
  /// or the call has taken it already. `node` is the leaf's node in the graph.
  GradientTarget open(const Tensor& leaf, const Ref<Node>& node);
  /// Ends a backward call that has returned, or thrown. Returns the nodes of the leaves that it wrote to.
  std::vector<Ref<Node>> close();
  /// Undoes a call that has thrown: what it has opened is as it was, lazy zeros included.
  void abandon() noexcept;
  /// Adds up the deferred sums.
  void finish();

 private:
  struct Opened {
    Ref<Node> node;  // keeps the sink alive
    GradientSink* sink;
    Tensor gradient;
    GradientSink::Turn turn;
  };
  friend class GradientSink;
  kernels::DeferredSums sums_;
  std::size_t sums_before_ = 0;  ///< number of deferred sums when the running backward call began
  std::vector<Opened> open_, deferred_;
  ScopedValue<LeafWriter*> scope_{context().leaf_writer, this};
};

}  // namespace tern
