#include <cub/device/device_radix_sort.cuh>

#include "cuda/index/radix_sort.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"

// CUB's radix sort, compiled once for each width of keys: it takes the compiler longer than most of our files.
namespace tern::gpu {

namespace {

template <class Key>
void sort(const Key* keys, Key* sorted_keys, const std::uint32_t* values, std::uint32_t* sorted_values, std::int64_t count, int bits,
          Stream stream) {
  use(stream);
  if (bits == 0) {  // all keys are equal, and the order stays
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

}  // namespace

void sort_pairs(const std::uint32_t* keys, std::uint32_t* sorted_keys, const std::uint32_t* values, std::uint32_t* sorted_values,
                std::int64_t count, int bits, Stream stream) {
  sort(keys, sorted_keys, values, sorted_values, count, bits, stream);
}

void sort_pairs(const std::uint64_t* keys, std::uint64_t* sorted_keys, const std::uint32_t* values, std::uint32_t* sorted_values,
                std::int64_t count, int bits, Stream stream) {
  sort(keys, sorted_keys, values, sorted_values, count, bits, stream);
}

}  // namespace tern::gpu
