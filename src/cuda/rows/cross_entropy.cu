#include "cuda/rows/cross_entropy.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/loss.h"
#include "tensor/dispatch.h"

// Cross-entropy of rows of logits, from five classes to any number. A warp or a block takes a row: its loss is one reading, the gradient
// one reading and one writing, and both together are two readings of which the second finds the row in a cache. What counts is bytes on
// their way from memory: a thread asks for four vectors of 16 bytes before it looks at the first, and for its first ones before it knows
// the row's target; and a thread has several such rounds of a row, so that the end of a row, where threads wait for each other, is seldom.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::loss;

namespace {

/// LossGradient. Null for 1.
template <class C>
struct Factors {
  const C *g, *total;
  std::int64_t stride;

  explicit Factors(const LossGradient& of_loss)
      : g(of_loss.g.as<const C>()), total(of_loss.total.as<const C>()), stride(of_loss.g.dims() > 0 ? of_loss.g.strides[0] : 0) {}
  __device__ C operator[](std::int64_t n) const { return (g ? g[n * stride] : C(1)) / (total ? *total : C(1)); }
};

/// The sums over a row.
template <class C, class T, bool held>
__device__ __forceinline__ Sums<C> sums_of(const Rows<C, T>& rows, const Share<T>& share, Held<T, held>& row) {
  const bool with_logits = rows.smoothing != C(0);
  Sums<C> sums;
  row.for_rounds(share, [&](unsigned first, const uint4(&words)[unroll]) {
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
  row.for_rounds(share, [&](unsigned first, const uint4(&words)[unroll]) {
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
    add_losses(const C* losses, const std::int64_t* targets, const C* weights, std::int64_t ignore_index, std::int64_t count,
               Totals<C>* parts, Result<C> result) {
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

constexpr std::size_t most_scalings = 4;
/// A row of blocks for each.
template <class T>
struct Scalings {
  struct {
    const T* x;
    T* y;
    std::int64_t count;
    bool adds, vectors;
  } all[most_scalings];
};

/// y = factor * x, or added to y: a vector for each thread, or where there are none an element.
template <class C, class T>
__global__ void __launch_bounds__(block_size) scaled(__grid_constant__ const Scalings<T> scalings, Factors<C> factors) {
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
    // Registers for whole rows leave room for half as many threads: on an H200, (5120, 10000) in float32 then take 106 us in place of 131,
    // but in bf16, which has twice the arithmetic for a byte, 71 in place of 63.
    constexpr bool can_hold = std::is_same_v<T, float>;
    const bool is_held = can_hold && rows.columns <= std::int64_t(rounds * unroll * width<T>) * rows.threads;
    launch(is_held ? losses_and_gradients_of_rows<C, T, can_hold> : losses_and_gradients_of_rows<C, T, false>, blocks, block, 0,
           losses.stream, rows, Factors<C>(of_loss), losses.as<C>(), x.as<T>());
  });
}

void scale(Cuda, std::span<const Scaling> all, const LossGradient& of_loss) {
  if (all.empty()) return;
  dispatch_floats(all[0].x.dtype, "scale", [&]<class T>() {
    for (std::size_t first = 0; first < all.size(); first += most_scalings) {
      const auto some = all.subspan(first, std::min(most_scalings, all.size() - first));
      Scalings<T> scalings{};
      std::int64_t most_threads = 0;
      for (std::size_t i = 0; i < some.size(); ++i) {
        const auto& [x, y, write] = some[i];
        const std::int64_t count = x.numel();
        const bool vectors = count % width<T> == 0 && is_aligned(x.data, 16) && is_aligned(y.data, 16);
        scalings.all[i] = {x.as<const T>(), y.as<T>(), count, write == Write::accumulate, vectors};
        most_threads = std::max(most_threads, vectors ? count / width<T> : count);
      }
      if (most_threads == 0) continue;
      launch(scaled<computed_t<T>, T>, dim3(blocks_for(most_threads), static_cast<unsigned>(some.size())), block_size, 0, some[0].y.stream,
             scalings, Factors<computed_t<T>>(of_loss));
    }
  });
}

}  // namespace tern::kernels
