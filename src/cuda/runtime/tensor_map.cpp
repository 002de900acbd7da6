#include "cuda/runtime/tensor_map.h"

namespace tern::gpu {

static CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  }
}

CUtensorMap tensor_map(const TmaMatrix& matrix, int box_inner, int box_outer) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
          "cudaGetDriverEntryPoint");
    if (!function) fail_call(cudaErrorSymbolNotFound, "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.inner), static_cast<cuuint64_t>(matrix.outer)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.leading_dimension) * size_of(matrix.dtype)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_inner), static_cast<cuuint32_t>(box_outer)}, every[] = {1, 1};
  const CUresult result =
      encode(&map, type_of(matrix.dtype), 2, const_cast<void*>(matrix.data), sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail_call(cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace tern::gpu
