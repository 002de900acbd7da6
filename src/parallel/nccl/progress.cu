#include "cuda/runtime/launch.h"
#include "parallel/nccl/progress.h"

namespace tern::parallel {

// The count itself is on the device: reading it from host memory would cost the kernel a round trip over PCIe.
static __global__ void count_up(std::uint32_t* count, volatile std::uint32_t* shown) { *shown = ++*count; }

Progress::Progress(Device device) {
  gpu::use({device});
  void *counts = nullptr, *shown = nullptr;
  gpu::check(cudaHostAlloc(&shown, 2 * sizeof(std::uint32_t), cudaHostAllocDefault), "cudaHostAlloc");
  shown_ = static_cast<volatile std::uint32_t*>(shown);
  for (const int i : {0, 1}) shown_[i] = 0;
  gpu::check(cudaMalloc(&counts, 2 * sizeof(std::uint32_t)), "cudaMalloc");
  counts_ = static_cast<std::uint32_t*>(counts);
  gpu::check(cudaMemset(counts, 0, 2 * sizeof(std::uint32_t)), "cudaMemset");
}

Progress::~Progress() {
  cudaFree(counts_);
  cudaFreeHost(const_cast<std::uint32_t*>(shown_));
}

void Progress::count(Stream stream, int which) { gpu::launch(count_up, dim3(1), dim3(1), 0, stream, counts_ + which, shown_ + which); }

}  // namespace tern::parallel
