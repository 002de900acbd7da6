#pragma once
#include <cmath>
#include <type_traits>

#include "ops/kernels/vector_math.h"
#include "tensor/dtype.h"

// Math functions for functors (Note [Functors]). The CPU's float32 loops get forms that vectorize (Note [Vector math]); float64, and all
// device code, use <cmath>.
namespace tern::math {

#ifdef __CUDACC__
template <class T>
inline constexpr bool vectorises = false;
#else
template <class T>
inline constexpr bool vectorises = std::is_same_v<T, float>;
#endif

template <class T>
TERN_HOST_DEVICE T exp(T x) {
  if constexpr (vectorises<T>) return vector_math::exp(x);
  else return std::exp(x);
}
template <class T>
TERN_HOST_DEVICE T log(T x) {
  if constexpr (vectorises<T>) return vector_math::log(x);
  else return std::log(x);
}
/// log(1 + x), accurate near 0.
template <class T>
TERN_HOST_DEVICE T log1p(T x) {
  if constexpr (vectorises<T>) return vector_math::log1p(x);
  else return std::log1p(x);
}
template <class T>
TERN_HOST_DEVICE T tanh(T x) {
  if constexpr (vectorises<T>) return vector_math::tanh(x);
  else return std::tanh(x);
}
template <class T>
TERN_HOST_DEVICE T sigmoid(T x) {
  if constexpr (vectorises<T>) return vector_math::sigmoid(x);
  else return T(1) / (T(1) + std::exp(-x));
}
/// The standard normal distribution function.
template <class T>
TERN_HOST_DEVICE T normal_cdf(T x) {
  if constexpr (vectorises<T>) return vector_math::normal_cdf(x);
  else return T(0.5) * (T(1) + std::erf(x * T(0.70710678118654752440)));
}
template <class T>
TERN_HOST_DEVICE T erf(T x) {
  return std::erf(x);
}
template <class T>
TERN_HOST_DEVICE T sin(T x) {
  return std::sin(x);
}
template <class T>
TERN_HOST_DEVICE T cos(T x) {
  return std::cos(x);
}

}  // namespace tern::math
