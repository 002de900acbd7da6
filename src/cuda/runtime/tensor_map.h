#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/runtime/launch.h"
#include "tensor/dtype.h"

namespace tern::gpu {

/// Whether TMA can read lines that begin at the address and at multiples of the leading dimension after it: multiples of 16 bytes.
inline bool has_tensor_map(const void* data, DType dtype, std::int64_t leading_dimension) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && leading_dimension * static_cast<std::int64_t>(size_of(dtype)) % 16 == 0;
}

/// A tensor of `rank` dimensions for TMA, the innermost first and contiguous; the others' strides, in elements, are multiples of 16 bytes.
struct TmaTensor {
  const void* data;
  DType dtype;
  int rank;
  std::int64_t sizes[5], strides[5];  ///< strides[0] is 1
  int steps[5] = {1, 1, 1, 1, 1};     ///< every so-many-th element of a dimension is in a box, 8 at most; steps[0] is 1
};
/// The tensor map by which TMA loads boxes of the tensor, of so many elements each way; box[i] steps[i] is at most 256. A line of a box has
/// 128 bytes, and is swizzled as wgmma reads it. Throws Error where the driver refuses.
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
    box_sizes[i] = static_cast<cuuint32_t>(box[i]) * element_strides[i];  // the box as it lies in the tensor
  }
  const CUresult result = encode(&map, type, static_cast<cuuint32_t>(tensor.rank), const_cast<void*>(tensor.data), sizes, strides,
                                 box_sizes, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail_call(cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
  return map;
}

/// Likewise of a matrix: `outer` lines of `inner` contiguous elements, from line to line `leading_dimension` of them.
struct TmaMatrix {
  const void* data;
  DType dtype;
  std::int64_t inner, outer, leading_dimension;
};
inline CUtensorMap tensor_map(const TmaMatrix& matrix, int box_inner, int box_outer) {
  const int box[] = {box_inner, box_outer};
  return tensor_map(TmaTensor{matrix.data, matrix.dtype, 2, {matrix.inner, matrix.outer}, {1, matrix.leading_dimension}}, box);
}

/// Whether the device runs a wgmma kernel of ours: it has compute capability 9, and the program was built for sm_90a, without which the
/// kernel has no body and no static shared memory.
template <class... Parameters>
bool runs_wgmma_kernel(void (*kernel)(Parameters...), Device device) {
  if (attribute(cudaDevAttrComputeCapabilityMajor, device) != 9) return false;
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) == cudaSuccess && attributes.sharedSizeBytes > 0;
}

}  // namespace tern::gpu
