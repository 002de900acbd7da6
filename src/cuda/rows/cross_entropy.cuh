#pragma once
#include <bit>

#include "cuda/device/group.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/launch.h"

// Rows of logits: how threads share one, read it in vectors, and sum its exponentials.
namespace tern::gpu::loss {

/// e^x; of floats by the instruction for powers of 2. x is a difference of logits: taken before the product with log2(e), it is as good for
/// large logits as for small ones.
__device__ __forceinline__ float power(float x) {
  constexpr float log2_e = 1.44269504088896341f;
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * log2_e));
  return result;
}
__device__ __forceinline__ double power(double x) { return std::exp(x); }
__device__ __forceinline__ float exponent_of(float x) { return logf(x); }
__device__ __forceinline__ double exponent_of(double x) { return std::log(x); }

// Threads of a block: to read, many rows at a time are best, and to write, long stretches of few.
inline constexpr unsigned reading_threads = 256, writing_threads = 512;
// Vectors that a thread asks for at once, and how often it does so in a row that is not too long for that.
inline constexpr unsigned unroll = 4, rounds = 4;

template <class T>
inline constexpr int width = 16 / sizeof(T);  ///< elements of a vector

template <class T>
__device__ __forceinline__ unsigned largest_pair(unsigned a, unsigned b) {
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>) asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  else asm("max.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

/// A vector whose exponentials are 0.
template <class T>
__device__ __forceinline__ uint4 lowest() {
  constexpr unsigned halves = std::is_same_v<T, bf16> ? 0xff80ff80u : 0xfc00fc00u;
  if constexpr (is_half<T>) return {halves, halves, halves, halves};
  else if constexpr (std::is_same_v<T, float>) return {0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u};
  else return {0, 0xfff00000u, 0, 0xfff00000u};
}

/// The largest number of some vectors, NaN left out. 16-bit ones are compared two at a time.
template <class C, class T>
__device__ __forceinline__ C largest(const uint4 (&words)[unroll]) {
  if constexpr (is_half<T>) {
    unsigned top = words[0].x;
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u)
      top = largest_pair<T>(top, largest_pair<T>(largest_pair<T>(words[u].x, words[u].y), largest_pair<T>(words[u].z, words[u].w)));
    const auto halves = std::bit_cast<Vector<T, 2>>(top);
    return fmax(convert<C>(halves.values[0]), convert<C>(halves.values[1]));
  } else {
    C top = -std::numeric_limits<C>::infinity();
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u) {
      C values[width<T>];
      unpack<T>(words[u], values);
#pragma unroll
      for (const C value : values) top = fmax(top, value);
    }
    return top;
  }
}

/// How far a thread is in its part of a row: the largest logit, and the sums of e^(logit - top) and of the logits, where they are wanted.
/// No logits yet: any lower bound but -inf, whose difference to itself is NaN.
template <class C>
struct Sums {
  C top = C(-0x1p100), powers = 0, logits = 0;

  /// Rescales only where the maximum rises, once for many logits.
  __device__ void raise(C to) {
    if (to <= top) return;
    powers *= power(top - to);
    top = to;
  }
  __device__ C lse() const { return top + exponent_of(powers); }
};

template <class C>
struct SumsOp {
  using Accumulator = Sums<C>;
  static __device__ Sums<C> identity() { return {}; }
  /// The same to the last bit for (b, a), as all lanes of a warp go on with their own result.
  static __device__ Sums<C> combine(const Sums<C>& a, const Sums<C>& b) {
    const C factor = a.top == b.top ? C(1) : power(-fabs(a.top - b.top));
    const bool rises = a.top < b.top;
    return {fmax(a.top, b.top), fma(rises ? a.powers : b.powers, factor, rises ? b.powers : a.powers), a.logits + b.logits};
  }
};
template <class C>
__device__ __forceinline__ Sums<C> shuffle_xor(const Sums<C>& a, unsigned step) {
  return {gpu::shuffle_xor(a.top, step), gpu::shuffle_xor(a.powers, step), gpu::shuffle_xor(a.logits, step)};
}

/// The combination of the values of a row's threads, a warp or the block, in all of them. Once in a kernel.
template <class Op>
__device__ __forceinline__ typename Op::Accumulator combine_row(typename Op::Accumulator value, unsigned threads) {
  __shared__ typename Op::Accumulator parts[writing_threads / 32];
  const auto combine_warp = [&] {
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2) value = Op::combine(value, shuffle_xor(value, step));
  };
  combine_warp();
  if (threads == 32) return value;
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < threads / 32 ? parts[threadIdx.x % 32] : Op::identity();
  combine_warp();
  return value;
}

/// The logits of a call. C is float for short floats, else double; losses, weights and gradients of losses have that type.
template <class C, class T>
struct Rows {
  const T* x;
  std::int64_t count, columns, stride;
  const std::int64_t* targets;
  const C* weights;  ///< null: all 1
  C sharp, smoothing;
  std::int64_t ignore_index;
  unsigned threads;  ///< that share a row: 32, or the block's
};

/// A thread's share of a row. Vectors begin at an aligned address, in long rows at one where a line of memory begins; the elements before
/// the first and behind the last of them, fewer than there are threads, go to the first threads.
template <class T>
struct Share {
  std::int64_t n;
  unsigned lane, threads, head, tail, vectors;
  const T* row;

  template <class C>
  __device__ explicit Share(const Rows<C, T>& rows)
      : n(std::int64_t(blockIdx.x) * (blockDim.x / rows.threads) + threadIdx.x / rows.threads),
        lane(threadIdx.x % rows.threads),
        threads(rows.threads),
        row(rows.x + n * rows.stride) {
    const unsigned boundary = threads > 32 ? 128 : 16, misaligned = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(row) % boundary);
    head = static_cast<unsigned>(min(rows.columns, std::int64_t((boundary - misaligned) % boundary / sizeof(T))));
    vectors = static_cast<unsigned>((rows.columns - head) / width<T>);
    tail = static_cast<unsigned>((rows.columns - head) % width<T>);
  }

  /// Whether there is a vector u of the round that begins with `first`.
  __device__ bool has(unsigned first, unsigned u) const { return first + u * threads < vectors; }
  __device__ unsigned next(unsigned first) const { return first + unroll * threads; }
  __device__ std::int64_t place(unsigned first, unsigned u) const { return head + std::int64_t(first + u * threads) * width<T>; }

  __device__ __forceinline__ void read(unsigned first, uint4 (&words)[unroll]) const {
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u) words[u] = has(first, u) ? *reinterpret_cast<const uint4*>(row + place(first, u)) : lowest<T>();
  }

  /// Calls f with the places of the single elements that are this thread's.
  template <class F>
  __device__ __forceinline__ void for_singles(F&& f) const {
    if (lane < head) f(std::int64_t(lane));
    if (lane < tail) f(head + std::int64_t(vectors) * width<T> + lane);
  }

  /// Whether element i is this thread's.
  __device__ bool owns(std::int64_t i) const {
    const std::int64_t in_middle = i - head, behind = in_middle - std::int64_t(vectors) * width<T>;
    return lane == (in_middle < 0 ? i : behind >= 0 ? behind : in_middle / width<T> % threads);
  }
};

/// A thread's vectors of a row. Where `held`, all of them stay in registers from the reading on; else those of one round do, and to come
/// back to an earlier one is to read it again.
template <class T, bool held>
struct Held {
  uint4 words[held ? rounds : 1][unroll];

  __device__ explicit Held(const Share<T>& share) { restart(share); }
  __device__ void restart(const Share<T>& share) {
#pragma unroll
    for (unsigned r = 0; r < (held ? rounds : 1); ++r) share.read(share.lane + r * unroll * share.threads, words[r]);
  }
  /// Calls f(first, words) for each round.
  template <class F>
  __device__ __forceinline__ void for_rounds(const Share<T>& share, F&& f) {
    if constexpr (held) {
#pragma unroll
      for (unsigned r = 0; r < rounds; ++r) f(share.lane + r * unroll * share.threads, words[r]);
    } else {
      for (unsigned first = share.lane; first < share.vectors; first = share.next(first)) {
        if (first != share.lane) share.read(first, words[0]);
        f(first, words[0]);
      }
    }
  }
};

}  // namespace tern::gpu::loss
