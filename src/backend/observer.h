#pragma once
#include <cstdint>

namespace tern {

struct Node;
struct OpCall;
class GradientSink;
class KernelCall;
class Storage;
class Tensor;
template <class T>
class Ref;

namespace backend {

// Note [Observers]
// Observers are the only way to watch a thread's work: a profiler (profile/profiler.h), a memory history (profile/memory_history.h),
// anomaly mode (autodiff/anomaly.h), jvp (autodiff/forward.cpp). Each layer reports what only it knows: launch() that a kernel runs,
// call() the op and what it kept, ModuleScope the module, the backward pass the node, a gradient sink that a leaf's gradient is ready, and
// a training step the pass. Without an observer each report costs a load and a branch. No result depends on observers, but jvp's own. Types
// of higher layers are passed by reference and are only declared here.

/// Nanoseconds of std::chrono::steady_clock, which has an arbitrary start: the one clock of spans, device records and training runs.
std::int64_t steady_ns();

/// Observer of the work of a thread. Several may watch one thread: each sees everything from watch() to unwatch().
class Observer {
 public:
  virtual ~Observer() = default;

  /// A kernel's call on the CPU, or its launch on a GPU, begins. `op` of end_kernel names a kernel whose op does not report its end;
  /// if null, the kernel belongs to the op that ends next. Calls may be nested.
  virtual void begin_kernel() {}
  /// A kernel's call has returned, or its launch is queued: see begin_kernel.
  virtual void end_kernel(const char* /*op*/) {}
  /// The kernel of the scope that began last, with its arguments, is about to run. Throws to refuse it.
  virtual void run_kernel(const KernelCall&) {}
  /// Floating-point operations of the running kernel.
  virtual void count_flops(double /*flops*/, bool /*is_product*/) {}
  /// Name of an in-place op; its kernel is the next one.
  virtual void begin_in_place(const char* /*op*/) {}
  /// An op's kernels have been called or queued. Called before the op is recorded for backward.
  virtual void end_op(const OpCall&) {}

  /// A forward of the module at this address begins; `type` is its class name, "Linear".
  virtual void begin_module(const void* /*module*/, const char* /*type*/) {}
  /// That forward has returned, or thrown.
  virtual void end_module() {}
  /// Number above 0 of the innermost running module, which its nodes keep for begin_backward; 0: the observer assigns none.
  virtual std::uint32_t module() { return 0; }
  /// The backward function of a node begins. Passes may be nested.
  virtual void begin_backward(const Node&) {}
  /// That backward function has returned, or thrown; `bytes` counts its gradients and what was saved.
  virtual void end_backward(double /*bytes*/) {}
  /// Uses of the gradient of a leaf: it is replaced, it is zeroed, or it is read or added to.
  enum class GradientUse : std::uint8_t { set, zero, use };
  /// That is about to happen.
  virtual void on_sink(GradientSink&, GradientUse) {}
  /// A backward pass has finished a leaf's gradient.
  virtual void on_gradient(const Tensor& /*leaf*/) {}

  /// A pass begins: "forward", "backward", "optimizer", "recompute", "communication", or a user's name.
  virtual void begin_pass(const char* /*name*/) {}
  /// The pass that began last has ended.
  virtual void end_pass() {}

  /// A tensor is about to be allocated.
  virtual void begin_allocation() {}
  /// The memory of that tensor.
  virtual void end_allocation(const Ref<Storage>&) {}
  /// A kernel or the host gets the address of a tensor's memory.
  virtual void on_view(const Ref<Storage>&) {}
  /// The host looks by its version whether memory was edited since the last time, and does more if it was.
  virtual void on_version(const Ref<Storage>&, bool /*is_edited*/) {}
  /// The host reads or writes a tensor's elements by this function, "item", or without memory does what observers do not see:
  /// "CapturedStep". Throws to refuse it.
  virtual void on_host_access(const char* /*function*/, const Ref<Storage>&) {}

  /// A collective that this thread began has ended, and the thread got its result. On the steady clock in nanoseconds, it ran from `begin`
  /// to `end` in parallel with the thread, which waited for `waited` of that. On a GPU its kernel measures the times.
  virtual void end_collective(const char* /*op*/, std::int64_t /*begin*/, std::int64_t /*end*/, std::int64_t /*waited*/, double /*bytes*/) {
  }

  /// The observer that has watched the same thread since before this one, or null.
  Observer* outer() const { return outer_; }
  /// Number of this observer, above 0 and larger than those of the thread's earlier ones.
  std::uint64_t serial() const { return serial_; }

 protected:
  /// Starts watching this thread. Only one thread at a time.
  void watch();
  /// As watch(), but told after all others, and not of scopes: for an observer that calls ops itself.
  void watch_last();
  /// Stops watching; called by the watched thread, for its observers in any order. Does nothing if it does not watch the thread.
  void unwatch();

 private:
  Observer* outer_ = nullptr;
  std::uint64_t serial_ = 0;
};

/// Latest observer of this thread, or null.
inline constinit thread_local Observer* observer = nullptr;

/// Calls event(observer) for each observer of this thread.
template <class F>
void tell(F&& event) {
  for (Observer* told = observer; told; told = told->outer()) event(*told);
}

/// Scope that is reported to observers. Its end is reported to those that saw its begin and still watch.
class ObservedScope {
 public:
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;

 protected:
  ObservedScope() = default;
  ~ObservedScope() = default;
  bool is_observed() const { return latest_ != 0; }  ///< true if an observer watched when the scope began
  /// Calls event(observer) for each observer that saw the scope begin and still watches.
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

/// Scope of a kernel's call, from begin_kernel() to end_kernel(): opened by launch().
class KernelScope : ObservedScope {
 public:
  /// `op` is null if the kernel belongs to the op that is recorded next.
  explicit KernelScope(const char* op) : op_(op) {
    if (is_observed()) tell([](Observer& told) { told.begin_kernel(); });
  }
  ~KernelScope() {
    tell_end([this](Observer& told) { told.end_kernel(op_); });
  }

 private:
  const char* const op_;
};

/// Part of a training step, from begin_pass() to end_pass(): backward(), train::apply() and checkpoint() open theirs.
class PassScope : ObservedScope {
 public:
  /// `name` must outlive the observers' records: a literal.
  explicit PassScope(const char* name) {
    if (is_observed()) tell([&](Observer& told) { told.begin_pass(name); });
  }
  ~PassScope() {
    tell_end([](Observer& told) { told.end_pass(); });
  }
};

/// Called by kernels. A multiplication and an addition are two operations.
inline void count_flops(double flops, bool is_product) {
  if (observer) tell([&](Observer& told) { told.count_flops(flops, is_product); });
}

}  // namespace backend
}  // namespace tern
