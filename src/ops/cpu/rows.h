#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "ops/cpu/loops.h"
#include "tensor/sizes.h"

// Folds of runs and of rows, sums of a row and of the parts of a sum, and the conversion of a row as it is written.
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
template <class F, int Half, class Vector, int... Lane>
[[gnu::always_inline]] inline auto fold_register(Vector v, std::integer_sequence<int, Lane...> all) {
  if constexpr (Half == 0) {
    return v[0];
  } else {
    F::fold(v, Vector(__builtin_shufflevector(v, v, (Lane ^ Half)...)));
    return fold_register<F, Half / 2>(v, all);
  }
}
template <class F, class Vector>
[[gnu::always_inline]] inline auto fold_register(const Vector& v) {
  constexpr int lanes = int(sizeof(v) / sizeof(v[0]));
  return fold_register<F, lanes / 2>(v, std::make_integer_sequence<int, lanes>());
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
  F::fold(result, T(fold_register<F>(accumulators[0])));
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

/// A vector of N elements.
template <class T, int N>
using Lanes [[gnu::vector_size(N * sizeof(T))]] = T;
/// Position of a step of `sums` in an operand: one element, or a vector of them.
template <class Value>
struct At {
  std::int64_t i;
  template <class C>
  [[gnu::always_inline]] Value operator()(const C* operand) const {
    Value value;
    std::memcpy(&value, operand + i, sizeof value);
    return value;
  }
};

/// Deduced, because GCC drops the vector attribute if such a type is a template argument.
template <class Value>
[[gnu::always_inline]] inline At<Value> at_like(const Value&, std::int64_t i) {
  return {i};
}

/// Adds up the whole vectors in [i, n), and moves i past them.
template <int Bytes, int Accumulators, int Sums, class C, class Terms>
[[gnu::always_inline]] inline void sum_vectors(std::int64_t n, Terms& terms, std::int64_t& i, C (&totals)[Sums]) {
  typedef C Vector __attribute__((vector_size(Bytes)));
  constexpr int lanes = Bytes / int(sizeof(C)), step = lanes * Accumulators;
  if (n - i < step) return;
  Vector accumulators[Sums][Accumulators] = {};
  for (; n - i >= step; i += step) {
#pragma GCC unroll 8
    for (int k = 0; k < Accumulators; ++k) {
      const auto values = terms(at_like(accumulators[0][0], i + k * lanes));
#pragma GCC unroll 4
      for (int s = 0; s < Sums; ++s) accumulators[s][k] += values[s];
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < Sums; ++s) {
#pragma GCC unroll 8
    for (int k = 1; k < Accumulators; ++k) accumulators[s][0] += accumulators[s][k];
    totals[s] += fold_register<Sum>(accumulators[s][0]);
  }
}

/// Several sums in one pass over a row of n elements: terms(at) returns an array of the summands, where at(p) is the element of the operand
/// p, or a vector of elements. The order depends on n alone; blocks are added up in float64, so that the error of a long row is that of 64
/// additions, whatever the width of a vector.
template <int Sums, class C, class Terms>
[[gnu::always_inline]] inline std::array<double, Sums> sums(std::int64_t n, Terms&& terms) {
  constexpr int accumulators = 4;
  constexpr std::int64_t block = 64 * accumulators * vector_bytes / int(sizeof(C));
  std::array<double, Sums> results = {};
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t end = std::min(n, i + block);
    C totals[Sums] = {};
    sum_vectors<vector_bytes, accumulators>(end, terms, i, totals);
    sum_vectors<vector_bytes, 1>(end, terms, i, totals);
    if constexpr (vector_bytes > 16) sum_vectors<16, 1>(end, terms, i, totals);
    for (; i < end; ++i) {
      const auto values = terms(At<C>{i});
      for (int s = 0; s < Sums; ++s) totals[s] += values[s];
    }
    for (int s = 0; s < Sums; ++s) results[std::size_t(s)] += double(totals[s]);
  }
  return results;
}

/// y, whose elements are `stride` apart, = the sum of the parts' rows of `columns` elements, which are `pitch` apart, or that added to y.
template <class C, class S>
void sum_parts(const C* parts, std::int64_t count, std::int64_t pitch, std::int64_t columns, S* y, std::int64_t stride, Write write) {
  parallel_units(ceil_div(columns, chunk), chunk * count, stream_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * chunk; first < std::min(end * chunk, columns); first += chunk) {
      const std::int64_t n = std::min(chunk, columns - first);
      S* const to = y + first * stride;
      alignas(64) double totals[chunk] = {};
      for (std::int64_t part = 0; part < count; ++part) {
        const C* const values = parts + part * pitch + first;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) totals[i] += double(values[i]);
      }
      alignas(64) C rounded[chunk];
      if (write == Write::accumulate) {
        const C* const before = load(to, stride, n, rounded);
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) totals[i] += double(before[i]);
      }
      convert_run(totals, rounded, n);
      store(rounded, to, stride, n);
    }
  });
}

/// to[i] = value(i), of type C, for n elements. bf16 is rounded within the loop; f16 in a second loop, because the compiler does not
/// vectorize with its instruction, from the buffer, which value(i) may read.
template <class C, class S, class Value>
[[gnu::always_inline]] inline void write_row(S* to, std::int64_t n, C* buffer, Value&& value) {
  if constexpr (std::is_same_v<S, f16>) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = value(i);
    store(buffer, to, 1, n);
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) to[i] = convert<S>(value(i));
  }
}

template <class C>
inline constexpr std::int64_t lanes = vector_bytes / int(sizeof(C));

/// Rows of scores are computed in whole vectors: elements past their end are masked, and dropped.
template <class C>
constexpr std::int64_t whole_vectors(std::int64_t n) {
  return round_up(n, lanes<C>);
}

/// Largest of n scores in whole vectors; -inf if there are none. NaN, which has no order, may be ignored.
template <class C>
C largest(const C* scores, std::int64_t n) {
  typedef C Vector __attribute__((vector_size(vector_bytes), may_alias));
  const auto* const vectors = reinterpret_cast<const Vector*>(scores);
  const std::int64_t count = n / lanes<C>;
  if (count == 0) return -std::numeric_limits<C>::infinity();
  Vector first = vectors[0], second = first;
  std::int64_t i = 1;
  for (; i + 2 <= count; i += 2) {
    LargestNumber::fold(first, vectors[i]);
    LargestNumber::fold(second, vectors[i + 1]);
  }
  if (i < count) LargestNumber::fold(first, vectors[i]);
  LargestNumber::fold(first, second);
  return fold_register<LargestNumber>(first);
}

}  // namespace tern::loops
