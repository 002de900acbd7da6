#include "cuda/runtime/tensor_map.h"

namespace tern::gpu {

static CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  }
}

CUtensorMap tensor_map(const TmaTensor& tensor, const int* box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
          "cudaGetDriverEntryPoint");
    if (!function) fail_call(cudaErrorSymbolNotFound, "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  cuuint64_t sizes[5], strides[4];  // in bytes, from the second dimension on
  cuuint32_t box_sizes[5], element_strides[5];
  for (int i = 0; i < tensor.rank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(tensor.sizes[i]);
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(tensor.strides[i]) * size_of(tensor.dtype);
    element_strides[i] = static_cast<cuuint32_t>(tensor.steps[i]);
    box_sizes[i] = static_cast<cuuint32_t>(box[i]) * element_strides[i];  // the box as it lies in the tensor
  }
  const CUresult result = encode(&map, type_of(tensor.dtype), static_cast<cuuint32_t>(tensor.rank), const_cast<void*>(tensor.data), sizes,
                                 strides, box_sizes, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail_call(cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
  return map;
}

CUtensorMap tensor_map(const TmaMatrix& matrix, int box_inner, int box_outer) {
  const int box[] = {box_inner, box_outer};
  return tensor_map(TmaTensor{matrix.data, matrix.dtype, 2, {matrix.inner, matrix.outer}, {1, matrix.leading_dimension}}, box);
}

}  // namespace tern::gpu
