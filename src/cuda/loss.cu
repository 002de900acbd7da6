#include <bit>

#include "cuda/allocator.h"
#include "cuda/convert.cuh"
#include "cuda/launch.h"
#include "cuda/warp.cuh"
#include "ops/kernels/loss.h"

// Cross-entropy of rows of logits, from five classes to any number. A warp or a block takes a row: its loss is one reading, the gradient one
// reading and one writing, and both together are two readings of which the second finds the row in a cache. What counts is bytes on
// their way from memory: a thread asks for four vectors of 16 bytes before it looks at the first, and for its first ones before it knows the
// row's target; and a thread has several such rounds of a row, so that the end of a row, where threads wait for each other, is seldom.
namespace tern::kernels {

using namespace gpu;

namespace {

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

/// Vectors stay in the form in which they are read and written, one instruction for each; structures of 16-bit numbers would be taken apart.
template <class T, class C>
__device__ __forceinline__ void unpack(const uint4& word, C (&values)[width<T>]) {
  if constexpr (is_half<T>) {
    const unsigned registers[] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      T low, high;
      low.bits = static_cast<std::uint16_t>(registers[k]);
      high.bits = static_cast<std::uint16_t>(registers[k] >> 16);
      values[2 * k] = widen(low);
      values[2 * k + 1] = widen(high);
    }
  } else {
    const auto elements = std::bit_cast<Vector<T, width<T>>>(word);
#pragma unroll
    for (int k = 0; k < width<T>; ++k) values[k] = elements.values[k];
  }
}

/// Two 16-bit numbers of a register, by one instruction.
template <class T>
__device__ __forceinline__ unsigned pair(float low, float high) {
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
template <class T>
__device__ __forceinline__ unsigned largest_pair(unsigned a, unsigned b) {
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>) asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  else asm("max.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

template <class T, class C>
__device__ __forceinline__ uint4 pack(const C (&values)[width<T>]) {
  if constexpr (is_half<T>) {
    return {pair<T>(values[0], values[1]), pair<T>(values[2], values[3]), pair<T>(values[4], values[5]), pair<T>(values[6], values[7])};
  } else {
    Vector<T, width<T>> elements;
#pragma unroll
    for (int k = 0; k < width<T>; ++k) elements.values[k] = values[k];
    return std::bit_cast<uint4>(elements);
  }
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

/// How far a thread is in its part of a row: the largest logit, and the sums of e^(logit - top) and of the logits, where they are wanted. No
/// logits yet: any lower bound but -inf, whose difference to itself is NaN.
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

/// LossGradient. Null for 1.
template <class C>
struct Factors {
  const C *g, *total;
  std::int64_t stride;

  explicit Factors(const LossGradient& of_loss)
      : g(of_loss.g.as<const C>()), total(of_loss.total.as<const C>()), stride(of_loss.g.dims() > 0 ? of_loss.g.strides[0] : 0) {}
  __device__ C operator[](std::int64_t n) const { return (g ? g[n * stride] : C(1)) / (total ? *total : C(1)); }
};

/// A thread's share of a row. Vectors begin at an aligned address, in long rows at one where a line of memory begins; the elements before the
/// first and behind the last of them, fewer than there are threads, go to the first threads.
template <class T>
struct Share {
  std::int64_t n;
  unsigned lane, threads, head, tail, vectors;
  const T* row;

  template <class C>
  __device__ explicit Share(const Rows<C, T>& rows)
      : n(std::int64_t(blockIdx.x) * (blockDim.x / rows.threads) + threadIdx.x / rows.threads), lane(threadIdx.x % rows.threads),
        threads(rows.threads), row(rows.x + n * rows.stride) {
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

/// The sums over a row.
template <class C, class T, bool held>
__device__ __forceinline__ Sums<C> sums_of(const Rows<C, T>& rows, const Share<T>& share, Held<T, held>& row) {
  const bool with_logits = rows.smoothing != C(0);
  Sums<C> sums;
  row.for_rounds(share, [&](unsigned first, const uint4 (&words)[unroll]) {
    sums.raise(largest<C, T>(words));
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u) {
      if (!share.has(first, u)) continue;
      C values[width<T>], powers = 0, logits = 0;
      unpack<T>(words[u], values);
#pragma unroll
      for (const C value : values) powers += power(value - sums.top);
      sums.powers += powers;
      if (!with_logits) continue;
#pragma unroll
      for (const C value : values) logits += value;
      sums.logits += logits;
    }
  });
  share.for_singles([&](std::int64_t i) {
    const C logit = convert<C>(share.row[i]);
    sums.raise(logit);
    sums.powers += power(logit - sums.top);
    sums.logits += logit;
  });
  return combine_row<SumsOp<C>>(sums, share.threads);
}

template <class C, class T>
__device__ __forceinline__ C loss_of(const Rows<C, T>& rows, std::int64_t n, const Sums<C>& sums, C logit) {
  const C lse = sums.lse();
  C loss = rows.sharp * (lse - logit);
  if (rows.smoothing != C(0)) loss += rows.smoothing * (lse - sums.logits / static_cast<C>(rows.columns));
  return rows.weights ? loss * rows.weights[n] : loss;
}

template <class C, class T>
__device__ __forceinline__ C target_logit(const Rows<C, T>& rows, const Share<T>& share, std::int64_t target) {
  return target < 0 || target >= rows.columns ? std::numeric_limits<C>::quiet_NaN() : convert<C>(share.row[target]);
}

/// Writes the gradient of a row to `out`, which may be the row.
template <class C, class T, bool held>
__device__ __forceinline__ void write_gradient(const Rows<C, T>& rows, const Share<T>& share, std::int64_t target, C lse, C g, T* out,
                                               Held<T, held>& row) {
  const C factor = rows.weights ? g * rows.weights[share.n] : g, even = rows.smoothing / static_cast<C>(rows.columns);
  const auto derivative = [&](C logit) { return factor * (power(logit - lse) - even); };
  const bool hits = target >= 0 && target < rows.columns && share.owns(target);
  const C at_target = hits ? derivative(convert<C>(share.row[target])) - factor * rows.sharp : C(0);
  // The two rows are equally far from an aligned address, unless one has neighbours without gaps and the other has not.
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(out + share.head) % 16 == 0;
  row.for_rounds(share, [&](unsigned first, const uint4 (&words)[unroll]) {
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u) {
      if (!share.has(first, u)) continue;
      C values[width<T>];
      unpack<T>(words[u], values);
#pragma unroll
      for (C& value : values) value = derivative(value);
      T* const to = out + share.place(first, u);
      if (is_aligned) {
        __stcg(reinterpret_cast<uint4*>(to), pack<T>(values));
      } else {
#pragma unroll
        for (int k = 0; k < width<T>; ++k) to[k] = convert<T>(values[k]);
      }
    }
  });
  share.for_singles([&](std::int64_t i) { out[i] = convert<T>(derivative(convert<C>(share.row[i]))); });
  if (hits) out[target] = convert<T>(at_target);  // over what this very thread wrote
}

template <class C, class T>
__device__ __forceinline__ void write_zeros(const Rows<C, T>& rows, const Share<T>& share, T* out) {
  for (std::int64_t i = share.lane; i < rows.columns; i += share.threads) out[i] = convert<T>(C(0));
}

template <class C, class T>
__global__ void __launch_bounds__(reading_threads, 5) losses_of_rows(__grid_constant__ const Rows<C, T> rows, C* lse, C* losses) {
  const Share<T> share(rows);
  if (share.n >= rows.count) return;
  Held<T, false> row(share);
  const std::int64_t target = rows.targets[share.n];
  C loss = 0, top = 0;
  if (target != rows.ignore_index) {
    const C logit = target_logit(rows, share, target);
    const Sums<C> sums = sums_of(rows, share, row);
    loss = loss_of(rows, share.n, sums, logit);
    top = sums.lse();
  }
  if (share.lane != 0) return;
  losses[share.n] = loss;
  lse[share.n] = top;
}

template <class C, class T>
__global__ void __launch_bounds__(writing_threads, 2)
    gradients_of_rows(__grid_constant__ const Rows<C, T> rows, const C* lse, Factors<C> factors, T* dx, std::int64_t dx_stride) {
  const Share<T> share(rows);
  if (share.n >= rows.count) return;
  Held<T, false> row(share);
  const std::int64_t target = rows.targets[share.n];
  T* const out = dx + share.n * dx_stride;
  if (target == rows.ignore_index) return write_zeros(rows, share, out);
  write_gradient(rows, share, target, lse[share.n], factors[share.n], out, row);
}

/// Where a row is `held`, it is read once; else the second reading finds it in a cache.
template <class C, class T, bool held>
__global__ void __launch_bounds__(writing_threads, held ? 1 : 2)
    losses_and_gradients_of_rows(__grid_constant__ const Rows<C, T> rows, Factors<C> factors, C* losses, T* dx) {
  const Share<T> share(rows);
  if (share.n >= rows.count) return;
  Held<T, held> row(share);
  const std::int64_t target = rows.targets[share.n];
  T* const out = dx + share.n * rows.stride;
  C loss = 0;
  if (target == rows.ignore_index) {
    write_zeros(rows, share, out);
  } else {
    const C logit = target_logit(rows, share, target);  // before any thread writes: they meet in sums_of
    const Sums<C> sums = sums_of(rows, share, row);
    loss = loss_of(rows, share.n, sums, logit);
    if constexpr (!held) row.restart(share);
    write_gradient(rows, share, target, sums.lse(), factors[share.n], out, row);
  }
  if (share.lane == 0) losses[share.n] = loss;
}

/// A sum of losses, and of the weights of the tokens that are not ignored.
template <class C>
struct Totals {
  C losses, weights;
};
template <class C>
struct TotalsOp {
  using Accumulator = Totals<C>;
  static __device__ Totals<C> identity() { return {}; }
  static __device__ Totals<C> combine(const Totals<C>& a, const Totals<C>& b) { return {a.losses + b.losses, a.weights + b.weights}; }
};
template <class C>
__device__ __forceinline__ Totals<C> shuffle_xor(const Totals<C>& a, unsigned step) {
  return {gpu::shuffle_xor(a.losses, step), gpu::shuffle_xor(a.weights, step)};
}

template <class C>
struct Result {
  C *value, *total;
  bool mean;

  __device__ void write(const Totals<C>& totals) const {
    *total = mean ? totals.weights : C(1);
    *value = mean ? totals.losses / totals.weights : totals.losses;
  }
};

/// Each block adds up a share of the rows; the last stage is a block's own if it is the only one.
template <class C>
__global__ void __launch_bounds__(writing_threads)
    add_losses(const C* losses, const std::int64_t* targets, const C* weights, std::int64_t ignore_index, std::int64_t count, Totals<C>* parts,
               Result<C> result) {
  Totals<C> totals{};
#pragma unroll 8
  for (std::int64_t n = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; n < count; n += std::int64_t(gridDim.x) * blockDim.x) {
    totals.losses += losses[n];
    if (targets[n] != ignore_index) totals.weights += weights ? weights[n] : C(1);
  }
  totals = combine_row<TotalsOp<C>>(totals, blockDim.x);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) result.write(totals);
  else parts[blockIdx.x] = totals;
}

template <class C>
__global__ void __launch_bounds__(writing_threads) add_parts(const Totals<C>* parts, unsigned count, Result<C> result) {
  Totals<C> totals{};
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) totals = TotalsOp<C>::combine(totals, parts[i]);
  totals = combine_row<TotalsOp<C>>(totals, blockDim.x);
  if (threadIdx.x == 0) result.write(totals);
}

/// y = factor * x, or added to y: a vector for each thread, or where there are none an element.
template <class C, class T, bool vectors>
__global__ void __launch_bounds__(block_size) scaled(const T* x, Factors<C> factors, T* y, std::int64_t count, bool adds) {
  constexpr int step = vectors ? width<T> : 1;
  const std::int64_t i = (std::int64_t(blockIdx.x) * block_size + threadIdx.x) * step;
  if (i >= count) return;
  if constexpr (vectors) {
    const uint4 word = *reinterpret_cast<const uint4*>(x + i);
    uint4 before{};
    if (adds) before = *reinterpret_cast<const uint4*>(y + i);
    C values[width<T>], sums[width<T>];
    unpack<T>(word, values);
    unpack<T>(before, sums);
    const C by = factors[0];
#pragma unroll
    for (int k = 0; k < width<T>; ++k) sums[k] = fma(by, values[k], sums[k]);
    __stcg(reinterpret_cast<uint4*>(y + i), pack<T>(sums));
  } else {
    y[i] = convert<T>(fma(factors[0], convert<C>(x[i]), adds ? convert<C>(y[i]) : C(0)));
  }
}

/// Threads of a row: a warp, or a block that takes several rounds.
template <class T>
unsigned threads_for(std::int64_t columns, unsigned most) {
  constexpr std::int64_t each = rounds * unroll * width<T>;
  return static_cast<unsigned>(std::clamp<std::int64_t>(((columns + each - 1) / each + 31) / 32 * 32, 32, most));
}

/// Calls launch_rows(rows, blocks, threads) for the dtype of x and blocks of at most so many threads.
template <class F>
void with_rows(const View& x, const TokenTargets& tokens, unsigned most_threads, F&& launch_rows) {
  if (x.shape[0] == 0) return;
  dispatch_floats(x.dtype, "cross_entropy", [&]<class T>() {
    using C = computed_t<T>;
    const unsigned threads = threads_for<T>(x.shape[1], most_threads), block = threads == 32 ? block_size : threads;
    const Rows<C, T> rows{x.as<const T>(),
                          x.shape[0],
                          x.shape[1],
                          x.strides[0],
                          tokens.targets.as<const std::int64_t>(),
                          tokens.weights.as<const C>(),
                          static_cast<C>(1 - tokens.smoothing),
                          static_cast<C>(tokens.smoothing),
                          tokens.ignore_index,
                          threads};
    launch_rows(rows, blocks_for(rows.count, block / threads), block);
  });
}

}  // namespace

void cross_entropy(Cuda, const View& x, const TokenTargets& tokens, const View& lse, const View& losses) {
  with_rows(x, tokens, reading_threads, [&]<class C, class T>(const Rows<C, T>& rows, unsigned blocks, unsigned block) {
    launch(losses_of_rows<C, T>, blocks, block, 0, losses.stream, rows, lse.as<C>(), losses.as<C>());
  });
}

void reduce_losses(Cuda, const View& losses, const TokenTargets& tokens, bool mean, const View& value, const View& total) {
  dispatch_floats(losses.dtype, "cross_entropy", [&]<class C>() {
    if constexpr (std::is_floating_point_v<C>) {
      const std::int64_t count = losses.shape[0];
      const unsigned blocks = std::min(blocks_for(count, 32 * writing_threads), writing_threads);
      const Workspace parts(blocks * sizeof(Totals<C>), losses.stream);
      const Result<C> result{value.as<C>(), total.as<C>(), mean};
      launch(add_losses<C>, blocks, writing_threads, 0, losses.stream, losses.as<const C>(), tokens.targets.as<const std::int64_t>(),
             tokens.weights.as<const C>(), tokens.ignore_index, count, parts.as<Totals<C>>(), result);
      if (blocks > 1) launch(add_parts<C>, 1, writing_threads, 0, losses.stream, parts.as<Totals<C>>(), blocks, result);
    }
  });
}

void cross_entropy_grad(Cuda, const View& x, const View& lse, const TokenTargets& tokens, const LossGradient& of_loss, const View& dx) {
  with_rows(x, tokens, writing_threads, [&]<class C, class T>(const Rows<C, T>& rows, unsigned blocks, unsigned block) {
    launch(gradients_of_rows<C, T>, blocks, block, 0, dx.stream, rows, lse.as<const C>(), Factors<C>(of_loss), dx.as<T>(), dx.strides[0]);
  });
}

void cross_entropy_with_grad(Cuda, const View& x, const TokenTargets& tokens, const LossGradient& of_loss, const View& losses) {
  with_rows(x, tokens, writing_threads, [&]<class C, class T>(const Rows<C, T>& rows, unsigned blocks, unsigned block) {
    // Registers for whole rows leave room for half as many threads: on an H200, (5120, 10000) in float32 then take 106 us in place of 131, but
    // in bf16, which has twice the arithmetic for a byte, 71 in place of 63.
    constexpr bool can_hold = std::is_same_v<T, float>;
    const bool is_held = can_hold && rows.columns <= std::int64_t(rounds * unroll * width<T>) * rows.threads;
    launch(is_held ? losses_and_gradients_of_rows<C, T, can_hold> : losses_and_gradients_of_rows<C, T, false>, blocks, block, 0,
           losses.stream, rows, Factors<C>(of_loss), losses.as<C>(), x.as<T>());
  });
}

void scale(Cuda, const View& x, const LossGradient& of_loss, const View& y, Write write) {
  const std::int64_t count = x.numel();
  if (count == 0) return;
  const bool adds = write == Write::accumulate;
  dispatch_floats(x.dtype, "scale", [&]<class T>() {
    using C = computed_t<T>;
    const bool vectors = count % width<T> == 0 && is_aligned(x.data, 16) && is_aligned(y.data, 16);
    launch(vectors ? scaled<C, T, true> : scaled<C, T, false>, blocks_for(count, block_size * (vectors ? width<T> : 1)), block_size, 0, y.stream,
           x.as<const T>(), Factors<C>(of_loss), y.as<T>(), count, adds);
  });
}

}  // namespace tern::kernels
