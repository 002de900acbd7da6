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

/// The only ambient state, one per thread.
struct Context {
  bool grad = true;                                          ///< ops on tensors that require gradients are recorded
  MatmulPrecision matmul_precision = MatmulPrecision::fp32;  ///< of products that run now: backward's too, whatever forward had
  bool anomaly = false;                                      ///< every op's output is searched for NaN, which costs a wait per op
  void* cuda_stream = nullptr;                               ///< the cudaStream_t that work is queued on; null is the default stream
  Generator generator;                                       ///< the source of random positions
  Autocast* autocast = nullptr;                              ///< the innermost scope that chooses ops' dtypes; see ops/autocast.h
  Ref<RefCounted> lazy_zeros;                                ///< gradients that stand for zeros: see Note [Gradient sink]
  const ModuleScope* scope = nullptr;                        ///< the innermost running module
  const ModuleNames* names = nullptr;                        ///< paths of the modules under watch in anomaly mode

  /// The stream that work on a device is queued on.
  Stream stream(Device device) const { return {device, device.type == DeviceType::cuda ? cuda_stream : nullptr}; }
};

Context& context() noexcept;

/// Seeds this thread's random numbers, on every device.
inline void manual_seed(std::uint64_t seed) { context().generator.set_seed(seed); }

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
