#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "autodiff/node.h"
#include "ops/kernels/reduce.h"
#include "tensor/tensor.h"

// State of a tensor for autodiff: the gradient sink of a leaf, the node of a result, tangents; and the arithmetic of gradients.
namespace tern {

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
/// A leaf belongs to one thread's pass at a time, from its first gradient to the end of that pass: a pass of another thread that reaches
/// it throws. So nothing here waits, and one mutex, of all leaves, is held for no longer than it takes to claim one.
class GradientSink final : public RefCounted {
 public:
  GradientSink();
  ~GradientSink() override;

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
  /// True if partial sums of the gradient are not added up yet.
  bool is_deferred() const;

  using Hook = std::function<void(const Tensor&)>;  ///< called with the leaf
  /// Adds a hook, called by announce(); it cannot be removed. See on_gradient_ready.
  void on_ready(Hook hook);
  /// Calls the hooks: the leaf's gradient is final for this pass. True if nothing has ever read the leaf's gradients though an optimizer
  /// has stepped, once for each leaf: see Note [Unread gradients].
  bool announce(const Tensor& leaf);
  /// Marks the gradient as one that is read: by an optimizer, which need not call get().
  void set_read() { is_read_ = true; }

  /// The state beside elements that a pass which adds to the gradient depends on, and leaves: for a program that does again what one did
  /// (Note [Programs]).
  struct State {
    Tensor gradient, exact;
    bool is_exact = false;
    int rounded_sums = 0;
  };
  State state() const;                             ///< the state, with a gradient without history
  bool is_alike(const State& other) const;         ///< a pass runs the kernels that it runs from that state
  bool is_in_memory_of(const State& other) const;  ///< the elements are in the same memory
  /// Sets what state() returned, for a gradient that stands for no zeros.
  void restore(const State& state);

 private:
  friend class LeafWriter;
  friend void write_lazy_zeros();
  /// Forgets what the gradient was the sum of.
  void begin_sum();
  /// True if an addition to the gradient goes to the exact sum.
  bool adds_exactly() const;
  /// True if the gradient stood for zeros, which are then the caller's to write or to overwrite.
  bool take_zeros();
  void write_zeros();
  void finish_deferred() const;

  Tensor gradient_;
  const LeafWriter* owner_ = nullptr;  ///< writer of the thread whose pass the leaf belongs to, or null
  Ref<LeafWriter> zeroed_by_;          ///< writer of the thread that zeroed the gradient, if it stands for zeros
  Tensor exact_;                       ///< memory of the f32 sum of a 16-bit gradient; undefined until it is needed
  bool is_exact_ = false;              ///< the gradient is exact_ rounded
  bool is_read_ = false;               ///< get() was called, the leaf has a hook or is an optimizer's, or it was reported
  int rounded_sums_ = 0;               ///< contributions that were rounded one by one, or the most that may be
  std::uint64_t unread_since_ = 0;     ///< 1 + optimizer steps of the thread at the first unread gradient; 0: there was none
  std::vector<std::shared_ptr<const Hook>> hooks_;
};

/// Writer of a thread's backward passes into the sinks of leaves; in the thread's context.
class LeafWriter final : public RefCounted {
 public:
  static LeafWriter& of_thread();

  /// Begins a pass, whose sums are deferred on the device's current stream, unless another pass is around it. Returns the number of leaves
  /// that those have claimed. Throws Error in a call that has opened a sink.
  std::size_t begin(Device device);
  /// Ends a pass. Deferred sums that an exception left behind are added up, and what the last call has opened is as it was.
  void end(std::size_t claimed_before) noexcept;

  /// Sink of the node's leaf, which belongs to this thread until the pass ends. Throws Error if it is another thread's.
  GradientSink& claim(const Ref<Node>& node);
  /// Target in the gradient of the node's leaf, for the running backward call; none if the leaf has no contiguous gradient, or one that is
  /// an exact sum, or the call has taken it already.
  GradientTarget open(const Ref<Node>& node);
  /// Ends a backward call that has returned. Returns the nodes of the leaves that it wrote to.
  std::vector<Ref<Node>> close();
  /// Adds up the deferred sums.
  void finish() { sums_.finish(); }

  std::uint64_t optimizer_steps = 0;  ///< of this thread: Note [Unread gradients]
  int passes = 0;                     ///< passes that are running, one within the other

 private:
  friend class GradientSink;
  friend void write_lazy_zeros();
  kernels::DeferredSums sums_;
  std::vector<Ref<Node>> open_, claimed_;
  std::unordered_set<GradientSink*> zeroed_;
};

/// Note [Unread gradients]
/// A gradient that nothing reads is a mistake that shows nowhere: a member that visit leaves out, a module that no optimizer has, a part
/// that was meant to be frozen. A leaf is reported on stderr, once, if gradients reached it before and after two steps of an optimizer in
/// this thread, and no optimizer has it, no hook waits for it and Tensor::grad() never read it. An input whose gradient a program
/// inspects, a second optimizer's parameter and a frozen tensor are therefore never reported; nor is a parameter that a function which
/// reads all gradients was given, such as clip_grad_norm, or that is trained in replays of a captured step alone.

/// Writes the lazy zeros of gradients that this thread zeroed, with one fill for those that are adjacent in memory. Call it before and
/// after work that is captured, where memory must have its actual content. A leaf that belongs to another thread's pass is left to it.
void write_lazy_zeros();

/// Autograd state of a tensor. For a leaf that requires a gradient, several threads may use it at once: Note [Threads and leaves].
struct AutogradState final : RefCounted {
  bool requires_grad = false;   ///< result of Tensor::requires_grad()
  std::mutex accumulator_lock;  ///< held while a leaf's `accumulator` is looked up or created
  std::uint32_t output = 0;     ///< index among the op's outputs
  Ref<GradientSink> sink;       ///< of a leaf that requires a gradient or has one, else null
  Ref<Node> node;               ///< op that computed the tensor; null for a leaf
  Node* accumulator = nullptr;  ///< a leaf's node in the current graphs, which own it
  Ref<RefCounted> tangents;     ///< one for each running jvp: see Note [Tangents]
};

/// Autograd state of a tensor; null until it requires a gradient, gets one or is an op's output.
inline AutogradState* autograd_state(const Tensor& x) { return static_cast<AutogradState*>(x.impl().autograd.get()); }
/// Autograd state of a tensor, created if there is none.
AutogradState& ensure_autograd_state(const Tensor& x);
/// Gradient sink of a leaf, created if there is none, which is an edit of the leaf.
GradientSink& gradient_sink(const Tensor& leaf);

/// A running call of jvp; each tangent belongs to one call.
struct ForwardLevel final : RefCounted {
  /// A level within `outer_`, which may be null.
  explicit ForwardLevel(ForwardLevel* outer_) : outer(outer_) {}
  Ref<ForwardLevel> outer;  ///< the enclosing jvp, whose tangents flow through this one's
};

/// Tangents of a tensor, that of the innermost level first: Note [Tangents] in forward.cpp.
struct TangentLink final : RefCounted {
  Ref<ForwardLevel> level;    ///< owned, so that no other level gets its address during the tangent's lifetime
  Tensor value;               ///< the tangent
  std::uint32_t version = 0;  ///< version of the tensor that carries it
  Ref<TangentLink> next;      ///< tangent of the next level
};

namespace detail {
/// Tangents that x carries, or null.
const TangentLink* tangents_of(const Tensor& x);
/// True if jvp would follow results computed from x.
bool carries_tangent(const Tensor& x);
/// x.detach() with x's tangents; an undefined tensor stays one.
Tensor without_history(const Tensor& x);
/// Throws unless there is a vector for each tensor, and each defined one has its tensor's shape, dtype and device.
void check_vectors(const char* where, const char* what, const Tensors& vectors, const Tensors& tensors);
}  // namespace detail

}  // namespace tern

// Arithmetic that a backward pass does by kernels itself, because ops are a higher layer. Only sum_of_gradients is recorded.
namespace tern::detail {

/// target = value for every element; marks the target as edited, as the next two functions do.
void fill_gradient(const Tensor& target, double value);
/// target = source, of one shape and dtype.
void copy_gradient(const Tensor& source, const Tensor& target);
/// target += source, of one shape and dtype.
void add_gradient(const Tensor& source, const Tensor& target);
/// target += source by Note [Sums in 16 bits], for a contiguous target; `exact` (target's shape, f32) is made from the target if it is
/// undefined.
void add_gradient_exactly(const Tensor& source, const Tensor& target, Tensor& exact);
/// True for dtypes in which a long sum loses its small parts.
inline bool needs_exact_sum(DType dtype) { return size_of(dtype) == 2; }
/// New zeros of x's shape, dtype and device.
Tensor zeros_as(const Tensor& x);
/// Contiguous copy of a gradient.
Tensor cloned(const Tensor& gradient);
/// a + b for two gradients of one tensor, recorded in grad mode; the gradient of the sum flows to both.
Tensor sum_of_gradients(const Tensor& a, const Tensor& b);

}  // namespace tern::detail
