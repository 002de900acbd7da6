#pragma once
#include <cstdint>

namespace tern {

struct Device;

namespace backend {

/// What watches the work of a thread: a profiler (profile/profiler.h). Each room below tells it what it alone knows, in a call that costs a
/// load and a branch where nobody watches: on() that a kernel runs, `record` which op that was, ModuleScope where, the backward pass for
/// which node, and a training step in which pass. No result depends on it.
class Observer {
 public:
  virtual ~Observer() = default;

  /// A kernel's call on the CPU, or its launch on a GPU, begins and ends. Calls within calls are not told. `op` names all of an op that
  /// nothing else will name, or is null: the kernel then belongs to the op that is recorded next.
  virtual void begin_kernel(Device device) = 0;
  virtual void end_kernel(const char* op) = 0;
  /// Floating-point operations of the kernel that runs.
  virtual void count_flops(double flops, bool is_product) = 0;
  /// The op that an in-place edit is; its kernel is the next one.
  virtual void begin_in_place(const char* op) = 0;
  /// An op is done whose operands and results have so many bytes.
  virtual void end_op(const char* op, double bytes) = 0;

  virtual void begin_module(const void* module, const char* type) = 0;
  virtual void end_module() = 0;
  /// A number for the innermost running module, for begin_backward.
  virtual std::uint32_t module() = 0;
  /// The gradient of an op that a module's forward recorded.
  virtual void begin_backward(const char* op, std::uint32_t module) = 0;
  virtual void end_backward(double bytes) = 0;

  /// "forward", "backward", "optimizer", "recompute", "communication", or a user's own.
  virtual void begin_pass(const char* name) = 0;
  virtual void end_pass() = 0;
};

/// That of this thread, or null.
inline constinit thread_local Observer* observer = nullptr;

/// A scope that an observer is told of. It ends for the observer that it began for, if that still watches.
class ObservedScope {
 public:
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;

 protected:
  ObservedScope() = default;
  ~ObservedScope() = default;
  Observer* ending() const { return observer_ && observer_ == observer ? observer_ : nullptr; }

  Observer* const observer_ = observer;
};

class KernelScope : ObservedScope {
 public:
  KernelScope(Device device, const char* op);
  ~KernelScope() {
    if (Observer* const told = ending()) told->end_kernel(op_);
  }

 private:
  const char* const op_;
};

class PassScope : ObservedScope {
 public:
  explicit PassScope(const char* name) {
    if (observer_) observer_->begin_pass(name);
  }
  ~PassScope() {
    if (Observer* const told = ending()) told->end_pass();
  }
};

/// To be called by a kernel. A multiplication and an addition are two.
inline void count_flops(double flops, bool is_product) {
  if (observer) observer->count_flops(flops, is_product);
}

}  // namespace backend
}  // namespace tern
