#include <bit>

#include "cuda/device/compensated_sum.cuh"
#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/index/sort.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/index.h"
#include "tensor/sizes.h"

// y[a, index[i], c] += source[a, i, c], the gradient of an embedding, deterministic: atomics would add in the order of arrival, so the
// indices are sorted, stably, and each run of equal ones is added in ascending order of position.
//
// Note [Runs]: an index may occur ten thousand times (padding), or never. The sorted list is divided into pieces of fixed length,
// independent of the runs. A run within one piece is added to y directly. One that crosses pieces leaves a partial sum in each of them, and
// a second kernel adds those: in each piece at most one run comes in from the left (its sum is the piece's `head` if it ends there) and at
// most one leaves to the right (`tail`; a run that does both is a tail).
namespace tern::kernels {

using namespace gpu;

namespace {

constexpr int piece_length = 32, prefetch = 8;

// Rank sort, for at most max_ranked indices of a dimension of at most max_ranked_length, so that index and position fit into one word.
constexpr int position_bits = 13;
constexpr std::uint32_t max_ranked = 1u << position_bits, max_ranked_length = (1u << (32 - position_bits)) - 2;
constexpr int ranking_threads = 512, ranked_per_warp = 3, ranked_per_block = ranking_threads / 32 * ranked_per_warp;

/// `count` words, padded to whole rounds of a warp, in which each lane reads four.
constexpr std::uint32_t ranking_room(std::uint32_t count) { return round_up(count, 128u); }

/// Sorts a few indices stably by counting, for each, those that come before it: n^2 comparisons, but a single kernel, where a radix sort
/// takes ten. Every block holds all words in shared memory.
__global__ void __launch_bounds__(ranking_threads)
    sort_by_rank(const std::int64_t* index, std::int64_t stride, std::uint32_t count, std::uint32_t length, std::uint32_t* sorted_keys,
                 std::uint32_t* sorted_positions) {
  extern __shared__ uint4 quads[];
  auto* const words = reinterpret_cast<std::uint32_t*>(quads);
  const std::uint32_t room = ranking_room(count);
#pragma unroll 8
  for (std::uint32_t i = threadIdx.x; i < room; i += ranking_threads) {
    const std::int64_t at = i < count ? index[i * stride] : 0;
    const std::uint32_t key = at >= 0 && at < length ? static_cast<std::uint32_t>(at) : length;
    words[i] = i < count ? key << position_bits | i : 0xffffffffu;  // after all others
  }
  __syncthreads();
  const std::uint32_t first = blockIdx.x * ranked_per_block + threadIdx.x / 32 * ranked_per_warp, lane = threadIdx.x % 32;
  std::uint32_t own[ranked_per_warp], ranks[ranked_per_warp] = {};
#pragma unroll
  for (int k = 0; k < ranked_per_warp; ++k) own[k] = first + k < count ? words[first + k] : 0;
#pragma unroll 2
  for (std::uint32_t j = lane; j < room / 4; j += 32) {
    const uint4 quad = quads[j];
#pragma unroll
    for (int k = 0; k < ranked_per_warp; ++k) ranks[k] += (quad.x < own[k]) + (quad.y < own[k]) + (quad.z < own[k]) + (quad.w < own[k]);
  }
#pragma unroll
  for (int k = 0; k < ranked_per_warp; ++k) {
    const std::uint32_t rank = __reduce_add_sync(whole_warp, ranks[k]);
    if (lane != 0 || first + k >= count) continue;
    sorted_keys[rank] = own[k] >> position_bits;
    sorted_positions[rank] = first + k;
  }
}

/// Sort keys: the indices, with N for those outside of [0, N).
__global__ void __launch_bounds__(block_size) index_keys(const std::int64_t* index, std::int64_t stride, std::uint32_t count,
                                                         std::uint32_t length, std::uint32_t* keys, std::uint32_t* positions) {
  const std::uint32_t i = blockIdx.x * block_size + threadIdx.x;
  if (i >= count) return;
  const std::int64_t at = index[i * stride];
  keys[i] = at >= 0 && at < length ? static_cast<std::uint32_t>(at) : length;
  positions[i] = i;
}

/// The sorted indices.
struct SortedIndices {
  const std::uint32_t *keys, *positions;
  std::uint32_t count, pieces;
  std::uint32_t length;  ///< N: the key of indices outside of [0, N)
};

struct IndexAdd {
  const void* source;
  void* y;
  DType dtype;
  std::int64_t source_strides[3], y_strides[3];  ///< along a, i (n) and c
  std::uint32_t columns, rows;                   ///< C and A
};

/// Partial sums, (2, A, pieces, C): heads, then tails.
template <class C>
struct Partials {
  C* sums;
  std::uint32_t columns, pieces, rows;
  __device__ C& head(std::uint32_t a, std::uint32_t piece, std::uint32_t c) const {
    return sums[(std::int64_t(a) * pieces + piece) * columns + c];
  }
  __device__ C& tail(std::uint32_t a, std::uint32_t piece, std::uint32_t c) const { return head(rows + a, piece, c); }
};

/// Offset of element (a, n, c) of y.
__device__ __forceinline__ std::int64_t offset_of(const IndexAdd& o, std::uint32_t a, std::uint32_t n, std::uint32_t c) {
  return a * o.y_strides[0] + n * o.y_strides[1] + c * o.y_strides[2];
}

/// A block has `across` columns of block_size / across pieces.
template <class C, class T>
__global__ void __launch_bounds__(block_size) add_pieces(__grid_constant__ const SortedIndices sorted, __grid_constant__ const IndexAdd o,
                                                         Partials<C> partials, unsigned across, unsigned tiles, unsigned groups) {
  const unsigned group = blockIdx.x / tiles % groups;
  const std::uint32_t a = blockIdx.x / tiles / groups;
  const std::uint32_t c = blockIdx.x % tiles * across + threadIdx.x % across;
  const std::uint32_t piece = group * (block_size / across) + threadIdx.x / across;
  if (c >= o.columns || piece >= sorted.pieces) return;
  const std::uint32_t begin = piece * piece_length, end = min(sorted.count, begin + piece_length);
  const std::int64_t base = a * o.source_strides[0] + c * o.source_strides[2];

  std::uint32_t run = sorted.keys[begin];
  bool comes_in = begin > 0 && sorted.keys[begin - 1] == run;
  CompensatedSum<C> sum;  // sum of the run
  C before = 0;           // y's old value at the run's index
  for (std::uint32_t first = begin; first < end; first += prefetch) {
    std::uint32_t keys[prefetch];
    C values[prefetch], held[prefetch];
#pragma unroll
    for (int k = 0; k < prefetch; ++k) {
      const std::uint32_t i = first + k;
      keys[k] = i < end ? sorted.keys[i] : sorted.length;
      // An index outside of the range is not read either: a run of them has no sum.
      values[k] = keys[k] < sorted.length ? read<T>(o.source, o.dtype, base + sorted.positions[i] * o.source_strides[1]) : C(0);
      // No other thread of this kernel writes there: reading it now avoids a second wait.
      held[k] = keys[k] < sorted.length ? read<T>(o.y, o.dtype, offset_of(o, a, keys[k], c)) : C(0);
    }
#pragma unroll
    for (int k = 0; k < prefetch; ++k) {
      if (first + k >= end) continue;
      if (keys[k] != run) {
        if (comes_in) partials.head(a, piece, c) = sum.value();
        else if (run < sorted.length) write<T>(o.y, o.dtype, offset_of(o, a, run, c), before + sum.value());
        run = keys[k];
        comes_in = false;
        sum = {};
      }
      before = held[k];
      sum.add(values[k]);
    }
  }
  const bool leaves = end < sorted.count && sorted.keys[end] == run;
  if (leaves) partials.tail(a, piece, c) = sum.value();
  else if (comes_in) partials.head(a, piece, c) = sum.value();
  else if (run < sorted.length) write<T>(o.y, o.dtype, offset_of(o, a, run, c), before + sum.value());
}

/// First position in [from, count) whose key differs from `key`.
__device__ std::uint32_t run_end(const SortedIndices& sorted, std::uint32_t key, std::uint32_t from) {
  std::uint32_t low = from, high = sorted.count;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (sorted.keys[middle] <= key) low = middle + 1;
    else high = middle;
  }
  return low;
}

/// One block per piece: if a run begins there and continues, adds up its partial sums in this piece and the next ones. They are shared
/// among block_size / across threads per column, each taking every nth in ascending order.
template <class C, class T>
__global__ void __launch_bounds__(block_size) add_runs(__grid_constant__ const SortedIndices sorted, __grid_constant__ const IndexAdd o,
                                                       Partials<C> partials, unsigned across, unsigned tiles) {
  __shared__ C shared[1][block_size];
  const std::uint32_t piece = blockIdx.x / tiles % sorted.pieces, a = blockIdx.x / tiles / sorted.pieces;
  const std::uint32_t end = (piece + 1) * piece_length;
  // The same for the whole block.
  if (end >= sorted.count) return;
  const std::uint32_t key = sorted.keys[end];
  if (key >= sorted.length || sorted.keys[end - 1] != key) return;
  const std::uint32_t begin = piece * piece_length;
  if (begin > 0 && sorted.keys[begin - 1] == key) return;

  const std::uint32_t last = (run_end(sorted, key, end) - 1) / piece_length;
  const std::uint32_t c = blockIdx.x % tiles * across + threadIdx.x % across;
  const unsigned y = threadIdx.x / across, down = block_size / across;
  CompensatedSum<C> own;
  if (c < o.columns) {
    // The run leaves every piece but its last, where it ends and so has left a head.
#pragma unroll 4
    for (std::uint32_t p = piece + y; p < last; p += down) own.add(partials.tail(a, p, c));
    if ((last - piece) % down == y) own.add(partials.head(a, last, c));
  }
  C sum[1] = {own.value()};
  column_reduce<PlusOp<C>>(sum, shared, across, y, down);
  if (y > 0 || c >= o.columns) return;
  const std::int64_t at = offset_of(o, a, key, c);
  write<T>(o.y, o.dtype, at, read<T>(o.y, o.dtype, at) + sum[0]);
}

template <class C, class T>
void index_add_as(const View& y, const View& source, const SortedIndices& sorted) {
  const auto rows = static_cast<std::uint32_t>(source.shape[0]), columns = static_cast<std::uint32_t>(source.shape[2]);
  IndexAdd o{source.data, y.data, y.dtype, {}, {}, columns, rows};
  for (int d = 0; d < 3; ++d) {
    o.source_strides[d] = source.strides[d];
    o.y_strides[d] = y.strides[d];
  }
  const std::int64_t sums = 2 * source.shape[0] * sorted.pieces * source.shape[2];
  const Workspace memory(static_cast<std::size_t>(sums) * sizeof(C), y.stream);
  const Partials<C> partials{memory.as<C>(), columns, sorted.pieces, rows};

  const unsigned across = std::min(std::bit_ceil(columns), 128u);
  const unsigned tiles = ceil_div(columns, across), per_block = block_size / across, groups = ceil_div(sorted.pieces, per_block);
  launch(add_pieces<C, T>, blocks_for(source.shape[0] * groups * tiles, 1), block_size, 0, y.stream, sorted, o, partials, across, tiles,
         groups);
  if (sorted.pieces == 1) return;
  const unsigned narrow = std::min(across, 32u), narrow_tiles = ceil_div(columns, narrow);
  launch(add_runs<C, T>, blocks_for(source.shape[0] * sorted.pieces * narrow_tiles, 1), block_size, 0, y.stream, sorted, o, partials,
         narrow, narrow_tiles);
}

}  // namespace

void index_add(Cuda, const View& y, const View& index, const View& source) {
  if (source.numel() == 0 || y.numel() == 0) return;
  const std::int64_t count = source.shape[1], length = y.shape[1];
  constexpr std::int64_t limit = std::int64_t(1) << 30;
  if (count > limit || length > limit || source.shape[0] > limit || source.shape[2] > limit)
    fail("index_add", "expected sizes of at most 2^30");
  const Stream stream = y.stream;
  const auto n = static_cast<std::size_t>(count);
  const bool is_ranked = count <= max_ranked && length <= max_ranked_length;
  const Workspace memory((is_ranked ? 2 : 4) * n * sizeof(std::uint32_t), stream);
  auto *const sorted_keys = memory.as<std::uint32_t>(), *const sorted_positions = sorted_keys + n;
  if (is_ranked) {
    launch(sort_by_rank, blocks_for(count, ranked_per_block), ranking_threads,
           ranking_room(static_cast<std::uint32_t>(count)) * sizeof(std::uint32_t), stream, index.as<const std::int64_t>(),
           index.strides[0], static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(length), sorted_keys, sorted_positions);
  } else {
    auto *const keys = sorted_positions + n, *const positions = keys + n;
    launch(index_keys, blocks_for(count), block_size, 0, stream, index.as<const std::int64_t>(), index.strides[0],
           static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(length), keys, positions);
    sort_pairs(keys, sorted_keys, positions, sorted_positions, count, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(length))),
               stream);
  }
  const SortedIndices sorted{sorted_keys, sorted_positions, static_cast<std::uint32_t>(count),
                             static_cast<std::uint32_t>(ceil_div(count, piece_length)), static_cast<std::uint32_t>(length)};
  switch (y.dtype) {
    case DType::f32: return index_add_as<float, float>(y, source, sorted);
    case DType::f16: return index_add_as<float, f16>(y, source, sorted);
    case DType::bf16: return index_add_as<float, bf16>(y, source, sorted);
    case DType::f64: return index_add_as<double, double>(y, source, sorted);
    case DType::boolean: fail("index_add", "expected a numeric dtype but got bool");
    default: return index_add_as<std::int64_t, Any<std::int64_t>>(y, source, sorted);
  }
}

}  // namespace tern::kernels
