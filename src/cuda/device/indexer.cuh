#pragma once
#include <cstdint>

#include "tensor/sizes.h"

// Index arithmetic: from an element's index to its offset in strided memory. (The host builds these from a tensor/layout.h.)
namespace tern {
template <int n>
struct Layout;
}

namespace tern::gpu {

/// Division by a number that is constant in a launch: a multiplication and a shift, where the hardware's integer division takes some twenty
/// instructions. Exact for n < 2^31. Granlund & Montgomery, "Division by invariant integers", PLDI 1994.
struct Divider {
  std::uint32_t divisor = 1, magic = 1, shift = 0;

  Divider() = default;
  /// A divisor of 0 is replaced by 1: there are no elements then.
  explicit Divider(std::int64_t divisor_) : divisor(static_cast<std::uint32_t>(divisor_ > 1 ? divisor_ : 1)) {
    while ((std::uint64_t(1) << shift) < divisor) ++shift;
    magic = static_cast<std::uint32_t>((((std::uint64_t(1) << shift) - divisor) << 32) / divisor + 1);
  }

  __device__ __forceinline__ std::uint32_t divide(std::uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

/// A Layout as a kernel takes it: the dimensions, innermost first, with the strides of every operand in elements.
template <int n>
struct Indexer {
  int dims = 0;
  Divider sizes[max_dims];
  std::int64_t strides[n][max_dims] = {};

  Indexer() = default;
  Indexer(const Layout<n>& layout) : dims(layout.dims) {
    for (int d = 0; d < dims; ++d) {
      sizes[d] = Divider(layout.sizes[d]);
      for (int i = 0; i < n; ++i) strides[i][d] = layout.strides[i][d];
    }
  }

  /// Offsets of element number `index` in every operand.
  __device__ __forceinline__ void locate(std::uint32_t index, std::int64_t (&offsets)[n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) offsets[i] = 0;
    // Not unrolled: usually there are one to three dimensions, and code for eight would take minutes to compile.
#pragma unroll 1
    for (int d = 0; d + 1 < dims; ++d) {
      const std::uint32_t rest = sizes[d].divide(index);
      const std::int64_t here = index - rest * sizes[d].divisor;
#pragma unroll
      for (int i = 0; i < n; ++i) offsets[i] += here * strides[i][d];
      index = rest;
    }
#pragma unroll
    for (int i = 0; i < n; ++i) offsets[i] += std::int64_t(index) * strides[i][dims - 1];
  }
};

}  // namespace tern::gpu
