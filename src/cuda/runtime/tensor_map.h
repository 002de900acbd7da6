#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

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

/// Whether the program holds a wgmma kernel with its body: the body is compiled for sm_90a and not for sm_90, and has static shared memory.
template <class... Parameters>
bool has_sm90a_body(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) == cudaSuccess && attributes.sharedSizeBytes > 0;
}

}  // namespace tern::gpu
