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
/// All gradients of a leaf go into its sink, which owns the gradient tensor and knows what the memory holds:
///  - zero: zero_grad of a flat gradient costs nothing. The elements stand for zeros until the next pass overwrites them, Tensor::grad()
///    is called, or write_lazy_zeros is. A read of the memory through another handle in between sees old elements.
///  - open: a backward call has taken it (Backward::sink) and its kernels write straight into the gradient, a slice of the flat buffer:
///    overwriting zeros, accumulating onto anything else. Zeros stay zeros if the call throws.
///  - deferred: such a kernel left a sum in parts (kernels::DeferredSums). One kernel adds up all of a pass at its end; sooner where
///    the gradient is read or written by others, another pass within the pass included.
/// When all that a pass contributes is in, and summed, the leaf is ready: hooks are called, once for each pass and leaf that gradients
/// reached, however they came. A leaf with hooks takes the same kernels as one without.
/// Passes of several threads may reach one leaf: each holds the sink while it adds, or has it open, or deferred. A kernel that finds it
/// held by another thread writes to memory of its own, and the pass adds that when its turn comes: all arrive, in no given order, so that
/// the last bits may differ. A thread that waits has added up its own deferred sums before, and so never holds what another waits for. On a
/// GPU the threads must order their streams themselves, as for all memory that they share.
class GradientSink {
 public:
  GradientSink() = default;
  ~GradientSink() {
    const auto turn = wait_for_turn();
    forget_zeros();
  }
  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;

  /// The gradient, with elements in its memory; undefined where there is none.
  Tensor get();
  /// The gradient from now on, whatever was there; undefined: none. Zeros and sums that were still to be written are forgotten.
  void set(const Tensor& gradient);
  /// Lets the gradient, which must be contiguous, stand for zeros.
  void zero();
  /// Forgets the gradient; one in a flat buffer (autodiff/parameter_buffer.h) stays there and stands for zeros.
  void clear();
  /// Takes what arrives where there is no gradient, adds in place where there is one (so that a slice of a flat buffer stays one), and
  /// makes a new tensor where the sum itself is recorded.
  void add(const Tensor& incoming);

  /// True where the writer's pass has left sums of this leaf in parts, and not added them up yet.
  bool is_deferred_in(const LeafWriter& writer) const { return deferred_in_.load(std::memory_order_relaxed) == &writer; }

  using Hook = std::function<void(const Tensor&)>;  ///< is given the leaf
  /// One hook more, called by announce(); it cannot be taken away. See on_gradient_ready.
  void on_ready(Hook hook);
  /// The leaf's gradient is final for this pass.
  void announce(const Tensor& leaf) const;

 private:
  friend class LeafWriter;
  friend void write_lazy_zeros();
  /// A mark in the list of the thread that zeroed the gradient; null when the zeros are written or forgotten.
  struct LazyZeros final : RefCounted {
    explicit LazyZeros(GradientSink* of) : sink(of) {}
    std::mutex mutex;  ///< held to set `sink` to null, and to use it: it lives meanwhile
    std::atomic<GradientSink*> sink;
  };
  struct LazyZerosOfThread;
  using Turn = std::unique_lock<std::recursive_mutex>;

  /// The sink for this thread alone, for as long as the result lives.
  Turn wait_for_turn() const;
  /// The same without waiting: a lock that owns nothing where another thread has the sink.
  Turn try_turn() const { return Turn(mutex_, std::try_to_lock); }
  bool is_zero() const { return bool(zeros_); }
  void forget_zeros();
  void write_zeros();
  /// Adds up the sums that are deferred.
  void finish_deferred();

  mutable std::recursive_mutex mutex_;  ///< a pass within a pass has the turn of the outer one
  Tensor gradient_;
  Ref<LazyZeros> zeros_;
  std::atomic<LeafWriter*> deferred_in_{nullptr};  ///< writer of the pass that has not added up its sums of this leaf; or null
  bool is_open_ = false;
  std::vector<std::shared_ptr<const Hook>> hooks_;
};

/// Writes the zeros that gradients stand for since this thread zeroed them, in one fill for neighbours in memory. To be called where memory
/// must hold what it stands for: before and after work that is recorded once and replayed.
void write_lazy_zeros();

/// The sinks that the kernels of one backward pass write to. It lives in the thread of the pass.
class LeafWriter {
 public:
  /// For a pass on the device's current stream: context().leaf_writer is this one until it ends.
  explicit LeafWriter(Device device);
  /// Adds up what an exception left.
  ~LeafWriter();

  /// A target in a leaf's own gradient, for the backward call that runs; none where the leaf has no contiguous gradient, or the call has
  /// this one already. `node` stands for the leaf in the graph.
  GradientTarget open(const Tensor& leaf, const Ref<Node>& node);
  /// To be called when the backward call has returned, or thrown. Returns the nodes of the leaves that it wrote to.
  std::vector<Ref<Node>> close();
  /// The call has thrown: what it has opened is as it was, zeros included.
  void abandon() noexcept;
  /// Adds up what is deferred.
  void finish();

 private:
  struct Opened {
    Ref<Node> node;  // which keeps the sink
    GradientSink* sink;
    Tensor gradient;
    GradientSink::Turn turn;
  };
  friend class GradientSink;
  kernels::DeferredSums sums_;
  std::size_t sums_before_ = 0;  ///< deferred sums when the backward call that runs began
  std::vector<Opened> open_, deferred_;
  ScopedValue<LeafWriter*> scope_{context().leaf_writer, this};
};

}  // namespace tern
