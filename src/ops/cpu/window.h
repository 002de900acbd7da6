#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/cpu/gemm.h"
#include "ops/kernels/conv.h"
#include "tensor/sizes.h"

namespace tern::loops {

/// The positions [begin, end) along a dimension whose element under a tap is inside of the image, and the element under position 0.
struct Reach {
  std::int64_t begin, end, first;

  Reach(std::int64_t tap, std::int64_t size, const kernels::WindowAxis& axis) : first(tap * axis.dilation - axis.padding) {
    begin = first < 0 ? std::min(axis.positions, ceil_div(-first, axis.stride)) : 0;
    end = first < size ? std::clamp(ceil_div(size - first, axis.stride), begin, axis.positions) : begin;
  }
};

template <class T, int Lanes, class F>
[[gnu::always_inline]] inline void each_edge(std::int64_t n, std::int64_t i, F& f) {
  typedef T Vector __attribute__((vector_size(Lanes * sizeof(T))));
  if (n & Lanes) {
    f.template operator()<Vector>(i);
    i += Lanes;
  }
  if constexpr (Lanes > 1) each_edge<T, Lanes / 2>(n, i, f);
}
/// Calls f.operator()<Vector>(i) for the elements [0, n) in whole vectors and then, by powers of two, in shorter ones: rows of images are
/// often shorter than a vector.
template <class T, class F>
[[gnu::always_inline]] inline void each_vector(std::int64_t n, F f) {
  constexpr int lanes = gemm::lanes<T>;
  std::int64_t i = 0;
  for (; n - i >= lanes; i += lanes) f.template operator()<typename gemm::VectorOf<T>::type>(i);
  each_edge<T, lanes / 2>(n, i, f);
}
template <class V, class T>
[[gnu::always_inline]] inline V load_vector(const T* from) {
  V x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
template <class V, class T>
[[gnu::always_inline]] inline void store_vector(const V& x, T* to) {
  std::memcpy(to, &x, sizeof x);
}

/// into[i] += from[i].
template <class T>
void add_run(const T* from, T* into, std::int64_t count) {
  each_vector<T>(count, [=]<class V>(std::int64_t i) { store_vector(load_vector<V>(into + i) + load_vector<V>(from + i), into + i); });
}
template <class S, class T>
void add_run(const S* from, T* into, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) into[i] += T(from[i]);
}

}  // namespace tern::loops
