#pragma once
#include <type_traits>

#ifdef __CUDACC__
#define TERN_HOST_DEVICE __host__ __device__
#else
#define TERN_HOST_DEVICE
#endif

// Sizes: the arithmetic of counts, on the host and in kernels.
namespace tern {

/// Maximal number of dimensions of a tensor.
inline constexpr int max_dims = 8;

/// n / step rounded up: the number of steps that cover n. For integers n >= 0 and step > 0, in their common type.
template <class N, class Step>
TERN_HOST_DEVICE constexpr std::common_type_t<N, Step> ceil_div(N n, Step step) {
  using C = std::common_type_t<N, Step>;
  return (C(n) + C(step) - C(1)) / C(step);
}

/// Smallest multiple of `step` that is at least n; for the same integers as ceil_div.
template <class N, class Step>
TERN_HOST_DEVICE constexpr std::common_type_t<N, Step> round_up(N n, Step step) {
  return ceil_div(n, step) * std::common_type_t<N, Step>(step);
}

}  // namespace tern
