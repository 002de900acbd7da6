#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/index/sort.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/index.h"
#include "ops/kernels/random.h"
#include "tensor/dispatch.h"
#include "tensor/layout.h"

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
namespace tern::gpu {

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

template void sort_pairs(const std::uint32_t*, std::uint32_t*, const std::uint32_t*, std::uint32_t*, std::int64_t, int, Stream);
template void sort_pairs(const std::uint64_t*, std::uint64_t*, const std::uint32_t*, std::uint32_t*, std::int64_t, int, Stream);

}  // namespace tern::gpu

namespace tern::kernels {

using namespace gpu;

namespace {

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
template <class Key>
struct Pairs {
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

void sort(Cuda, const View& x, const View& values, const View& indices, bool descending) {
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

  const Pairs<std::uint64_t> pairs(count, stream);
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

void permutation(Cuda, const View& y, PhiloxState state) {
  const std::int64_t count = y.shape[0];
  if (count == 0) return;
  check_count("permutation", count);
  const Pairs<std::uint64_t> pairs(count, y.stream);
  launch(random_keys, blocks_for(count), block_size, 0, y.stream, state, static_cast<std::uint32_t>(count), pairs.keys, pairs.positions);
  sort_pairs(pairs.keys, pairs.sorted_keys, pairs.positions, pairs.sorted, count, 64, y.stream);
  launch(widen_positions, blocks_for(count), block_size, 0, y.stream, pairs.sorted, count, y.as<std::int64_t>(), y.strides[0]);
}

void searchsorted(Cuda, const View& sorted, const View& x, const View& places, bool right) {
  if (x.numel() == 0) return;
  dispatch_numbers(x.dtype, "searchsorted", [&]<class T>() {
    launch(search_rows<T>, blocks_for(x.numel()), block_size, 0, x.stream, sorted.as<const T>(), x.as<const T>(), places.as<std::int64_t>(),
           sorted.shape[1], x.shape[1], x.numel(), right);
  });
}

void topk(Cuda, const View& x, const View& values, const View& indices) {
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

}  // namespace tern::kernels
