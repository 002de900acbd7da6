#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/index.h"
#include "ops/kernels/random.h"
#include "tensor/dispatch.h"
#include "tensor/layout.h"
#include "tensor/sizes.h"

// Sorting. Each element is converted to an unsigned key of the same order, inverted for descending order: a float's key is its bits, with
// the sign bit flipped and negative numbers inverted; NaN comes last, and both zeros are equal. CUB's stable radix sort orders the whole
// tensor at once, with the row's index as the leading bits. 64-bit keys have no room for it: they are sorted by value, then, stably, by
// row.
//
// The k largest of each row, for small k: one block per row. Each thread keeps the largest of its own elements; k times the block finds the
// largest of those, and the warp of the thread that it came from finds that thread's next one together. The row is read once, and a
// thread's part of it again for each element that is taken.
//
// Places in a sorted row: a thread for each element halves the row.
namespace tern::kernels {

using namespace gpu;

namespace {

/// Sorts `count` pairs, at most 2^30, by the low `bits` bits of their keys, which are std::uint32_t or std::uint64_t, ascending and stably.
/// Results are written to the `sorted` arrays, which must not overlap the others.
template <class Key>
void sort_pairs(const Key* keys, Key* sorted_keys, const std::uint32_t* values, std::uint32_t* sorted_values, std::int64_t count, int bits,
                Stream stream) {
  use(stream);
  if (bits == 0) {  // all keys are equal: the order does not change
    const auto n = static_cast<std::size_t>(count);
    check(cudaMemcpyAsync(sorted_keys, keys, n * sizeof(Key), cudaMemcpyDeviceToDevice, handle(stream)), "sort");
    check(cudaMemcpyAsync(sorted_values, values, n * sizeof(std::uint32_t), cudaMemcpyDeviceToDevice, handle(stream)), "sort");
    return;
  }
  const auto run = [&](void* memory, std::size_t& bytes) {
    const auto n = static_cast<int>(count);  // callers have at most 2^30; CUB is faster with 32-bit offsets
    check(cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted_keys, values, sorted_values, n, 0, bits, handle(stream)), "sort");
  };
  std::size_t bytes = 0;
  run(nullptr, bytes);
  const Workspace memory(bytes, stream);
  run(memory.as<>(), bytes);
}

template <class Bits>
__device__ __forceinline__ Bits order_preserving(Bits bits, Bits sign) {
  return bits & sign ? Bits(~bits & (sign | (sign - 1))) : Bits(bits | sign);
}

/// Key of an element, in the low key_bits(dtype) bits.
__device__ inline std::uint64_t key_of(const void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::f64: {
      const double value = static_cast<const double*>(data)[offset];
      if (value != value) return ~std::uint64_t(0);
      return order_preserving(static_cast<std::uint64_t>(__double_as_longlong(value == 0 ? 0.0 : value)), std::uint64_t(1) << 63);
    }
    case DType::f32: {
      const float value = static_cast<const float*>(data)[offset];
      if (value != value) return 0xffffffffu;
      return order_preserving<std::uint32_t>(__float_as_uint(value == 0 ? 0.0f : value), 0x80000000u);
    }
    case DType::f16:
    case DType::bf16: {
      const std::uint32_t bits = static_cast<const std::uint16_t*>(data)[offset];
      const std::uint32_t infinity = dtype == DType::f16 ? 0x7c00u : 0x7f80u, magnitude = bits & 0x7fffu;
      if (magnitude > infinity) return 0xffffu;
      return order_preserving<std::uint32_t>(magnitude == 0 ? 0u : bits, 0x8000u);
    }
    case DType::i64: return static_cast<std::uint64_t>(static_cast<const std::int64_t*>(data)[offset]) ^ (std::uint64_t(1) << 63);
    case DType::i32: return static_cast<std::uint32_t>(static_cast<const std::int32_t*>(data)[offset]) ^ 0x80000000u;
    default: return static_cast<const std::uint8_t*>(data)[offset];
  }
}

/// Keys, with the row as leading bits if `with_rows`, and the elements' positions.
__global__ void __launch_bounds__(block_size)
    make_keys(const void* x, DType dtype, __grid_constant__ const Indexer<1> indexer, std::uint32_t count, Divider length, int key_bits,
              bool descending, bool with_rows, std::uint64_t* keys, std::uint32_t* positions) {
  const std::uint32_t i = blockIdx.x * block_size + threadIdx.x;
  if (i >= count) return;
  std::int64_t offsets[1];
  indexer.locate(i, offsets);
  std::uint64_t key = key_of(x, dtype, offsets[0]);
  if (descending) key = ~key & (~std::uint64_t(0) >> (64 - key_bits));
  if (with_rows) key |= std::uint64_t(length.divide(i)) << key_bits;
  keys[i] = key;
  positions[i] = i;
}

__global__ void __launch_bounds__(block_size)
    rows_of(const std::uint32_t* positions, std::uint32_t count, Divider length, std::uint32_t* rows) {
  const std::uint32_t i = blockIdx.x * block_size + threadIdx.x;
  if (i < count) rows[i] = length.divide(positions[i]);
}

template <class Bits>
__global__ void __launch_bounds__(block_size)
    take_sorted(const Bits* x, __grid_constant__ const Indexer<1> indexer, const std::uint32_t* positions, std::uint32_t count,
                Divider length, Bits* values, std::int64_t* indices) {
  const std::uint32_t i = blockIdx.x * block_size + threadIdx.x;
  if (i >= count) return;
  const std::uint32_t position = positions[i];
  std::int64_t offsets[1];
  indexer.locate(position, offsets);
  values[i] = x[offsets[0]];
  indices[i] = position - length.divide(position) * length.divisor;
}

__global__ void __launch_bounds__(block_size)
    random_keys(PhiloxState state, std::uint32_t count, std::uint64_t* keys, std::uint32_t* positions) {
  const std::uint32_t i = blockIdx.x * block_size + threadIdx.x;
  if (i >= count) return;
  const PhiloxBlock block = philox(state.seed, state.offset + (state.base ? *state.base : 0) + i);
  keys[i] = std::uint64_t(block.words[1]) << 32 | block.words[0];
  positions[i] = i;
}

__global__ void __launch_bounds__(block_size)
    widen_positions(const std::uint32_t* positions, std::int64_t count, std::int64_t* y, std::int64_t stride) {
  const std::int64_t i = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (i < count) y[i * stride] = positions[i];
}

/// Keys and positions, and memory for the sorted ones.
struct Pairs {
  using Key = std::uint64_t;

  Pairs(std::int64_t count, Stream stream)
      : keys_memory(2 * static_cast<std::size_t>(count) * sizeof(Key), stream),
        positions_memory(2 * static_cast<std::size_t>(count) * sizeof(std::uint32_t), stream),
        keys(keys_memory.as<Key>()),
        sorted_keys(keys + count),
        positions(positions_memory.as<std::uint32_t>()),
        sorted(positions + count) {}
  Workspace keys_memory, positions_memory;
  Key *keys, *sorted_keys;
  std::uint32_t *positions, *sorted;
};

void check_count(const char* op, std::int64_t count) {
  if (count > std::int64_t(1) << 30) fail(op, "expected at most 2^30 elements but got " + std::to_string(count));
}

/// Sort key of an element and its index, so that no two are equal: larger elements are larger, among equal ones the first is. 0 means none.
using Rank = std::uint64_t;

struct LargestOp {
  using Accumulator = Rank;
  static __device__ Rank identity() { return 0; }
  static __device__ Rank combine(Rank a, Rank b) { return a > b ? a : b; }
};

struct Elements {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0;
  std::uint32_t length = 0;

  __device__ __forceinline__ Rank rank(std::int64_t offset, std::uint32_t i) const {
    return key_of(data, dtype, offset + i * stride) << 32 | (0xffffffffu - i);
  }
};

__device__ __forceinline__ std::uint32_t index_of(Rank rank) { return 0xffffffffu - static_cast<std::uint32_t>(rank); }

/// Among elements first, first + step, ...: the largest that comes after `last`.
__device__ __forceinline__ Rank largest_after(const Elements& x, std::int64_t offset, std::uint64_t first, std::uint32_t step, Rank last) {
  Rank best = 0;
#pragma unroll 4
  for (std::uint64_t i = first; i < x.length; i += step) {
    const Rank rank = x.rank(offset, static_cast<std::uint32_t>(i));
    if (rank < last && rank > best) best = rank;
  }
  return best;
}

template <class Bits>
__global__ void __launch_bounds__(1024)
    take_largest(Elements x, __grid_constant__ const Indexer<1> rows, unsigned k, Bits* values, std::int64_t* indices) {
  __shared__ Rank winner;
  std::int64_t offsets[1];
  rows.locate(blockIdx.x, offsets);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Rank own = largest_after(x, offsets[0], threadIdx.x, blockDim.x, ~Rank(0));
  for (unsigned taken = 0; taken < k; ++taken) {
    const Rank largest = block_reduce<LargestOp>(own);
    if (threadIdx.x == 0) {
      winner = largest;
      const std::uint32_t index = index_of(largest);
      const std::int64_t to = std::int64_t(blockIdx.x) * k + taken;
      values[to] = static_cast<const Bits*>(x.data)[offsets[0] + index * x.stride];
      indices[to] = index;
    }
    __syncthreads();
    const Rank last = winner;
    const unsigned owner = index_of(last) % blockDim.x;
    if (owner / 32 == warp) {
      const std::uint64_t first = owner + std::uint64_t(lane) * blockDim.x;
      const Rank next = warp_all_reduce<LargestOp>(largest_after(x, offsets[0], first, 32 * blockDim.x, last));
      if (lane == owner % 32) own = next;
    }
  }
}

/// One thread for each element of x.
template <class T>
__global__ void __launch_bounds__(block_size) search_rows(const T* sorted, const T* x, std::int64_t* places, std::int64_t length,
                                                          std::int64_t columns, std::int64_t count, bool right) {
  const std::int64_t i = blockIdx.x * std::int64_t(block_size) + threadIdx.x;
  if (i < count) places[i] = place_in(sorted + i / columns * length, length, x[i], right);
}

}  // namespace

void Sort::run(Cuda) const {
  const std::int64_t count = x.numel();
  if (count == 0) return;
  check_count("sort", count);
  const std::int64_t length = x.shape.back(), rows = count / length;
  const auto n = static_cast<std::uint32_t>(count);
  const Stream stream = values.stream;
  const int key_bits = static_cast<int>(8 * size_of(x.dtype)),
            row_bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows - 1)));
  const bool with_rows = key_bits < 64;
  const Divider divider(length);
  const Indexer<1> indexer(layout_of(x.shape, {x.strides}));

  const Pairs pairs(count, stream);
  launch(make_keys, blocks_for(count), block_size, 0, stream, x.data, x.dtype, indexer, n, divider, key_bits, descending, with_rows,
         pairs.keys, pairs.positions);
  sort_pairs(pairs.keys, pairs.sorted_keys, pairs.positions, pairs.sorted, count, with_rows ? key_bits + row_bits : key_bits, stream);
  const std::uint32_t* sorted = pairs.sorted;
  if (!with_rows && rows > 1) {
    // The keys are no longer needed: their memory holds the rows, sorted and unsorted.
    auto* const row = reinterpret_cast<std::uint32_t*>(pairs.keys);
    auto* const sorted_row = reinterpret_cast<std::uint32_t*>(pairs.sorted_keys);
    launch(rows_of, blocks_for(count), block_size, 0, stream, pairs.sorted, n, divider, row);
    sort_pairs(row, sorted_row, pairs.sorted, pairs.positions, count, row_bits, stream);
    sorted = pairs.positions;
  }
  dispatch_bits(x.dtype, [&]<class Bits>() {
    launch(take_sorted<Bits>, blocks_for(count), block_size, 0, stream, x.as<const Bits>(), indexer, sorted, n, divider, values.as<Bits>(),
           indices.as<std::int64_t>());
  });
}

void Permutation::run(Cuda) const {
  const std::int64_t count = y.shape[0];
  if (count == 0) return;
  check_count("permutation", count);
  const Pairs pairs(count, y.stream);
  launch(random_keys, blocks_for(count), block_size, 0, y.stream, state, static_cast<std::uint32_t>(count), pairs.keys, pairs.positions);
  sort_pairs(pairs.keys, pairs.sorted_keys, pairs.positions, pairs.sorted, count, 64, y.stream);
  launch(widen_positions, blocks_for(count), block_size, 0, y.stream, pairs.sorted, count, y.as<std::int64_t>(), y.strides[0]);
}

void Searchsorted::run(Cuda) const {
  if (x.numel() == 0) return;
  dispatch_numbers(x.dtype, "searchsorted", [&]<class T>() {
    launch(search_rows<T>, blocks_for(x.numel()), block_size, 0, x.stream, sorted.as<const T>(), x.as<const T>(), places.as<std::int64_t>(),
           sorted.shape[1], x.shape[1], x.numel(), right);
  });
}

void Topk::run(Cuda) const {
  if (values.numel() == 0) return;
  Shape shape = x.shape;
  Strides strides = x.strides;
  const std::int64_t length = shape.back(), step = strides.back();
  shape.pop_back();
  strides.pop_back();
  Layout<1> rows = layout_of(shape, {strides});
  if (rows.dims == 0) rows.push(1, {0});
  if (rows.numel() > std::int64_t{1} << 30) fail("topk", "expected at most 2^30 rows but got " + std::to_string(rows.numel()));
  const Elements elements{x.data, x.dtype, step, static_cast<std::uint32_t>(length)};
  const unsigned threads = length > 4096 ? 1024 : length > 512 ? block_size : 64;
  dispatch_bits(x.dtype, [&]<class Bits>() {
    launch(take_largest<Bits>, static_cast<unsigned>(rows.numel()), threads, 0, x.stream, elements, Indexer<1>(rows),
           static_cast<unsigned>(values.shape.back()), values.as<Bits>(), indices.as<std::int64_t>());
  });
}

// y[a, index[i], c] += source[a, i, c], the gradient of an embedding, deterministic: atomics would add in the order of arrival, so the
// indices are sorted, stably, and each run of equal ones is added in ascending order of position.
//
// Note [Runs]: an index may occur ten thousand times (padding), or never. The sorted list is divided into pieces of fixed length,
// independent of the runs. A run within one piece is added to y directly. One that crosses pieces leaves a partial sum in each of them, and
// a second kernel adds those: in each piece at most one run comes in from the left (its sum is the piece's `head` if it ends there) and at
// most one leaves to the right (`tail`; a run that does both is a tail).

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

struct Additions {
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
__device__ __forceinline__ std::int64_t offset_of(const Additions& o, std::uint32_t a, std::uint32_t n, std::uint32_t c) {
  return a * o.y_strides[0] + n * o.y_strides[1] + c * o.y_strides[2];
}

/// A block has `across` columns of block_size / across pieces.
template <class C, class T>
__global__ void __launch_bounds__(block_size) add_pieces(__grid_constant__ const SortedIndices sorted, __grid_constant__ const Additions o,
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
__global__ void __launch_bounds__(block_size) add_runs(__grid_constant__ const SortedIndices sorted, __grid_constant__ const Additions o,
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
  Additions o{source.data, y.data, y.dtype, {}, {}, columns, rows};
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

void IndexAdd::run(Cuda) const {
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
