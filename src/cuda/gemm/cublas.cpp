#include "cuda/gemm/cublas.h"

#include "cuda/runtime/allocator.h"
#include "cuda/runtime/handle_pool.h"
#include "cuda/runtime/launch.h"

namespace tern::gpu {

namespace {

cublasHandle_t create_handle(Stream stream) {
  void* workspace = nullptr;
  if (cudaMalloc(&workspace, cublas_workspace_bytes) != cudaSuccess) {
    cudaGetLastError();
    release_cached_memory();
    check(cudaMalloc(&workspace, cublas_workspace_bytes), "workspace of cuBLAS");
  }
  cublasHandle_t created = nullptr;
  check(cublasCreate(&created), "cublasCreate");
  check(cublasSetStream(created, handle(stream)), "cublasSetStream");
  check(cublasSetWorkspace(created, workspace, cublas_workspace_bytes), "cublasSetWorkspace");
  // The partial sums of a split-K GEMM of 16-bit floats would otherwise be added in 16 bits.
  const auto math = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  check(cublasSetMathMode(created, math), "cublasSetMathMode");
  return created;
}

}  // namespace

void check(cublasStatus_t code, const char* what) {
  if (code != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    fail("cuda", std::string(what) + ": " + cublasGetStatusString(code));
}

cublasHandle_t cublas(Stream stream) { return HandlePool<cublasHandle_t>::handle_for(stream, create_handle); }

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::f64: return CUDA_R_64F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: fail("matmul", std::string("expected a floating dtype but got ") + name(dtype));
  }
}

cublasComputeType_t compute_type(DType dtype, MatmulPrecision precision) {
  if (dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  return dtype == DType::f32 && precision == MatmulPrecision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

}  // namespace tern::gpu
