#pragma once
#include "cuda/device/math.cuh"
#include "cuda/device/row.cuh"

// Rows of logits, of any length: a warp or a block streams a row in rounds of four vectors per thread, and reduces it by an online softmax.
//
//   row   ... |x x x|vvvv|vvvv|vvvv|vvvv| ... |vvvv|x x ...     x: single elements before the first and after the last vector
//             head   vector 0  1    2    3          n-1  tail
//   round r of thread t: vectors t + (4 r + u) threads, u = 0 .. 3, all loaded before the first is used
namespace tern::gpu::loss {

// Threads of a block: for reading, many rows at a time are best, for writing, long stretches of few rows.
inline constexpr unsigned reading_threads = 256, writing_threads = 512;
// Vectors that a thread loads at once, and how many times in a row that is not too long for that.
inline constexpr unsigned unroll = 4, rounds = 4;

template <class T>
inline constexpr int width = vec16_width<T>;  ///< elements of a vector

template <class T>
__device__ __forceinline__ unsigned max_of_pairs(unsigned a, unsigned b) {
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>) asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  else asm("max.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

/// Maximum of the elements of some vectors, which ignores NaN. 16-bit elements are compared two at a time.
template <class C, class T>
__device__ __forceinline__ C max_of_vectors(const uint4 (&vectors)[unroll]) {
  if constexpr (is_half<T>) {
    unsigned top = vectors[0].x;
#pragma unroll
    for (const uint4& v : vectors) top = max_of_pairs<T>(top, max_of_pairs<T>(max_of_pairs<T>(v.x, v.y), max_of_pairs<T>(v.z, v.w)));
    C low, high;
    unpack_pair<T>(top, low, high);
    return fmax(low, high);
  } else {
    C top = -std::numeric_limits<C>::infinity();
#pragma unroll
    for (const uint4& vector : vectors) {
      C values[width<T>];
      unpack<T>(vector, values);
#pragma unroll
      for (const C value : values) top = fmax(top, value);
    }
    return top;
  }
}

/// State of an online softmax (Milakov & Gimelshein, 2018): the running maximum, the sum of e^(logit - max), and the sum of the logits, for
/// label smoothing. Initially max is any lower bound but -inf, whose difference to itself is NaN.
template <class C>
struct OnlineSoftmax {
  C max = C(-0x1p100), exp_sum = 0, logit_sum = 0;

  /// Rescales only if the maximum increases, once for many logits.
  __device__ void raise_max(C to) {
    if (to <= max) return;
    exp_sum *= exp_approx(max - to);
    max = to;
  }
  __device__ C log_sum_exp() const { return max + log(exp_sum); }
};

template <class C>
struct OnlineSoftmaxOp {
  using Accumulator = OnlineSoftmax<C>;
  static __device__ Accumulator identity() { return {}; }
  /// Commutative to the last bit, because each lane of a warp continues with its own result.
  static __device__ Accumulator combine(const Accumulator& a, const Accumulator& b) {
    const C factor = a.max == b.max ? C(1) : exp_approx(-fabs(a.max - b.max));
    const bool rises = a.max < b.max;
    return {fmax(a.max, b.max), fma(rises ? a.exp_sum : b.exp_sum, factor, rises ? b.exp_sum : a.exp_sum), a.logit_sum + b.logit_sum};
  }
};
template <class C>
__device__ __forceinline__ OnlineSoftmax<C> shuffle_xor(const OnlineSoftmax<C>& a, unsigned step) {
  return {gpu::shuffle_xor(a.max, step), gpu::shuffle_xor(a.exp_sum, step), gpu::shuffle_xor(a.logit_sum, step)};
}

/// Logits of a call. C is float for short floats, else double; losses, weights and gradients of losses have that type.
template <class C, class T>
struct LogitRows {
  const T* x;
  std::int64_t count, columns, stride;
  const std::int64_t* targets;
  const C* weights;         ///< null: all 1
  C smoothing, confidence;  ///< confidence: 1 - smoothing, the target's weight
  std::int64_t ignore_index;
};

/// A thread's part of a row. Vectors begin at an aligned address, in a block's rows at the start of a cache line; the head and the tail,
/// with fewer elements than there are threads, belong to the first threads.
template <class T>
struct RowStream {
  std::int64_t row;
  unsigned lane, threads, head, tail, vectors;
  const T* logits;

  template <class C>
  __device__ RowStream(const RowThread<true>& thread, const LogitRows<C, T>& rows)
      : row(thread.first_row()), lane(thread.thread()), threads(thread.size()), logits(rows.x + row * rows.stride) {
    const unsigned boundary = threads > 32 ? 128 : 16;
    const unsigned misaligned = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(logits) % boundary);
    head = static_cast<unsigned>(min(rows.columns, std::int64_t((boundary - misaligned) % boundary / sizeof(T))));
    vectors = static_cast<unsigned>((rows.columns - head) / width<T>);
    tail = static_cast<unsigned>((rows.columns - head) % width<T>);
  }

  /// True if vector u of the round that begins with `first` exists.
  __device__ bool has(unsigned first, unsigned u) const { return first + u * threads < vectors; }
  __device__ unsigned next(unsigned first) const { return first + unroll * threads; }
  __device__ std::int64_t column(unsigned first, unsigned u) const { return head + std::int64_t(first + u * threads) * width<T>; }

  /// Reads a round; vectors that do not exist have exponentials of 0.
  __device__ __forceinline__ void read(unsigned first, uint4 (&packed)[unroll]) const {
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u)
      packed[u] = has(first, u) ? read_packed<width<T>>(logits + column(first, u))
                                : broadcast<width<T>>(convert<T>(-std::numeric_limits<float>::infinity()));
  }

  /// Calls f with the columns of the head and the tail that belong to this thread.
  template <class F>
  __device__ __forceinline__ void for_singles(F&& f) const {
    if (lane < head) f(std::int64_t(lane));
    if (lane < tail) f(head + std::int64_t(vectors) * width<T> + lane);
  }

  /// True if a column belongs to this thread.
  __device__ bool owns(std::int64_t c) const {
    const std::int64_t in_vectors = c - head, in_tail = in_vectors - std::int64_t(vectors) * width<T>;
    return lane == (in_vectors < 0 ? c : in_tail >= 0 ? in_tail : in_vectors / width<T> % threads);
  }
};

/// A thread's vectors of a row. in_registers: all of them stay in registers from the first pass on; otherwise only those of one round do,
/// and a second pass reads the row again, from a cache.
template <class T, bool in_registers>
struct RowCache {
  uint4 packed[in_registers ? rounds : 1][unroll];

  __device__ explicit RowCache(const RowStream<T>& stream) { restart(stream); }
  __device__ void restart(const RowStream<T>& stream) {
#pragma unroll
    for (unsigned r = 0; r < (in_registers ? rounds : 1); ++r) stream.read(stream.lane + r * unroll * stream.threads, packed[r]);
  }
  /// Calls f(first, vectors) for each round.
  template <class F>
  __device__ __forceinline__ void for_rounds(const RowStream<T>& stream, F&& f) {
    if constexpr (in_registers) {
#pragma unroll
      for (unsigned r = 0; r < rounds; ++r) f(stream.lane + r * unroll * stream.threads, packed[r]);
    } else {
      for (unsigned first = stream.lane; first < stream.vectors; first = stream.next(first)) {
        if (first != stream.lane) stream.read(first, packed[0]);
        f(first, packed[0]);
      }
    }
  }
};

}  // namespace tern::gpu::loss
