#include <span>

#include "cuda/device/online_softmax.cuh"
#include "cuda/device/row.cuh"
#include "cuda/rows/row_launch.h"
#include "cuda/runtime/allocator.h"
#include "ops/kernels/loss.h"
#include "tensor/dispatch.h"

// Cross-entropy of rows of logits, from five classes to any number. A warp or a block processes a row: its loss is one read, the gradient
// one read and one write, and both together are two passes, of which the second reads the row from a cache. What matters is the number of
// bytes in flight: a thread loads four vectors of 16 bytes before it uses the first, and its first ones before it knows the row's target;
// and a thread has several such rounds of a row, so that the end of a row, where threads wait for each other, is rare.
//
// A row is streamed in rounds of four vectors per thread, and reduced by an online softmax:
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

/// Online softmax of a row, whose maximum is initially any lower bound but -inf, with the sum of the logits, for label smoothing.
template <class C>
struct RowSoftmax : OnlineSoftmax<C, FastExp> {
  C logit_sum;
};

template <class C>
struct RowSoftmaxOp {
  using Accumulator = RowSoftmax<C>;
  static __device__ Accumulator identity() { return {{C(-0x1p100), C(0)}, C(0)}; }
  static __device__ Accumulator combine(const Accumulator& a, const Accumulator& b) {
    return {merge<C, FastExp>(a, b), a.logit_sum + b.logit_sum};
  }
};
template <class C>
__device__ __forceinline__ RowSoftmax<C> shuffle_xor(const RowSoftmax<C>& a, unsigned step) {
  return {gpu::shuffle_xor<C, FastExp>(a, step), gpu::shuffle_xor(a.logit_sum, step)};
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

namespace tern::kernels {

using namespace gpu;
using namespace gpu::loss;

namespace {

/// Factor of each row's gradient: the loss's own gradient divided by the total weight, as in LossGradient; 1 for a null pointer.
template <class C>
struct LossFactors {
  const C *g, *total;
  std::int64_t stride;

  explicit LossFactors(const LossGradient& of_loss)
      : g(of_loss.g.as<const C>()), total(of_loss.total.as<const C>()), stride(of_loss.g.dims() > 0 ? of_loss.g.strides[0] : 0) {}
  __device__ C operator[](std::int64_t row) const {
    const C of_row = g ? g[row * stride] : C(1), divisor = total ? *total : C(1);
    return divisor == 0 ? C(0) : of_row / divisor;
  }
};

/// Online softmax of a row, in all of its threads.
template <class C, class T, bool in_registers>
__device__ __forceinline__ RowSoftmax<C> reduce_row(const LogitRows<C, T>& rows, const RowStream<T>& stream,
                                                    RowCache<T, in_registers>& cache) {
  const bool is_smoothed = rows.smoothing != C(0);
  using Op = RowSoftmaxOp<C>;
  RowSoftmax<C> state = Op::identity();
  cache.for_rounds(stream, [&](unsigned first, const uint4(&packed)[unroll]) {
    state.raise_max(max_of_vectors<C, T>(packed));
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u) {
      if (!stream.has(first, u)) continue;
      C values[width<T>], exp_sum = 0, logit_sum = 0;
      unpack<T>(packed[u], values);
#pragma unroll
      for (const C value : values) exp_sum += FastExp::of(value - state.max);
      state.sum += exp_sum;
      if (!is_smoothed) continue;
#pragma unroll
      for (const C value : values) logit_sum += value;
      state.logit_sum += logit_sum;
    }
  });
  stream.for_singles([&](std::int64_t c) {
    const C logit = convert<C>(stream.logits[c]);
    state.raise_max(logit);
    state.sum += FastExp::of(logit - state.max);
    state.logit_sum += logit;
  });
  return stream.threads == 32 ? warp_all_reduce<Op>(state) : block_all_reduce<Op, writing_threads / 32>(state);
}

template <class C, class T>
__device__ __forceinline__ C loss_of(const LogitRows<C, T>& rows, std::int64_t row, const RowSoftmax<C>& state, C target_logit) {
  const C lse = state.log_sum_exp();
  C loss = rows.confidence * (lse - target_logit);
  if (rows.smoothing != C(0)) loss += rows.smoothing * (lse - state.logit_sum / static_cast<C>(rows.columns));
  return rows.weights ? loss * rows.weights[row] : loss;
}

template <class C, class T>
__device__ __forceinline__ C target_logit(const LogitRows<C, T>& rows, const RowStream<T>& stream, std::int64_t target) {
  return target < 0 || target >= rows.columns ? std::numeric_limits<C>::quiet_NaN() : convert<C>(stream.logits[target]);
}

/// Writes the gradient of a row, factor (softmax - smoothing / columns - [target] confidence), to `out`, which may be the row itself.
template <class C, class T, bool in_registers>
__device__ __forceinline__ void write_gradient(const LogitRows<C, T>& rows, const RowStream<T>& stream, std::int64_t target, C lse, C g,
                                               T* out, RowCache<T, in_registers>& cache) {
  const C factor = rows.weights ? g * rows.weights[stream.row] : g, even = rows.smoothing / static_cast<C>(rows.columns);
  const auto derivative = [&](C logit) { return factor * (exp_approx(logit - lse) - even); };
  const bool has_target = target >= 0 && target < rows.columns && stream.owns(target);
  const C at_target = has_target ? derivative(convert<C>(stream.logits[target])) - factor * rows.confidence : C(0);
  // Both rows have the same misalignment, unless only one of them has adjacent rows without gaps.
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(out + stream.head) % 16 == 0;
  cache.for_rounds(stream, [&](unsigned first, const uint4(&packed)[unroll]) {
#pragma unroll
    for (unsigned u = 0; u < unroll; ++u) {
      if (!stream.has(first, u)) continue;
      C values[width<T>];
      unpack<T>(packed[u], values);
#pragma unroll
      for (C& value : values) value = derivative(value);
      T* const to = out + stream.column(first, u);
      if (is_aligned) {
        __stcg(reinterpret_cast<uint4*>(to), pack<T>(values));
      } else {
#pragma unroll
        for (int k = 0; k < width<T>; ++k) to[k] = convert<T>(values[k]);
      }
    }
  });
  stream.for_singles([&](std::int64_t c) { out[c] = convert<T>(derivative(convert<C>(stream.logits[c]))); });
  if (has_target) out[target] = convert<T>(at_target);  // this thread has also written the target's column before, and now overwrites it
}

template <class C, class T>
__device__ __forceinline__ void write_zeros(const LogitRows<C, T>& rows, const RowStream<T>& stream, T* out) {
  for (std::int64_t c = stream.lane; c < rows.columns; c += stream.threads) out[c] = convert<T>(C(0));
}

template <class C, class T>
__global__ void __launch_bounds__(reading_threads, 5)
    cross_entropy_forward(RowPartition partition, __grid_constant__ const LogitRows<C, T> rows, C* lse, C* losses) {
  const RowStream<T> stream(RowThread<true>(partition), rows);
  if (stream.row >= rows.count) return;
  RowCache<T, false> cache(stream);
  const std::int64_t target = rows.targets[stream.row];
  C loss = 0, row_lse = 0;
  if (target != rows.ignore_index) {
    const C logit = target_logit(rows, stream, target);
    const RowSoftmax<C> state = reduce_row(rows, stream, cache);
    loss = loss_of(rows, stream.row, state, logit);
    row_lse = state.log_sum_exp();
  }
  if (stream.lane != 0) return;
  losses[stream.row] = loss;
  lse[stream.row] = row_lse;
}

template <class C, class T>
__global__ void __launch_bounds__(writing_threads, 2)
    cross_entropy_backward(RowPartition partition, __grid_constant__ const LogitRows<C, T> rows, const C* lse, LossFactors<C> factors,
                           T* dx, std::int64_t dx_stride) {
  const RowStream<T> stream(RowThread<true>(partition), rows);
  if (stream.row >= rows.count) return;
  RowCache<T, false> cache(stream);
  const std::int64_t target = rows.targets[stream.row];
  T* const out = dx + stream.row * dx_stride;
  if (target == rows.ignore_index) return write_zeros(rows, stream, out);
  write_gradient(rows, stream, target, lse[stream.row], factors[stream.row], out, cache);
}

/// Loss and gradient; the gradient may overwrite the logits.
template <class C, class T, bool in_registers>
__global__ void __launch_bounds__(writing_threads, in_registers ? 1 : 2)
    cross_entropy_forward_backward(RowPartition partition, __grid_constant__ const LogitRows<C, T> rows, LossFactors<C> factors, C* losses,
                                   T* dx) {
  const RowStream<T> stream(RowThread<true>(partition), rows);
  if (stream.row >= rows.count) return;
  RowCache<T, in_registers> cache(stream);
  const std::int64_t target = rows.targets[stream.row];
  T* const out = dx + stream.row * rows.stride;
  C loss = 0;
  if (target == rows.ignore_index) {
    write_zeros(rows, stream, out);
  } else {
    const C logit = target_logit(rows, stream, target);  // before any thread writes: threads wait for each other in reduce_row
    const RowSoftmax<C> state = reduce_row(rows, stream, cache);
    loss = loss_of(rows, stream.row, state, logit);
    if constexpr (!in_registers) cache.restart(stream);
    write_gradient(rows, stream, target, state.log_sum_exp(), factors[stream.row], out, cache);
  }
  if (stream.lane == 0) losses[stream.row] = loss;
}

/// Sum of losses, and of the weights of the tokens that are not ignored.
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

/// Each block adds up a part of the rows; a single block also does the last stage.
template <class C>
__global__ void __launch_bounds__(writing_threads)
    sum_losses(const C* losses, const std::int64_t* targets, const C* weights, std::int64_t ignore_index, std::int64_t count,
               Totals<C>* partials, Result<C> result) {
  Totals<C> totals{};
#pragma unroll 8
  for (std::int64_t n = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; n < count; n += std::int64_t(gridDim.x) * blockDim.x) {
    totals.losses += losses[n];
    if (targets[n] != ignore_index) totals.weights += weights ? weights[n] : C(1);
  }
  totals = block_all_reduce<TotalsOp<C>, writing_threads / 32>(totals);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) result.write(totals);
  else partials[blockIdx.x] = totals;
}

template <class C>
__global__ void __launch_bounds__(writing_threads) sum_partials(const Totals<C>* partials, unsigned count, Result<C> result) {
  Totals<C> totals{};
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) totals = TotalsOp<C>::combine(totals, partials[i]);
  totals = block_all_reduce<TotalsOp<C>, writing_threads / 32>(totals);
  if (threadIdx.x == 0) result.write(totals);
}

constexpr std::size_t max_scalings = 4;
/// One row of blocks for each scaling.
template <class T>
struct Scalings {
  struct {
    const T* x;
    T* y;
    std::int64_t count;
    bool adds, vectors;
  } all[max_scalings];
};

/// y = factor * x, or added to y: each thread has one vector, or one element if there are no vectors.
template <class C, class T>
__global__ void __launch_bounds__(block_size) scaled(__grid_constant__ const Scalings<T> scalings, LossFactors<C> factors) {
  const auto& [x, y, count, adds, vectors] = scalings.all[blockIdx.y];
  const std::int64_t i = (std::int64_t(blockIdx.x) * block_size + threadIdx.x) * (vectors ? width<T> : 1);
  if (i >= count) return;
  const C by = factors[0];
  if (!vectors) {
    y[i] = convert<T>(fma(by, convert<C>(x[i]), adds ? convert<C>(y[i]) : C(0)));
    return;
  }
  const uint4 word = *reinterpret_cast<const uint4*>(x + i);
  uint4 before{};
  if (adds) before = *reinterpret_cast<const uint4*>(y + i);
  C values[width<T>], sums[width<T>];
  unpack<T>(word, values);
  unpack<T>(before, sums);
#pragma unroll
  for (int k = 0; k < width<T>; ++k) sums[k] = fma(by, values[k], sums[k]);
  __stcg(reinterpret_cast<uint4*>(y + i), pack<T>(sums));
}

/// Calls run(rows, partition, blocks) for the dtype of x, with at most that many threads per block: a row has a warp, or a block that takes
/// several rounds.
template <class F>
void with_rows(const View& x, const TokenTargets& tokens, unsigned max_threads, F&& run) {
  if (x.shape[0] == 0) return;
  dispatch_floats(x.dtype, "cross_entropy", [&]<class T>() {
    using C = computed_t<T>;
    constexpr std::int64_t each = rounds * unroll * width<T>;
    const std::int64_t threads = std::clamp<std::int64_t>(((x.shape[1] + each - 1) / each + 31) / 32 * 32, 32, max_threads);
    const RowPartition partition{static_cast<unsigned>(threads), threads == 32 ? block_size / 32u : 1, 1};
    const LogitRows<C, T> rows{x.as<const T>(),
                               x.shape[0],
                               x.shape[1],
                               x.strides[0],
                               tokens.targets.as<const std::int64_t>(),
                               tokens.weights.as<const C>(),
                               static_cast<C>(tokens.smoothing),
                               static_cast<C>(1 - tokens.smoothing),
                               tokens.ignore_index};
    run(rows, partition, blocks_for(rows.count, partition.rows));
  });
}

}  // namespace

void CrossEntropy::run(Cuda) const {
  with_rows(x, tokens, reading_threads, [&]<class C, class T>(const LogitRows<C, T>& rows, const RowPartition& partition, unsigned blocks) {
    launch_rows(cross_entropy_forward<C, T>, partition, blocks, 0, losses.stream, rows, lse.as<C>(), losses.as<C>());
  });
}

void ReduceLosses::run(Cuda) const {
  dispatch_floats(losses.dtype, "cross_entropy", [&]<class C>() {
    if constexpr (std::is_floating_point_v<C>) {
      const std::int64_t count = losses.shape[0];
      const unsigned blocks = std::min(blocks_for(count, 32 * writing_threads), writing_threads);
      const Workspace partials(blocks * sizeof(Totals<C>), losses.stream);
      const Result<C> result{value.as<C>(), total.as<C>(), mean};
      launch(sum_losses<C>, blocks, writing_threads, 0, losses.stream, losses.as<const C>(), tokens.targets.as<const std::int64_t>(),
             tokens.weights.as<const C>(), tokens.ignore_index, count, partials.as<Totals<C>>(), result);
      if (blocks > 1) launch(sum_partials<C>, 1, writing_threads, 0, losses.stream, partials.as<Totals<C>>(), blocks, result);
    }
  });
}

void CrossEntropyGrad::run(Cuda) const {
  with_rows(x, tokens, writing_threads, [&]<class C, class T>(const LogitRows<C, T>& rows, const RowPartition& partition, unsigned blocks) {
    launch_rows(cross_entropy_backward<C, T>, partition, blocks, 0, dx.stream, rows, lse.as<const C>(), LossFactors<C>(of_loss), dx.as<T>(),
                dx.strides[0]);
  });
}

void CrossEntropyWithGrad::run(Cuda) const {
  with_rows(x, tokens, writing_threads, [&]<class C, class T>(const LogitRows<C, T>& rows, const RowPartition& partition, unsigned blocks) {
    // Registers for whole rows leave room for half as many threads: float32 gains, but bf16 has twice the arithmetic per byte.
    constexpr bool can_cache = std::is_same_v<T, float>;
    const bool in_registers = can_cache && rows.columns <= std::int64_t(rounds * unroll * width<T>) * partition.threads;
    const auto kernel = in_registers ? cross_entropy_forward_backward<C, T, can_cache> : cross_entropy_forward_backward<C, T, false>;
    launch_rows(kernel, partition, blocks, 0, losses.stream, rows, LossFactors<C>(of_loss), losses.as<C>(), x.as<T>());
  });
}

void Scale::run(Cuda) const {
  if (all.empty()) return;
  dispatch_floats(all[0].x.dtype, "scale", [&]<class T>() {
    for (std::size_t first = 0; first < all.size(); first += max_scalings) {
      const auto some = std::span<const Scaling>(all).subspan(first, std::min(max_scalings, all.size() - first));
      Scalings<T> scalings{};
      std::int64_t max_threads = 0;
      for (std::size_t i = 0; i < some.size(); ++i) {
        const auto& [x, y, write] = some[i];
        const std::int64_t count = x.numel();
        const bool vectors = count % width<T> == 0 && is_aligned(x.data, 16) && is_aligned(y.data, 16);
        scalings.all[i] = {x.as<const T>(), y.as<T>(), count, write == Write::accumulate, vectors};
        max_threads = std::max(max_threads, vectors ? count / width<T> : count);
      }
      if (max_threads == 0) continue;
      launch(scaled<computed_t<T>, T>, dim3(blocks_for(max_threads), static_cast<unsigned>(some.size())), block_size, 0, some[0].y.stream,
             scalings, LossFactors<computed_t<T>>(of_loss));
    }
  });
}

}  // namespace tern::kernels
