#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/runtime/launch.h"
#include "tensor/dtype.h"

namespace tern::gpu {

/// True if TMA can read lines at this address and leading dimension: both are multiples of 16 bytes.
inline bool has_tensor_map(const void* data, DType dtype, std::int64_t leading_dimension) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && leading_dimension * static_cast<std::int64_t>(size_of(dtype)) % 16 == 0;
}

/// Tensor of `rank` dimensions for TMA, the innermost first and contiguous; the other strides, in elements, are multiples of 16 bytes.
struct TmaTensor {
  const void* data;
  DType dtype;
  int rank;
  std::int64_t sizes[5], strides[5];  ///< strides[0] is 1
  int steps[5] = {1, 1, 1, 1, 1};     ///< traversal strides: a box takes every steps[i]-th element, at most 8; steps[0] is 1
};
/// Tensor map for TMA loads of boxes of box[i] elements in dimension i; box[i] steps[i] is at most 256. A line of a box has 128 bytes, with
/// the 128-byte swizzle that wgmma reads. Throws Error if the driver refuses it.
inline CUtensorMap tensor_map(const TmaTensor& tensor, const int* box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
          "cudaGetDriverEntryPoint");
    if (!function) fail_call(cudaErrorSymbolNotFound, "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const auto type = tensor.dtype == DType::f32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                    : tensor.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                  : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map;
  cuuint64_t sizes[5], strides[4];  // in bytes, from the second dimension on
  cuuint32_t box_sizes[5], element_strides[5];
  for (int i = 0; i < tensor.rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(tensor.sizes[i]);
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(tensor.strides[i]) * size_of(tensor.dtype);
    element_strides[i] = static_cast<cuuint32_t>(tensor.steps[i]);
    box_sizes[i] = static_cast<cuuint32_t>(box[i]) * element_strides[i];  // extent of the box in the tensor
  }
  const CUresult result = encode(&map, type, static_cast<cuuint32_t>(tensor.rank), const_cast<void*>(tensor.data), sizes, strides,
                                 box_sizes, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail_call(cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
  return map;
}

/// Matrix for TMA: `outer` lines of `inner` contiguous elements, `leading_dimension` elements apart.
struct TmaMatrix {
  const void* data;
  DType dtype;
  std::int64_t inner, outer, leading_dimension;
};
inline CUtensorMap tensor_map(const TmaMatrix& matrix, int box_inner, int box_outer) {
  const int box[] = {box_inner, box_outer};
  return tensor_map(TmaTensor{matrix.data, matrix.dtype, 2, {matrix.inner, matrix.outer}, {1, matrix.leading_dimension}}, box);
}

/// True if the device can run our wgmma kernel: it has compute capability 9, and the program was built for sm_90a, without which the kernel
/// has no body and no static shared memory.
template <class... Parameters>
bool runs_wgmma_kernel(void (*kernel)(Parameters...), Device device) {
  if (attribute(cudaDevAttrComputeCapabilityMajor, device) != 9) return false;
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) == cudaSuccess && attributes.sharedSizeBytes > 0;
}

}  // namespace tern::gpu
