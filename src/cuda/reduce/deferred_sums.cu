#include <algorithm>

#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/runtime/launch.h"
#include "ops/kernels/reduce.h"

namespace tern::kernels {

using namespace gpu;

namespace {

constexpr int across = 16, groups = block_size / across;  ///< columns of a block, and threads that share one
constexpr int max_sums = 64;                              ///< sums of a kernel, whose parameters take up to 4 KB

struct Sums {
  PartialSum all[max_sums];
};

/// Sum of a column over the parts, in the threads whose group is 0.
template <class C>
__device__ C add_up(const PartialSum& sum, unsigned column, C (&shared)[groups][across]) {
  const unsigned x = threadIdx.x % across, y = threadIdx.x / across;
  C total = 0;
  if (column < sum.columns) {
    const C* const parts = static_cast<const C*>(sum.parts) + column;
#pragma unroll 8
    for (unsigned part = y; part < sum.count; part += groups) total += parts[part * sum.pitch];
  }
  shared[y][x] = total;
  __syncthreads();
  return y == 0 ? sum_column(shared, x) : C(0);
}

/// One row of blocks for each sum.
__global__ void __launch_bounds__(block_size) add_parts(__grid_constant__ const Sums sums) {
  __shared__ double shared[groups][across];
  grid_dependency_wait();  // the kernel that leaves the parts may still be running
  const PartialSum& sum = sums.all[blockIdx.y];
  const unsigned column = blockIdx.x * across + threadIdx.x % across;
  if (blockIdx.x * across >= sum.columns) return;
  double total = 0;
  if (sum.dtype == DType::f64) total = add_up<double>(sum, column, shared);
  else total = add_up<float>(sum, column, reinterpret_cast<float (&)[groups][across]>(shared));
  if (threadIdx.x >= across || column >= sum.columns) return;
  const std::int64_t at = column * sum.stride;
  write<AnyFloat>(sum.to, sum.dtype, at, sum.adds ? read<AnyFloat>(sum.to, sum.dtype, at) + total : total);
}

}  // namespace

void AddPartialSums::run(Cuda) const {
  // Long and short sums in separate launches, because every row of blocks has as many as the longest needs.
  constexpr unsigned similar = 16;
  std::stable_sort(sums.begin(), sums.end(), [](const PartialSum& a, const PartialSum& b) { return a.columns > b.columns; });
  for (std::size_t first = 0, last = 0; first < sums.size(); first = last) {
    Sums some{};
    while (last < sums.size() && last - first < max_sums && sums[first].columns <= similar * sums[last].columns) {
      some.all[last - first] = sums[last];
      ++last;
    }
    const dim3 blocks(blocks_for(sums[first].columns, across), static_cast<unsigned>(last - first));
    launch(add_parts, {.grid = blocks, .block = block_size, .stream = stream, .overlaps_previous = true}, some);
  }
}

}  // namespace tern::kernels
