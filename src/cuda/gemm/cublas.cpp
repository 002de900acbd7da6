#include "cuda/gemm/cublas.h"

#include <mutex>
#include <vector>

#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"

// A handle serves one thread at a time, and its workspace one stream: so each thread has a handle for each stream. A thread that ends
// leaves its handles to the next one; none is ever destroyed, since at process exit that would be a call into a runtime that may be gone.
namespace tern::gpu {

namespace {

struct Entry {
  Stream stream;
  cublasHandle_t handle = nullptr;
  bool serves(Stream other) const { return stream.handle == other.handle && stream.device == other.device; }
};

struct Pool {
  std::mutex mutex;
  std::vector<Entry> entries;
};
Pool& pool() {
  static auto& instance = *new Pool;
  return instance;
}

struct ThreadHandles {
  std::vector<Entry> entries;
  ~ThreadHandles() {
    const std::lock_guard lock(pool().mutex);
    pool().entries.insert(pool().entries.end(), entries.begin(), entries.end());
  }
};

Entry take_or_create(Stream stream) {
  {
    const std::lock_guard lock(pool().mutex);
    auto& entries = pool().entries;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!entries[i].serves(stream)) continue;
      const Entry entry = entries[i];
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(i));
      return entry;
    }
  }
  Entry entry{stream};
  void* workspace = nullptr;
  if (cudaMalloc(&workspace, cublas_workspace_bytes) != cudaSuccess) {
    cudaGetLastError();
    release_cached_memory();
    check(cudaMalloc(&workspace, cublas_workspace_bytes), "workspace of cuBLAS");
  }
  check(cublasCreate(&entry.handle), "cublasCreate");
  check(cublasSetStream(entry.handle, handle(stream)), "cublasSetStream");
  check(cublasSetWorkspace(entry.handle, workspace, cublas_workspace_bytes), "cublasSetWorkspace");
  // The partial sums of a split-K GEMM of 16-bit floats would otherwise be added in 16 bits.
  const auto math = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  check(cublasSetMathMode(entry.handle, math), "cublasSetMathMode");
  return entry;
}

}  // namespace

void check(cublasStatus_t code, const char* what) {
  if (code != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    fail("cuda", std::string(what) + ": " + cublasGetStatusString(code));
}

cublasHandle_t cublas(Stream stream) {
  thread_local ThreadHandles handles;
  use(stream);
  for (const Entry& entry : handles.entries)
    if (entry.serves(stream)) return entry.handle;
  handles.entries.push_back(take_or_create(stream));
  return handles.entries.back().handle;
}

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
