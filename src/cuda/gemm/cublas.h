#pragma once
#include <cublas_v2.h>

#include "backend/device.h"
#include "tensor/context.h"
#include "tensor/dtype.h"

namespace tern::gpu {

/// Throws Error, `[cuda] what: the library's words`, unless the call succeeded.
void check(cublasStatus_t code, const char* what);

/// This thread's cuBLAS handle for the stream, with a workspace of its own; its device is made current.
cublasHandle_t cublas(Stream stream);

/// Workspace that cuBLAS recommends for sm_90.
inline constexpr std::size_t cublas_workspace_bytes = std::size_t(32) << 20;

cudaDataType_t cuda_type(DType dtype);
/// The arithmetic of a GEMM; `precision` is float32's. 16-bit floats are summed in float32.
cublasComputeType_t compute_type(DType dtype, MatmulPrecision precision);

/// alpha or beta of a GEMM: cuBLAS reads a double for float64, a float for the other types.
class GemmScale {
 public:
  GemmScale(double value, DType dtype) : double_(value), float_(static_cast<float>(value)), is_double_(dtype == DType::f64) {}
  const void* data() const { return is_double_ ? static_cast<const void*>(&double_) : &float_; }

 private:
  double double_;
  float float_;
  bool is_double_;
};

}  // namespace tern::gpu
