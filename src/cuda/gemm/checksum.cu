#include "cuda/device/group.cuh"
#include "cuda/gemm/checksum.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"

namespace tern::gpu {

namespace {

/// The sum of all 16-bit words, each times an odd number of its own: whole numbers, so the order of the additions is free.
__global__ void __launch_bounds__(block_size) add_words(const std::uint16_t* data, std::size_t count, unsigned long long* total) {
  unsigned long long sum = 0;
  for (std::size_t i = blockIdx.x * std::size_t(block_size) + threadIdx.x; i < count; i += gridDim.x * std::size_t(block_size))
    sum += data[i] * ((i * 0x9e3779b97f4a7c15ull >> 8) | 1);
  sum = warp_all_reduce<PlusOp<unsigned long long>>(sum);
  if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

}  // namespace

std::uint64_t checksum_of(const void* data, std::size_t bytes, Stream stream) {
  const Workspace total(sizeof(unsigned long long), stream);
  check(cudaMemsetAsync(total.as<void>(), 0, sizeof(unsigned long long), handle(stream)), "cudaMemsetAsync");
  const unsigned blocks = std::min(1024u, blocks_for(static_cast<std::int64_t>(bytes / 2)));
  launch(add_words, blocks, block_size, 0, stream, static_cast<const std::uint16_t*>(data), bytes / 2, total.as<unsigned long long>());
  unsigned long long sum = 0;
  check(cudaMemcpyAsync(&sum, total.as<void>(), sizeof(sum), cudaMemcpyDeviceToHost, handle(stream)), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(handle(stream)), "cudaStreamSynchronize");
  return sum;
}

}  // namespace tern::gpu
