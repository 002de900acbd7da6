#pragma once
#include <cstdint>

namespace tern {

struct Node;
struct OpCall;
class Tensor;

namespace backend {

// Note [The one door]
// A thread's work is watched by Observers alone: a profiler (profile/profiler.h), a memory history (profile/memory_history.h).
// Each room below tells what it alone knows: on() that a kernel runs, `record` which op that was and what it saved, ModuleScope where, the
// backward pass for which node, a gradient sink that a leaf's gradient is ready, and a training step in which pass. Without an observer
// each of these costs a load and a branch. No result depends on it. Structs of rooms above pass through by reference: they are of no
// concern here, and an observer knows them.

/// Watches the work of a thread. Several may watch one thread: each sees all that happens from watch() to unwatch().
class Observer {
 public:
  virtual ~Observer() = default;

  /// A kernel's call on the CPU, or its launch on a GPU, begins and ends. `op` names all of an op that nothing else will name, or is null:
  /// the kernel then belongs to the op that is recorded next. Calls may lie within calls.
  virtual void begin_kernel() {}
  /// The call of a kernel has returned, or a launch is queued: see begin_kernel.
  virtual void end_kernel(const char* /*op*/) {}
  /// Floating-point operations of the kernel that runs.
  virtual void count_flops(double /*flops*/, bool /*is_product*/) {}
  /// The op that an in-place edit is; its kernel is the next one.
  virtual void begin_in_place(const char* /*op*/) {}
  /// An op's kernels have been called or queued. Comes before the op is recorded for backward.
  virtual void end_op(const OpCall&) {}

  /// A forward of the module at this address begins; `type` is its class's name, "Linear".
  virtual void begin_module(const void* /*module*/, const char* /*type*/) {}
  /// That forward has returned, or thrown.
  virtual void end_module() {}
  /// A number, above 0, that the nodes of the innermost running module keep for begin_backward; 0: the observer gives none.
  virtual std::uint32_t module() { return 0; }
  /// The backward function of a node begins; and ends, with the bytes of its gradients and of what was saved. Passes nest.
  virtual void begin_backward(const Node&) {}
  /// That backward function has returned, or thrown.
  virtual void end_backward(double /*bytes*/) {}
  /// A backward pass has a leaf's gradient ready.
  virtual void on_gradient(const Tensor& /*leaf*/) {}

  /// "forward", "backward", "optimizer", "recompute", "communication", or a user's own.
  virtual void begin_pass(const char* /*name*/) {}
  /// The pass that began last is over.
  virtual void end_pass() {}

  /// A collective that this thread began has ended, and the thread got its result: on the steady clock in nanoseconds it ran from `begin`
  /// to `end` beside the thread, which stood still for `waited` of that. On a GPU its kernel tells.
  virtual void end_collective(const char* /*op*/, std::int64_t /*begin*/, std::int64_t /*end*/, std::int64_t /*waited*/, double /*bytes*/) {
  }

  /// That watches the same thread since before this one, or null.
  Observer* outer() const { return outer_; }
  /// Grows from each observer of a thread to the next, and is above 0.
  std::uint64_t serial() const { return serial_; }

 protected:
  /// This thread's work, from here on. Of one thread at a time.
  void watch();
  /// To be called by that thread; observers may go in any order. Nothing if it does not watch the thread.
  void unwatch();

 private:
  Observer* outer_ = nullptr;
  std::uint64_t serial_ = 0;
};

/// The latest of those that watch this thread, or null.
inline constinit thread_local Observer* observer = nullptr;

/// Calls event(observer) for each that watches this thread.
template <class F>
void tell(F&& event) {
  for (Observer* told = observer; told; told = told->outer()) event(*told);
}

/// A scope that observers are told of. It ends for those that it began for, and that still watch.
class ObservedScope {
 public:
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;

 protected:
  ObservedScope() = default;
  ~ObservedScope() = default;
  bool is_observed() const { return latest_ != 0; }  ///< somebody watched when the scope began
  /// Calls event(observer) for each that the scope began for, and that still watches.
  template <class F>
  void tell_end(F&& event) const {
    if (!is_observed()) [[likely]]
      return;
    for (Observer* told = observer; told; told = told->outer())
      if (told->serial() <= latest_) event(*told);
  }

 private:
  const std::uint64_t latest_ = observer ? observer->serial() : 0;
};

/// A kernel's call, from begin_kernel() to end_kernel(): on() and on_cuda() open one.
class KernelScope : ObservedScope {
 public:
  /// `op` is null where the op that is recorded next has the kernel.
  explicit KernelScope(const char* op) : op_(op) {
    if (is_observed()) tell([](Observer& told) { told.begin_kernel(); });
  }
  ~KernelScope() {
    tell_end([this](Observer& told) { told.end_kernel(op_); });
  }

 private:
  const char* const op_;
};

/// A part of a training step, from begin_pass() to end_pass(): backward(), train::apply() and checkpoint() open theirs.
class PassScope : ObservedScope {
 public:
  /// `name` outlives the observers' records: a literal.
  explicit PassScope(const char* name) {
    if (is_observed()) tell([&](Observer& told) { told.begin_pass(name); });
  }
  ~PassScope() {
    tell_end([](Observer& told) { told.end_pass(); });
  }
};

/// To be called by a kernel. A multiplication and an addition are two.
inline void count_flops(double flops, bool is_product) {
  if (observer) tell([&](Observer& told) { told.count_flops(flops, is_product); });
}

}  // namespace backend
}  // namespace tern
