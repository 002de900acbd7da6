#include "cuda/device/convert.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/index/radix_sort.h"
#include "cuda/index/sort_key.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/layout.h"
#include "ops/kernels/index.h"
#include "ops/kernels/random.h"
#include "tensor/dispatch.h"

// Sorting: each element becomes an unsigned key of the same order (sort_key.cuh; inverted for descending order), and CUB's stable radix
// sort orders the whole tensor at once, with the number of the row as the leading bits. Keys of 64 bits have no room for it: they are
// sorted by value, then, stably, by row.
namespace tern::kernels {

using namespace gpu;

namespace {

/// Keys, with the row as leading bits if asked, and the elements' positions.
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

/// Keys and positions, and room for them sorted.
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

}  // namespace

void sort(Cuda, const View& x, const View& values, const View& indices, bool descending) {
  const std::int64_t count = x.numel();
  if (count == 0) return;
  check_count("sort", count);
  const std::int64_t length = x.shape.back(), rows = count / length;
  const auto n = static_cast<std::uint32_t>(count);
  const Stream stream = values.stream;
  const int key_bits = static_cast<int>(8 * size_of(x.dtype)), row_bits = bits_for(static_cast<std::uint64_t>(rows));
  const bool with_rows = key_bits < 64;
  const Divider divider(length);
  const Indexer<1> indexer(layout_of(x.shape, {x.strides}));

  const Pairs<std::uint64_t> pairs(count, stream);
  launch(make_keys, blocks_for(count), block_size, 0, stream, x.data, x.dtype, indexer, n, divider, key_bits, descending, with_rows,
         pairs.keys, pairs.positions);
  sort_pairs(pairs.keys, pairs.sorted_keys, pairs.positions, pairs.sorted, count, with_rows ? key_bits + row_bits : key_bits, stream);
  const std::uint32_t* sorted = pairs.sorted;
  if (!with_rows && rows > 1) {
    // The keys are done with: their memory holds the rows, sorted and not.
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

}  // namespace tern::kernels
