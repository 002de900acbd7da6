#include <cmath>

#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/index.h"
#include "tensor/dispatch.h"
#include "tensor/sizes.h"

// Token rows, position rows and dropout in one pass each way: with an embedding, an addition and a dropout each number would be written and
// read twice more. A thread has four adjacent elements at a time, which share a Philox block.
namespace tern::kernels {

using namespace gpu;

namespace {

template <class T>
struct Embedding {
  using C = computed_t<T>;
  const T *table, *positions;
  const std::int64_t* ids;
  T* y;
  std::int64_t count, rows;  ///< elements of y, rows of the table
  Divider width, length;     ///< D and T
  bool aligned;              ///< all rows begin at multiples of four elements
  Dropout<C> dropout;
};

/// Four adjacent elements, as one vector if they begin at an aligned address.
template <class T>
__device__ __forceinline__ Vector<T, 4> read_four(const T* from, bool aligned) {
  if (aligned) return read_vector<4>(from);
  return {{from[0], from[1], from[2], from[3]}};
}

template <class T>
__global__ void __launch_bounds__(block_size) embed_elements(__grid_constant__ const Embedding<T> a) {
  using C = computed_t<T>;
  const std::int64_t first = (std::int64_t(blockIdx.x) * block_size + threadIdx.x) * 4;
  if (first >= a.count) return;
  const std::uint32_t n = a.width.divide(static_cast<std::uint32_t>(first)),
                      column = static_cast<std::uint32_t>(first) - n * a.width.divisor;
  const std::int64_t row = a.ids[n], pitch = a.width.divisor;
  Vector<T, 4> token{}, out;
  if (row >= 0 && row < a.rows) token = read_four(a.table + row * pitch + column, a.aligned);
  C values[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) values[k] = convert<C>(token.values[k]);
  if (a.positions) {
    const std::uint32_t t = n - a.length.divide(n) * a.length.divisor;
    const auto position = read_four(a.positions + t * pitch + column, a.aligned);
#pragma unroll
    for (int k = 0; k < 4; ++k) values[k] = convert<C>(convert<T>(values[k] + convert<C>(position.values[k])));
  }
  if (a.dropout.drops) a.dropout(values, first, a.dropout.position());
#pragma unroll
  for (int k = 0; k < 4; ++k) out.values[k] = convert<T>(values[k]);
  write_vector(a.y + first, out);
}

constexpr int lanes = 32, max_parts = 16;

/// A block has 128 adjacent elements of a sequence, four for each of 32 adjacent threads; the block's `parts` rows of threads share the
/// batch, a contiguous part each.
template <class T>
__global__ void __launch_bounds__((lanes * max_parts), 2)
    embed_grad_elements(const T* g, std::int64_t batch, std::int64_t sequence, bool aligned,
                        __grid_constant__ const Dropout<computed_t<T>> dropout, T* dsum, T* dpositions) {
  using C = computed_t<T>;
  __shared__ C shared[max_parts][lanes * 4];
  const unsigned part = threadIdx.y, parts = blockDim.y;
  const std::int64_t column = (std::int64_t(blockIdx.x) * lanes + threadIdx.x) * 4, share = ceil_div(batch, parts);
  CompensatedSum<C> sums[4];
  const std::uint64_t position = dropout.position();
  if (column < sequence) {
#pragma unroll 4
    for (std::int64_t b = part * share; b < min(batch, (part + 1) * share); ++b) {
      const std::int64_t at = b * sequence + column;
      C values[4];
      const auto in = read_four(g + at, aligned);
#pragma unroll
      for (int k = 0; k < 4; ++k) values[k] = convert<C>(in.values[k]);
      if (dropout.drops) dropout(values, at, position);
      Vector<T, 4> out;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        out.values[k] = convert<T>(values[k]);
        sums[k].add(convert<C>(out.values[k]));
      }
      if (dropout.drops) write_vector(dsum + at, out);
    }
  }
  if (!dpositions) return;
#pragma unroll
  for (int k = 0; k < 4; ++k) shared[part][threadIdx.x * 4 + k] = sums[k].value();
  __syncthreads();
  const unsigned own = part * lanes + threadIdx.x;
  const std::int64_t to = std::int64_t(blockIdx.x) * lanes * 4 + own;
  if (own >= lanes * 4 || to >= sequence) return;
  C sum = 0;
  for (unsigned i = 0; i < parts; ++i) sum += shared[i][own];
  dpositions[to] = convert<T>(convert<C>(dpositions[to]) + sum);
}

}  // namespace

void Embed::run(Cuda) const {
  const std::int64_t count = y.numel();
  if (count == 0) return;
  dispatch_floats(y.dtype, "embed", [&]<class T>() {
    const bool aligned = is_aligned(table.data, 4 * sizeof(T)) && is_aligned(positions.data, 4 * sizeof(T));
    const Embedding<T> embedding{
        table.as<const T>(), positions.as<const T>(), ids.as<const std::int64_t>(), y.as<T>(), count,
        table.shape[0],      Divider(y.shape[2]),     Divider(y.shape[1]),          aligned,   Dropout<computed_t<T>>(p, draws)};
    launch(embed_elements<T>, blocks_for(count, 4 * block_size), block_size, 0, y.stream, embedding);
  });
}

void EmbedGrad::run(Cuda) const {
  const std::int64_t batch = g.shape[0], sequence = g.shape[1] * g.shape[2];
  if (batch * sequence == 0 || (p == 0 && !dpositions.data)) return;
  dispatch_floats(g.dtype, "embed_grad", [&]<class T>() {
    const auto parts = static_cast<unsigned>(std::clamp<std::int64_t>(batch, 4, max_parts));
    launch(embed_grad_elements<T>, blocks_for(sequence, lanes * 4), dim3(lanes, parts), 0, g.stream, g.as<const T>(), batch, sequence,
           is_aligned(g.data, 4 * sizeof(T)), Dropout<computed_t<T>>(p, draws), dsum.as<T>(), dpositions.as<T>());
  });
}

}  // namespace tern::kernels
