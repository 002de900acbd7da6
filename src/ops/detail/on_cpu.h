#pragma once
#include "tensor/tensor.h"

namespace tern::detail {

/// Calls f with the CPU's tag: for kernels that only the CPU has, where an op is composed of others elsewhere. on_cuda is its counterpart.
template <class F>
void on_cpu(F&& f) {
  const backend::KernelScope observed(nullptr);
  f(Cpu{});
}

/// True if such kernels take x: on the CPU, f32 or f64.
inline bool has_cpu_kernel(const Tensor& x) {
  return x.device().type == DeviceType::cpu && (x.dtype() == DType::f32 || x.dtype() == DType::f64);
}

/// True if matmul supports x's dtype on its device: floats on every device, integers (not bool) only on the CPU.
inline bool matmul_takes(const Tensor& x) {
  return is_floating(x.dtype()) || (x.device().type == DeviceType::cpu && x.dtype() != DType::boolean);
}

}  // namespace tern::detail
