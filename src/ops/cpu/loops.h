#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <type_traits>

#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#endif

#include "backend/memory.h"
#include "backend/threads.h"
#include "tensor/dispatch.h"
#include "tensor/layout.h"

namespace tern::loops {

/// Note [Chunks]: a kernel walks its operands in runs of at most `chunk` elements along one dimension. A run that is contiguous and of the
/// arithmetic's type is used in place; any other is gathered and converted into a buffer that stays in the L1 cache. So a function is
/// compiled once per arithmetic type, over plain pointers that vectorize, and strides and storage types cost one small loader each.
inline constexpr std::int64_t chunk = 1024;

/// Bytes of the widest registers, for the few kernels that use vector types.
#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif

/// Elements per thread below which a second thread costs more than it gains, for arithmetic that only streams memory and for functions such
/// as exp.
inline constexpr std::int64_t stream_grain = 16384, function_grain = 4096;

/// Calls f(begin, end) or f(begin, end, part) in parallel on `threads` even parts of [0, count); parts are numbered from 0, and each may
/// have its own memory. f must not throw.
template <class F>
void share(std::int64_t count, std::int64_t threads, F&& f) {
  const auto call = [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
    if (begin >= end) return;
    if constexpr (std::is_invocable_v<F, std::int64_t, std::int64_t, std::int64_t>) f(begin, end, thread);
    else f(begin, end);
  };
  const std::int64_t parts = std::max<std::int64_t>(threads, 1);
  backend::run_parts(static_cast<int>(parts), [&](int part) { call(count * part / parts, count * (part + 1) / parts, part); });
}

/// As share, for units of `unit` elements each, on as many threads as get `grain` elements each.
template <class F>
void parallel_units(std::int64_t count, std::int64_t unit, std::int64_t grain, F&& f) {
  share(count, std::min({std::int64_t(num_threads()), count, count * unit / grain}), f);
}
template <class F>
void parallel(std::int64_t count, std::int64_t grain, F&& f) {
  parallel_units(count, 1, grain, f);
}

/// Dynamic schedule: as share, but calls f(begin, end, thread) for at most `at_once` units at a time, and a free thread takes the next
/// ones, so that a thread that is delayed holds up no more than those. The assignment to threads is in no given order.
template <class F>
void share_dynamically(std::int64_t count, std::int64_t threads, std::int64_t at_once, F&& f) {
  std::atomic<std::int64_t> taken = 0;
  const std::int64_t team = std::clamp<std::int64_t>(count, 1, std::max<std::int64_t>(threads, 1));
  share(team, team, [&](std::int64_t, std::int64_t, std::int64_t thread) {
    for (std::int64_t begin = taken.fetch_add(at_once); begin < count; begin = taken.fetch_add(at_once))
      f(begin, std::min(count, begin + at_once), thread);
  });
}
/// The same unit by unit: calls f(unit, thread).
template <class F>
void share_dynamically(std::int64_t count, std::int64_t threads, F&& f) {
  share_dynamically(count, threads, 1, [&](std::int64_t unit, std::int64_t, std::int64_t thread) { f(unit, thread); });
}

/// Temporary memory of a kernel, from the tensors' allocator, which usually still has the block that the last call freed; aligned to 64
/// bytes. Allocate outside of parallel regions, because it may throw.
template <class T>
class Scratch {
 public:
  Scratch(std::int64_t count, const Stream& stream) : bytes_(static_cast<std::size_t>(count) * sizeof(T)), stream_(stream) {
    if (bytes_ > 0) data_ = static_cast<T*>(backend::allocate(Cpu{}, bytes_, stream_));
  }
  ~Scratch() {
    if (data_) backend::deallocate(Cpu{}, data_, bytes_, stream_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  std::size_t bytes_;
  Stream stream_;
};

/// Layout of operands of one shape, simplified: by the order of all of their strides, or in row-major order.
template <int N>
Layout<N> make_loop(const Shape& shape, const Strides (&operands)[N], DimOrder order = DimOrder::all_operands) {
  Layout<N> loop = layout_of(shape, operands);
  loop.simplify(order);
  return loop;
}

/// Calls f(offsets, n) for runs of at most `limit` elements along the innermost dimension; together they cover the elements [begin, end),
/// counted in the loop's own order. offsets[k] is the start of the run in operand k.
template <int N, class F>
void walk(const Layout<N>& loop, std::int64_t begin, std::int64_t end, std::int64_t limit, F&& f) {
  if (begin >= end) return;
  std::int64_t index[max_dims] = {}, offsets[N] = {};
  std::int64_t rest = begin;
  for (int d = 0; rest > 0; ++d) {
    index[d] = rest % loop.sizes[d];
    rest /= loop.sizes[d];
    for (int k = 0; k < N; ++k) offsets[k] += index[d] * loop.strides[k][d];
  }
  const int last = loop.dims - 1;
  while (begin < end) {
    const std::int64_t n = std::min({loop.sizes[0] - index[0], end - begin, limit});
    f(static_cast<const std::int64_t*>(offsets), n);
    begin += n;
    index[0] += n;
    for (int k = 0; k < N; ++k) offsets[k] += n * loop.strides[k][0];
    for (int d = 0; d < last && index[d] == loop.sizes[d]; ++d) {
      for (int k = 0; k < N; ++k) offsets[k] += loop.strides[k][d + 1] - loop.sizes[d] * loop.strides[k][d];
      index[d] = 0;
      ++index[d + 1];
    }
  }
}

/// walk over all elements, shared among threads.
template <int N, class F>
void parallel_walk(const Layout<N>& loop, std::int64_t grain, std::int64_t limit, F&& f) {
  parallel(loop.numel(), grain, [&](std::int64_t begin, std::int64_t end) { walk(loop, begin, end, limit, f); });
}

/// Converts a number to T: rounded for floats, truncated and clamped for integers (NaN: 0), != 0 for bool.
template <class T>
T from_number(double number) {
  if constexpr (std::is_same_v<T, bool>) return number != 0;
  else if constexpr (std::is_integral_v<T>) {
    using limits = std::numeric_limits<T>;
    // The upper bound as a double may be one more than the largest T.
    if (!(number > double(limits::min()))) return number != number ? T(0) : limits::min();
    return number >= double(limits::max()) ? limits::max() : T(number);
  } else if constexpr (std::is_same_v<T, double>) return number;
  else return T(float(number));
}

/// Converts an element to another type: as from_number for floats to integers, otherwise as C++ does.
template <class To, class From>
[[gnu::always_inline]] inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) return value;
  else if constexpr (!std::is_arithmetic_v<From>) return convert<To>(float(value));
  else if constexpr (std::is_same_v<To, bool>) return value != From(0);
  else if constexpr (!std::is_arithmetic_v<To>) return To(float(value));
  else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) return from_number<To>(double(value));
  else return static_cast<To>(value);
}

/// Converts n contiguous elements to another type.
template <class To, class From>
inline void convert_run(const From* from, To* to, std::int64_t n) {
  std::int64_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
  // The bit arithmetic of dtype.h has too many branches for the vectorizer; the processor has an instruction.
  if constexpr (std::is_same_v<From, f16> && std::is_same_v<To, float>) {
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, f16>) {
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
#pragma omp simd
  for (std::int64_t j = i; j < n; ++j) to[j] = convert<To>(from[j]);
}

/// Loader and storer of strided runs that convert; they vectorize badly and take many instructions. Out of line: inlined, every kernel
/// would contain one for each pair of types.
template <class C, class S>
[[gnu::noinline]] void gather(const S* from, std::int64_t stride, std::int64_t n, C* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = convert<C>(from[i * stride]);
}
template <class C, class S>
[[gnu::noinline]] void scatter(const C* from, S* to, std::int64_t stride, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i * stride] = convert<S>(from[i]);
}

/// n elements as contiguous C: in place, or gathered into the buffer.
template <class C, class S>
inline const C* load(const S* from, std::int64_t stride, std::int64_t n, C* buffer) {
  if (stride == 1 || n == 1) {
    if constexpr (std::is_same_v<C, S>) return from;
    else convert_run(from, buffer, n);
  } else if (stride == 0) {
    std::fill_n(buffer, n, convert<C>(*from));
  } else if constexpr (std::is_same_v<C, S>) {
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = from[i * stride];
  } else {
    gather(from, stride, n, buffer);
  }
  return buffer;
}

/// Memory in which to compute n elements that belong at `to`: there, or the buffer, from which `store` copies them.
template <class C, class S>
inline C* target(S* to, std::int64_t stride, std::int64_t n, C* buffer) {
  if constexpr (std::is_same_v<C, S>)
    if (stride == 1 || n == 1) return to;
  return buffer;
}

template <class C, class S>
inline void store(const C* from, S* to, std::int64_t stride, std::int64_t n) {
  if constexpr (std::is_same_v<C, S>)
    if (from == to) return;
  if (stride == 1) {
    convert_run(from, to, n);
    return;
  }
  if constexpr (std::is_same_v<C, S>)
    for (std::int64_t i = 0; i < n; ++i) to[i * stride] = from[i];
  else scatter(from, to, stride, n);
}

}  // namespace tern::loops
