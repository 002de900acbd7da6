#pragma once
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/cpu/loops.h"

namespace tern::loops {

/// Combination (fold) of two values, of numbers, or of vectors of numbers lane by lane. NaN propagates.
struct Sum {
  static constexpr bool wraps = true;
  template <class T> static constexpr T identity() { return T(0); }
  template <class V> static void fold(V& into, const V& x) { into += x; }
};
struct Product {
  static constexpr bool wraps = true;
  template <class T> static constexpr T identity() { return T(1); }
  template <class V> static void fold(V& into, const V& x) { into *= x; }
};
/// max without NaN handling: a single instruction, whose result for NaN depends on the order of the values.
struct LargestNumber {
  template <class V> static void fold(V& into, const V& x) { into = x > into ? x : into; }
};
struct SmallestNumber {
  template <class V> static void fold(V& into, const V& x) { into = x < into ? x : into; }
};
struct Largest {
  static constexpr bool wraps = false;
  using Number = LargestNumber;
  template <class T> static constexpr T identity() {
    if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::min();
    else return -std::numeric_limits<T>::infinity();
  }
  template <class V> static void fold(V& into, const V& x) { into = ((x > into) | (x != x)) ? x : into; }
};
struct Smallest {
  static constexpr bool wraps = false;
  using Number = SmallestNumber;
  template <class T> static constexpr T identity() {
    if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::max();
    else return std::numeric_limits<T>::infinity();
  }
  template <class V> static void fold(V& into, const V& x) { into = ((x < into) | (x != x)) ? x : into; }
};

/// Type in which values of type T are folded: sums and products of integers wrap, so they are unsigned; bool is a byte.
template <class F, class T>
using fold_t =
    typename std::conditional_t<std::is_same_v<T, bool>, std::type_identity<std::uint8_t>,
                                std::conditional_t<std::is_integral_v<T> && F::wraps, std::make_unsigned<T>, std::type_identity<T>>>::type;

/// Fold of the lanes of a vector, by halves.
template <class F, class T, int Bytes>
T fold_lanes(const T* lanes) {
  if constexpr (Bytes == sizeof(T)) {
    return *lanes;
  } else {
    typedef T Half __attribute__((vector_size(Bytes / 2)));
    Half low, high;
    std::memcpy(&low, lanes, sizeof low);
    std::memcpy(&high, lanes + Bytes / 2 / int(sizeof(T)), sizeof high);
    F::fold(low, high);
    return fold_lanes<F, T, Bytes / 2>(reinterpret_cast<const T*>(&low));
  }
}

/// Folds the whole vectors in [i, n) into result, and moves i past them. Interleaved accumulators hide the latency of an operation.
template <class F, class T, int Bytes, int Accumulators>
[[gnu::always_inline]] inline void fold_vectors(const T* x, std::int64_t n, std::int64_t& i, T& result) {
  typedef T Vector __attribute__((vector_size(Bytes)));
  typedef T Unaligned __attribute__((vector_size(Bytes), aligned(alignof(T))));
  constexpr int lanes = Bytes / int(sizeof(T)), step = lanes * Accumulators;
  if (n - i < step) return;
  Vector accumulators[Accumulators];
#pragma GCC unroll 8
  for (int k = 0; k < Accumulators; ++k) accumulators[k] = *reinterpret_cast<const Unaligned*>(x + i + k * lanes);
  for (i += step; n - i >= step; i += step) {
#pragma GCC unroll 8
    for (int k = 0; k < Accumulators; ++k) F::fold(accumulators[k], Vector(*reinterpret_cast<const Unaligned*>(x + i + k * lanes)));
  }
#pragma GCC unroll 8
  for (int k = 1; k < Accumulators; ++k) F::fold(accumulators[0], accumulators[k]);
  F::fold(result, fold_lanes<F, T, Bytes>(reinterpret_cast<const T*>(accumulators)));
}

/// Folds n contiguous values into result, in an order that depends on n alone.
template <class F, class T>
T fold_numbers(const T* x, std::int64_t n, T result) {
  std::int64_t i = 0;
  fold_vectors<F, T, vector_bytes, 4>(x, n, i, result);
  fold_vectors<F, T, vector_bytes, 1>(x, n, i, result);
  if constexpr (vector_bytes > 16) fold_vectors<F, T, 16, 1>(x, n, i, result);
  for (; i < n; ++i) F::fold(result, x[i]);
  return result;
}

/// Fold of n contiguous values.
template <class F, class T>
T fold_run(const T* values, std::int64_t n) {
  using U = fold_t<F, T>;
  const auto* const x = reinterpret_cast<const U*>(values);
  if constexpr (requires { typename F::Number; }) {
    // Two passes over a segment that is in the L1 cache cost less than a NaN check in every comparison.
    std::uint32_t has_nan = 0;
    for (std::int64_t i = 0; i < n; ++i) has_nan |= x[i] != x[i] ? 1u : 0u;
    if (has_nan) return std::numeric_limits<T>::quiet_NaN();
    return T(fold_numbers<typename F::Number>(x, n, F::template identity<U>()));
  } else {
    return T(fold_numbers<F>(x, n, F::template identity<U>()));
  }
}

/// Folds n values into n accumulators.
template <class F, class T>
void fold_columns(T* accumulators, const T* values, std::int64_t n) {
  using U = fold_t<F, T>;
  auto* const into = reinterpret_cast<U*>(accumulators);
  const auto* const x = reinterpret_cast<const U*>(values);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) F::fold(into[i], x[i]);
}

}  // namespace tern::loops
