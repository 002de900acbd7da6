#pragma once
#include <cstdint>

#include "backend/device.h"
#include "tensor/random.h"
#include "tensor/ref.h"

namespace tern {

/// A link of the chain of modules whose forward is running; see autodiff/anomaly.h.
struct ModuleScope;
class ModuleNames;
class Autocast;

/// How float32 matrix products are computed on a GPU; other dtypes and the CPU know one way.
enum class MatmulPrecision : std::uint8_t {
  fp32,    ///< strict: float32 multiplications and sums
  tf32,    ///< on tensor cores, from operands rounded to 11 bits
  tf32x3,  ///< as exact as fp32, by three products on tensor cores where that is faster (on Hopper); else fp32
};

/// The only ambient state that a result depends on, one per thread.
struct Context {
  bool grad = true;                                          ///< ops on tensors that require gradients are recorded
  MatmulPrecision matmul_precision = MatmulPrecision::fp32;  ///< of products that run now: backward's too, whatever forward had
  bool anomaly = false;                                      ///< every op's output is searched for NaN, which costs a wait per op
  void* cuda_streams[max_cuda_devices] = {};  ///< of each device, the cudaStream_t that work is queued on; null is the default one
  Generator generator;                        ///< the source of random positions
  Autocast* autocast = nullptr;               ///< the innermost scope that chooses ops' dtypes; see ops/autocast.h
  Ref<RefCounted> lazy_zeros;                 ///< gradients that stand for zeros: see Note [Gradient sink]
  const ModuleScope* scope = nullptr;         ///< the innermost running module
  const ModuleNames* names = nullptr;         ///< paths of the modules under watch in anomaly mode

  /// The stream that work on a device is queued on. A device beyond the last one fails where it is first used.
  Stream stream(Device device) const { return {device, has_stream(device) ? cuda_streams[device.index] : nullptr}; }
  /// From now on work on the stream's device is queued there. The CPU has but one.
  void set_stream(Stream stream) {
    if (has_stream(stream.device)) cuda_streams[stream.device.index] = stream.handle;
  }

 private:
  static bool has_stream(Device device) { return device.type == DeviceType::cuda && device.index >= 0 && device.index < max_cuda_devices; }
};

Context& context() noexcept;

/// Seeds this thread's random numbers, on every device.
inline void manual_seed(std::uint64_t seed) { context().generator.set_seed(seed); }

/// While it lives, work on the stream's device is queued on that stream.
class StreamScope {
 public:
  explicit StreamScope(Stream stream) : before_(context().stream(stream.device)) { context().set_stream(stream); }
  ~StreamScope() { context().set_stream(before_); }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
  /// The stream that was in use before.
  Stream outer() const { return before_; }

 private:
  Stream before_;
};

/// While it lives, ops are not recorded.
class NoGrad {
 public:
  NoGrad() { context().grad = false; }
  ~NoGrad() { context().grad = before_; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_ = context().grad;
};

/// While it lives, ops are recorded or not, as told.
class GradMode {
 public:
  explicit GradMode(bool grad) { context().grad = grad; }
  ~GradMode() { context().grad = before_; }
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool before_ = context().grad;
};

/// While it lives, no autocast is in force: backward passes, and parts of a model that need their own dtypes.
class NoAutocast {
 public:
  NoAutocast() { context().autocast = nullptr; }
  ~NoAutocast() { context().autocast = before_; }
  NoAutocast(const NoAutocast&) = delete;
  NoAutocast& operator=(const NoAutocast&) = delete;

 private:
  Autocast* before_ = context().autocast;
};

/// While it lives, float32 products on a GPU are computed as told.
class MatmulPrecisionMode {
 public:
  explicit MatmulPrecisionMode(MatmulPrecision precision) { context().matmul_precision = precision; }
  ~MatmulPrecisionMode() { context().matmul_precision = before_; }
  MatmulPrecisionMode(const MatmulPrecisionMode&) = delete;
  MatmulPrecisionMode& operator=(const MatmulPrecisionMode&) = delete;

 private:
  MatmulPrecision before_ = context().matmul_precision;
};

}  // namespace tern
