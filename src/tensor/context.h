#pragma once
#include <cstdint>
#include <utility>

#include "backend/device.h"
#include "tensor/random.h"
#include "tensor/storage.h"

namespace tern {

/// Frame of the chain of modules whose forward is running; see autodiff/anomaly.h.
struct ModuleFrame;
class ModuleNames;
class Autocast;
class SavedTensorHooks;
struct ForwardLevel;

/// Precision of float32 matrix products on a GPU; other dtypes and the CPU have only one.
enum class MatmulPrecision : std::uint8_t {
  fp32,    ///< strict: float32 multiplications and sums
  tf32,    ///< on tensor cores, from operands rounded to 11 bits
  tf32x3,  ///< as accurate as fp32, by three tensor-core products where that is faster (on Hopper); else fp32
};

/// The state of a thread, and the only ambient state that a result depends on. A new thread begins with the values below, not with
/// those of the thread that started it: gradients are recorded, there is no autocast, and the seed is 0 (docs/threads.md).
struct Context {
  /// Diagnosis: what errors say, and check.
  struct Diagnosis {
    const ModuleFrame* module = nullptr;  ///< innermost running module
    const ModuleNames* names = nullptr;   ///< paths of modules, in anomaly mode or with a memory history
    bool anomaly = false;                 ///< check every op's output for NaN and Inf, which costs a wait per op
  };
  /// Kernels: which of several ways an op takes to its result. All give the same up to rounding.
  struct Kernels {
    bool fused = true;                                         ///< ops that have both run fused kernels, not compositions: FusedKernels
    bool autotune = true;                                      ///< time a GPU's algorithms for a new kind of product: NoAutotune
    MatmulPrecision matmul_precision = MatmulPrecision::fp32;  ///< precision of products that run now, also in backward
  };
  /// Forward mode: what jvp asks of ops.
  struct Tangents {
    ForwardLevel* level = nullptr;  ///< innermost jvp whose tangents ops carry if `grad`; see autodiff/forward.cpp
    bool only = false;              ///< ops carry tangents, but are not recorded
  };

  bool grad = true;                                ///< ops on tensors that require gradients are recorded
  Kernels kernels;                                 ///< see Kernels; threads that work for this one take them over
  bool recording = false;                          ///< work is being captured in a graph, whose replays use the same memory
  void* cuda_streams[max_cuda_devices + 1] = {};   ///< current cudaStream_t of each device, null for the default; the last: none
  Device factory_device = cpu;                     ///< device of new tensors, unless one is given; see DeviceScope
  Generator generator;                             ///< this thread's random number generator
  Autocast* autocast = nullptr;                    ///< innermost Autocast scope; see ops/autocast.h
  Diagnosis diagnosis;                             ///< the running module, its name, anomaly mode
  Ref<RefCounted> leaf_writer;                     ///< LeafWriter of this thread, or null: see Note [Gradient sink]
  SavedTensorHooks* saved_tensor_hooks = nullptr;  ///< pack the tensors that ops save for backward; see autodiff/node.h
  Tangents tangents;                               ///< of a running jvp

  /// Current stream of a device. For an index beyond the last device, the failure is at the first use.
  Stream stream(Device device) const { return {device, has_stream(device) ? cuda_streams[device.index] : nullptr}; }
  /// Handle of a device's current stream, for replacement; for a device without streams, one that is never read.
  void*& stream_slot(Device device) { return cuda_streams[has_stream(device) ? device.index : max_cuda_devices]; }

 private:
  static bool has_stream(Device device) { return device.type == DeviceType::cuda && device.index >= 0 && device.index < max_cuda_devices; }
};

/// This thread's context, created at the first call.
Context& context() noexcept;

/// Number of changes that ops cannot see: a parameter that is frozen or gets other memory. What keeps an earlier run of a function
/// (compile/compile.h) begins anew after one.
std::uint64_t mode_changes() noexcept;
/// Counts such a change.
void count_mode_change() noexcept;

/// Device on which this thread's factories, random tensors and modules are created if none is given: the CPU outside of a DeviceScope.
inline Device default_device() { return context().factory_device; }

/// Seeds this thread's random numbers, on every device. Other threads keep their own seed, and a new thread has seed 0: threads that do not
/// set different seeds draw equal numbers (docs/threads.md).
inline void manual_seed(std::uint64_t seed) { context().generator.set_seed(seed); }

/// Link of the thread's chain of scopes: the part of the context that a scope has replaced.
struct ScopeLink {
  static inline thread_local ScopeLink* innermost = nullptr;  ///< the last scope opened on this thread that is not ended, or null

  const void* slot = nullptr;  ///< address of the part
  ScopeLink* outer = nullptr;  ///< scope that was opened before, or null
};

/// Scope in which a part of the thread's context has another value. Scopes may end in any order, as those on the heap do: the value is that
/// of the innermost one alive. A scope must end in the thread that opened it.
template <class T>
class ScopedValue : private ScopeLink {
 public:
  /// Sets a part of context() to the value.
  ScopedValue(T& slot_, T value) : ScopeLink{&slot_, innermost}, place_(slot_), before_(std::exchange(slot_, value)) { innermost = this; }
  ~ScopedValue() {
    ScopedValue* inner = nullptr;  // the next inner scope of this slot: it restores this scope's outer value from now on
    ScopeLink** link = &innermost;
    for (; *link && *link != this; link = &(*link)->outer)
      if ((*link)->slot == slot) inner = static_cast<ScopedValue*>(*link);
    if (*link) *link = outer;
    (inner ? inner->before_ : place_) = before_;
  }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

  const T& before() const { return before_; }  ///< value that is restored

 private:
  T& place_;
  T before_;
};

/// Scope in which new tensors of this thread are created on a device if none is given: by factories, random tensors, Tensor::from and
/// modules. Ops create their results on the device of their operands.
class DeviceScope {
 public:
  /// Applies to this thread: docs/threads.md.
  explicit DeviceScope(Device device) : device_(context().factory_device, device) {}

 private:
  ScopedValue<Device> device_;
};

/// Scope in which work on the stream's device is queued on that stream.
class StreamScope {
 public:
  /// The stream must outlive the scope, and be one of a device that this build supports.
  explicit StreamScope(Stream stream) : device_(stream.device), handle_(context().stream_slot(stream.device), stream.handle) {}
  /// The stream that was current before.
  Stream outer() const { return {device_, handle_.before()}; }

 private:
  Device device_;
  ScopedValue<void*> handle_;
};

/// Scope in which tensors of this thread hold these rows of a batch, and random numbers are those that the whole batch would draw.
class BatchRowsScope {
 public:
  /// Rows of one rank, as parallel::DataParallel divides a batch.
  explicit BatchRowsScope(const BatchRows& rows) : before_(context().generator.rows()) { context().generator.set_rows(rows); }
  ~BatchRowsScope() { context().generator.set_rows(before_); }
  BatchRowsScope(const BatchRowsScope&) = delete;
  BatchRowsScope& operator=(const BatchRowsScope&) = delete;

 private:
  BatchRows before_;
};

/// Scope in which ops are recorded if `grad`, and are not recorded otherwise.
class GradMode {
 public:
  /// true records, also within a NoGrad.
  explicit GradMode(bool grad) : grad_(context().grad, grad) {}

 private:
  ScopedValue<bool> grad_, tangents_only_{context().tangents.only, false};
};

/// Scope in which ops are not recorded, and carry no tangents within jvp.
class NoGrad : GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

/// Scope without autocast: for backward passes, and for parts of a model that need their own dtypes.
class NoAutocast {
 public:
  NoAutocast() : autocast_(context().autocast, nullptr) {}

 private:
  ScopedValue<Autocast*> autocast_;
};

/// Scope in which ops with fused kernels (norms, attention, swiglu, linear_gelu, ...) run these if `fused`, and otherwise are composed of
/// other ops, as is their reference. A thread begins with fused kernels. What is recorded keeps its form in backward, and a checkpointed
/// function runs again as it ran.
class FusedKernels {
 public:
  /// true chooses fused kernels, also within a PlainKernels.
  explicit FusedKernels(bool fused = true) : fused_(context().kernels.fused, fused) {}

 private:
  ScopedValue<bool> fused_;
};

/// Scope in which ops are composed of others where they could run a fused kernel.
class PlainKernels : FusedKernels {
 public:
  PlainKernels() : FusedKernels(false) {}
};

/// Scope in which a new kind of product on a GPU uses the algorithm that cuBLASLt ranks first. If shapes depend on the data, as in
/// decoding, no kind of product occurs often enough to be worth timing. See Note [Choice of algorithms].
class NoAutotune {
 public:
  NoAutotune() : autotune_(context().kernels.autotune, false) {}

 private:
  ScopedValue<bool> autotune_;
};

/// Scope in which float32 products on a GPU are computed in this precision.
class MatmulPrecisionMode {
 public:
  /// Applies to this thread's products, those of a backward pass included.
  explicit MatmulPrecisionMode(MatmulPrecision precision) : precision_(context().kernels.matmul_precision, precision) {}

 private:
  ScopedValue<MatmulPrecision> precision_;
};

}  // namespace tern
