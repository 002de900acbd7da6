#include "cuda/partial_sums.h"

#include "cuda/convert.cuh"
#include "cuda/launch.h"
#include "cuda/warp.cuh"
#include "tensor/context.h"

namespace tern::gpu {

namespace {

constexpr int across = 16, groups = block_size / across;  ///< columns of a block, and threads that share one
constexpr int most_sums = 64;                             ///< of a kernel: its parameters take up to 4 KB

struct Sums {
  PartialSum all[most_sums];
  unsigned first_block[most_sums];
  int count;
};

/// A column's sum over the parts, in the threads whose group is 0.
template <class C>
__device__ C add_up(const PartialSum& sum, unsigned column, C (&shared)[block_size / 32][across]) {
  const unsigned x = threadIdx.x % across, y = threadIdx.x / across;
  C total = 0;
  if (column < sum.columns) {
    const C* const parts = static_cast<const C*>(sum.parts) + column;
#pragma unroll 8
    for (unsigned part = y; part < sum.count; part += groups) total += parts[part * sum.pitch];
  }
  total += shuffle_xor(total, across);
  if (threadIdx.x % 32 < across) shared[threadIdx.x / 32][x] = total;
  __syncthreads();
  total = 0;
  if (y == 0)
#pragma unroll
    for (int warp = 0; warp < block_size / 32; ++warp) total += shared[warp][x];
  return total;
}

__global__ void __launch_bounds__(block_size) add_parts(__grid_constant__ const Sums sums) {
  __shared__ double shared[block_size / 32][across];
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // it may have started while the kernel ended that leaves the parts
#endif
  int low = 0, high = sums.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (blockIdx.x >= sums.first_block[middle]) low = middle;
    else high = middle - 1;
  }
  const PartialSum& sum = sums.all[low];
  const unsigned column = (blockIdx.x - sums.first_block[low]) * across + threadIdx.x % across;
  double total = 0;
  if (sum.dtype == DType::f64) total = add_up<double>(sum, column, shared);
  else total = add_up<float>(sum, column, reinterpret_cast<float(&)[block_size / 32][across]>(shared));
  if (threadIdx.x >= across || column >= sum.columns) return;
  const std::int64_t at = column * sum.stride;
  write<AnyFloat>(sum.to, sum.dtype, at, sum.adds ? read<AnyFloat>(sum.to, sum.dtype, at) + total : total);
}

/// The kernel may start while the one before it ends, and waits for that end itself.
void launch_overlapping(unsigned blocks, Stream stream, const Sums& sums) {
  int generation = 0;
  check(cudaDeviceGetAttribute(&generation, cudaDevAttrComputeCapabilityMajor, stream.device.index), "cudaDeviceGetAttribute");
  if (generation < 9) return launch(add_parts, blocks, block_size, 0, stream, sums);
  use(stream);
  void* pointers[] = {const_cast<Sums*>(&sums)};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{blocks, block_size, 0, handle(stream), &attribute, 1};
  check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(add_parts), pointers), "launch");
}

}  // namespace

void* DevicePartialSums::memory(std::size_t bytes) {
  constexpr std::size_t most_bytes = std::size_t(32) << 20;
  if (bytes_ + bytes > most_bytes) finish();
  bytes_ += bytes;
  return memory_.emplace_back(bytes, stream_).as<void>();
}

void DevicePartialSums::finish() {
  for (std::size_t first = 0; first < sums_.size(); first += most_sums) {
    Sums some{};
    some.count = static_cast<int>(std::min(sums_.size() - first, std::size_t(most_sums)));
    unsigned blocks = 0;
    for (int i = 0; i < some.count; ++i) {
      some.all[i] = sums_[first + i];
      some.first_block[i] = blocks;
      blocks += blocks_for(some.all[i].columns, across);
    }
    launch_overlapping(blocks, stream_, some);
  }
  sums_.clear();
  memory_.clear();
  bytes_ = 0;
}

}  // namespace tern::gpu

std::unique_ptr<tern::kernels::PartialSums> tern::kernels::partial_sums(Cuda, Device device) {
  return std::make_unique<gpu::DevicePartialSums>(context().stream(device));
}
