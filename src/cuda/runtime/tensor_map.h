#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/runtime/launch.h"
#include "tensor/dtype.h"

namespace tern::gpu {

/// A matrix for TMA: `outer` lines of `inner` contiguous elements.
struct TmaMatrix {
  const void* data;
  DType dtype;
  std::int64_t inner, outer, leading_dimension;  ///< in elements; the last from line to line
};
/// The tensor map by which TMA loads boxes of the matrix. A line of a box has 128 bytes, and is swizzled as wgmma reads it. Throws Error
/// where the driver refuses.
CUtensorMap tensor_map(const TmaMatrix& matrix, int box_inner, int box_outer);

/// Whether there is one: TMA reads lines that begin at multiples of 16 bytes.
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
/// Likewise for boxes of a tensor, of so many elements each way; box[i] steps[i] is at most 256.
CUtensorMap tensor_map(const TmaTensor& tensor, const int* box);

/// Whether the device runs a wgmma kernel of ours: it has compute capability 9, and the program was built for sm_90a, without which the
/// kernel has no body and no static shared memory.
template <class... Parameters>
bool runs_wgmma_kernel(void (*kernel)(Parameters...), Device device) {
  if (attribute(cudaDevAttrComputeCapabilityMajor, device) != 9) return false;
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) == cudaSuccess && attributes.sharedSizeBytes > 0;
}

}  // namespace tern::gpu
