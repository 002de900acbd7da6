#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/index/sort_key.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/layout.h"
#include "ops/kernels/index.h"
#include "tensor/dispatch.h"

// The k largest of each row, for few k: a block a row. Each thread keeps the largest of the elements that are its own, the block finds the
// largest of those, k times, and the warp of the thread that it was taken from looks for that thread's next one together. The row is read
// once, and a thread's share of it again for each element taken.
namespace tern::kernels {

using namespace gpu;

namespace {

/// A sort key of an element and its index, so that no two are equal: larger elements are larger, of equal ones the first. 0 is none.
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

/// Of elements first, first + step, ...: the largest that comes after `last`.
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

}  // namespace

void topk(Cuda, const View& x, const View& values, const View& indices) {
  if (values.numel() == 0) return;
  Shape shape = x.shape;
  Strides strides = x.strides;
  const std::int64_t length = shape.back(), step = strides.back();
  shape.pop_back();
  strides.pop_back();
  Layout<1> rows;
  for (int d = shape.size() - 1; d >= 0; --d) rows.push(shape[d], {strides[d]});
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
