#pragma once
#include <array>
#include <cstring>
#include <utility>

#include "ops/cpu/fold.h"
#include "tensor/sizes.h"

// Sums of a row, and its conversion as it is written, for kernels that process a row at a time.
namespace tern::loops {

/// Fold of the lanes of a vector by halves, as fold_lanes, but in registers: rows are short.
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
/// p, or a vector of elements. The order depends on n alone; blocks are added up in float64, so that the error of a long row is that of a
/// block.
template <int Sums, class C, class Terms>
[[gnu::always_inline]] inline std::array<double, Sums> sums(std::int64_t n, Terms&& terms) {
  constexpr std::int64_t block = 4096;
  std::array<double, Sums> results = {};
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t end = std::min(n, i + block);
    C totals[Sums] = {};
    sum_vectors<vector_bytes, 4>(end, terms, i, totals);
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
