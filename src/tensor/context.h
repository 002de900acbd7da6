#pragma once
#include <cstdint>
#include <utility>

#include "backend/device.h"
#include "tensor/random.h"
#include "tensor/ref.h"

namespace tern {

/// A link of the chain of modules whose forward is running; see autodiff/anomaly.h.
struct ModuleFrame;
class ModuleNames;
class Autocast;
struct ScopeLink;
class LeafWriter;
class SavedTensorHooks;
struct ForwardLevel;

/// Something that is to be done when no op is in the midst of reading its operands.
class AfterOp {
 public:
  /// Called once, in the thread of the op, when its kernels are queued; the pointer in the context is null by then.
  virtual void after_op() = 0;

 protected:
  ~AfterOp() = default;
};

/// How float32 matrix products are computed on a GPU; other dtypes and the CPU know one way.
enum class MatmulPrecision : std::uint8_t {
  fp32,    ///< strict: float32 multiplications and sums
  tf32,    ///< on tensor cores, from operands rounded to 11 bits
  tf32x3,  ///< as exact as fp32, by three products on tensor cores where that is faster (on Hopper); else fp32
};

/// The only ambient state that a result depends on, one per thread. A new thread begins with the values below: it records, knows no
/// autocast, and draws from seed 0, whatever the thread that started it has (docs/threads.md).
struct Context {
  bool grad = true;                                          ///< ops on tensors that require gradients are recorded
  MatmulPrecision matmul_precision = MatmulPrecision::fp32;  ///< of products that run now: backward's too, whatever forward had
  bool autotune = true;                                      ///< a GPU's algorithms for a new kind of product are timed; see NoAutotune
  bool recording = false;                                    ///< work is recorded in a graph, whose replays find memory where it is now
  bool anomaly = false;                                      ///< every op's output is searched for NaN and Inf, which costs a wait per op
  void* cuda_streams[max_cuda_devices] = {};       ///< of each device, the cudaStream_t that work is queued on; null is the default one
  Device factory_device = cpu;                     ///< where new tensors are made unless told; see DeviceScope
  Generator generator;                             ///< the source of random positions
  Autocast* autocast = nullptr;                    ///< the innermost scope that chooses ops' dtypes; see ops/autocast.h
  Ref<RefCounted> lazy_zeros;                      ///< gradients that stand for zeros: see Note [Gradient sink]
  const ModuleFrame* scope = nullptr;              ///< the innermost running module
  const ModuleNames* names = nullptr;              ///< paths of modules, in anomaly mode or under a memory history
  ScopeLink* scopes = nullptr;                     ///< the innermost scope that holds a part of this
  LeafWriter* leaf_writer = nullptr;               ///< of the innermost backward pass that adds to leaves
  SavedTensorHooks* saved_tensor_hooks = nullptr;  ///< take what ops save for backward; see autodiff/saved_tensor.h
  ForwardLevel* forward = nullptr;                 ///< the innermost jvp whose tangents ops carry while `grad`; see autodiff/forward.h
  bool tangents_only = false;                      ///< ops carry tangents, but are not recorded
  AfterOp* after_op = nullptr;                     ///< called once, by the op that runs or the next one, when its kernels are queued

  /// The stream that work on a device is queued on. A device beyond the last one fails where it is first used.
  Stream stream(Device device) const { return {device, has_stream(device) ? cuda_streams[device.index] : nullptr}; }
  /// From now on work on the stream's device is queued there. The CPU has but one.
  void set_stream(Stream stream) {
    if (has_stream(stream.device)) cuda_streams[stream.device.index] = stream.handle;
  }
  /// The handle of the current stream of a device, to be replaced; of a device without streams, one that is never read.
  void*& stream_slot(Device device) { return has_stream(device) ? cuda_streams[device.index] : no_stream_; }

 private:
  void* no_stream_ = nullptr;
  static bool has_stream(Device device) { return device.type == DeviceType::cuda && device.index >= 0 && device.index < max_cuda_devices; }
};

/// This thread's, made when the thread first asks.
Context& context() noexcept;

/// The device that factories, random tensors and modules of this thread are made on where none is named: the CPU outside of a DeviceScope.
inline Device default_device() { return context().factory_device; }

/// Seeds this thread's random numbers, on every device. Other threads keep their own seed, and a new thread has seed 0: threads that draw
/// without seeding draw equal numbers (docs/threads.md).
inline void manual_seed(std::uint64_t seed) { context().generator.set_seed(seed); }

/// A link of the thread's chain of scopes, innermost first: which part of the context a scope holds.
struct ScopeLink {
  const void* slot = nullptr;  ///< address of the part
  ScopeLink* outer = nullptr;  ///< the scope opened before, or null
};

/// While it lives, a part of the thread's context has another value. Scopes may end in any order, as those on the heap do: the value is
/// that of the innermost one alive. One must end in the thread that opened it.
template <class T>
class ScopedValue : private ScopeLink {
 public:
  /// Puts the value in a part of context().
  ScopedValue(T& slot_, T value) : ScopeLink{&slot_, context().scopes}, place_(slot_), before_(std::exchange(slot_, value)) {
    context().scopes = this;
  }
  ~ScopedValue() {
    ScopedValue* inner = nullptr;  // which goes back to this one's value, and from now on to the one before
    ScopeLink** link = &context().scopes;
    for (; *link && *link != this; link = &(*link)->outer)
      if ((*link)->slot == slot) inner = static_cast<ScopedValue*>(*link);
    if (*link) *link = outer;
    (inner ? inner->before_ : place_) = before_;
  }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

  const T& before() const { return before_; }  ///< value that comes back

 private:
  T& place_;
  T before_;
};

/// While it lives, new tensors of this thread are made on a device unless another is named: factories, random tensors, Tensor::from and
/// the parameters of modules. Ops make their results where their operands are.
class DeviceScope {
 public:
  /// Of this thread: docs/threads.md.
  explicit DeviceScope(Device device) : device_(context().factory_device, device) {}

 private:
  ScopedValue<Device> device_;
};

/// While it lives, work on the stream's device is queued on that stream.
class StreamScope {
 public:
  /// The stream must outlive the scope, and be of a device that this build has.
  explicit StreamScope(Stream stream) : device_(stream.device), handle_(context().stream_slot(stream.device), stream.handle) {}
  /// The stream that was in use before.
  Stream outer() const { return {device_, handle_.before()}; }

 private:
  Device device_;
  ScopedValue<void*> handle_;
};

/// While it lives, tensors of this thread are of these rows of a batch, and random numbers are drawn as the whole batch would draw them.
class BatchRowsScope {
 public:
  /// Rows as dist::DataParallel divides a batch: each rank has some.
  explicit BatchRowsScope(const BatchRows& rows) : before_(context().generator.rows()) { context().generator.set_rows(rows); }
  ~BatchRowsScope() { context().generator.set_rows(before_); }
  BatchRowsScope(const BatchRowsScope&) = delete;
  BatchRowsScope& operator=(const BatchRowsScope&) = delete;

 private:
  BatchRows before_;
};

/// While it lives, ops are recorded if it was given true, and are not if false.
class GradMode {
 public:
  /// True records, within a NoGrad too.
  explicit GradMode(bool grad) : grad_(context().grad, grad) {}

 private:
  ScopedValue<bool> grad_, tangents_only_{context().tangents_only, false};
};

/// While it lives, ops are not recorded, and within jvp carry no tangents.
class NoGrad : GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

/// While it lives, no autocast is in force: backward passes, and parts of a model that need their own dtypes.
class NoAutocast {
 public:
  NoAutocast() : autocast_(context().autocast, nullptr) {}

 private:
  ScopedValue<Autocast*> autocast_;
};

/// While it lives, a new kind of product on a GPU gets the algorithm that cuBLASLt ranks first: where shapes follow the data, as in
/// decoding, a product does not come often enough to be worth timing. See Note [Choice of algorithms].
class NoAutotune {
 public:
  NoAutotune() : autotune_(context().autotune, false) {}

 private:
  ScopedValue<bool> autotune_;
};

/// While it lives, float32 products on a GPU are computed in this precision.
class MatmulPrecisionMode {
 public:
  /// Of this thread's products, those of a backward pass included.
  explicit MatmulPrecisionMode(MatmulPrecision precision) : precision_(context().matmul_precision, precision) {}

 private:
  ScopedValue<MatmulPrecision> precision_;
};

}  // namespace tern
