#pragma once
#include <type_traits>

#include "tensor/half.h"

namespace tern {

/// n / step rounded up, for integers n >= 0 and step > 0, in their common type: the number of steps that cover n.
template <class N, class Step>
TERN_HOST_DEVICE constexpr std::common_type_t<N, Step> ceil_div(N n, Step step) {
  using C = std::common_type_t<N, Step>;
  return (C(n) + C(step) - C(1)) / C(step);
}

/// The smallest multiple of `step` that is at least n; the integers as ceil_div takes them.
template <class N, class Step>
TERN_HOST_DEVICE constexpr std::common_type_t<N, Step> round_up(N n, Step step) {
  return ceil_div(n, step) * std::common_type_t<N, Step>(step);
}

}  // namespace tern
