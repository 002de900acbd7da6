#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace tern::gpu {

/// What the copy engine of Hopper is told of a matrix: lines of `inner` elements, `leading` apart, `outer` of them, and the box of lines
/// and their elements that a copy brings. A line of a box has 128 bytes, and is swizzled as wgmma reads it. Throws Error where the driver
/// refuses.
struct Matrix {
  const void* data;
  DType dtype;
  std::int64_t inner, outer, leading;  ///< in elements
};
CUtensorMap tensor_map(const Matrix& matrix, int box_inner, int box_outer);

/// Whether the program holds a kernel for wgmma with its body, which asks for the architecture 90a and not 90: with it, it has shared
/// memory.
template <class... Parameters>
bool has_body(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) == cudaSuccess && attributes.sharedSizeBytes > 0;
}

}  // namespace tern::gpu
