#include "cuda/allocator.h"

#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "cuda/launch.h"

// cudaMalloc and cudaFree wait for the device, so memory that a tensor gives back is kept for the next one. Note [Stream
// order]: a free block may still be in use by kernels queued on its stream. It is handed out again on that stream only,
// where new work queues behind the old. Memory that is used on a second stream must outlive that use.
namespace tern::gpu {

namespace {

using backend::MemoryStatistics;

class CachingAllocator {
 public:
  void* allocate(std::size_t bytes, Stream stream) {
    const std::size_t size = round_up(bytes);
    const std::lock_guard lock(mutex_);
    void* data = take(size, stream);
    if (!data) data = reserve(size, bytes, stream);
    ++statistics_.allocations;
    statistics_.allocated += size;
    statistics_.peak_allocated = std::max(statistics_.peak_allocated, statistics_.allocated);
    return data;
  }

  void deallocate(void* data, std::size_t bytes, Stream stream) noexcept {
    const std::lock_guard lock(mutex_);
    const auto block = live_.find(data);
    if (block == live_.end()) return;
    statistics_.allocated -= round_up(bytes);
    pools_[key(stream)].emplace(block->second, data);
    live_.erase(block);
  }

  void release_all() {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, pool] : pools_) {
      if (pool.empty()) continue;
      check(cudaSetDevice(key.first), "cudaSetDevice");
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      release(key.first);
    }
  }

  void hold(Stream stream, bool is_held) {
    const std::lock_guard lock(mutex_);
    if (is_held) held_.insert(key(stream));
    else held_.erase(key(stream));
  }

  MemoryStatistics statistics() {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    statistics_.peak_allocated = statistics_.allocated;
  }

 private:
  using Key = std::pair<int, void*>;                  // device, stream
  using Pool = std::multimap<std::size_t, void*>;     // free blocks by size

  /// Gives the device's free blocks back. The device must be idle and current.
  void release(int device) {
    for (auto& [key, pool] : pools_) {
      if (key.first != device || held_.contains(key)) continue;
      while (!pool.empty()) {
        const auto [size, data] = *pool.begin();
        check(cudaFree(data), "cudaFree");
        statistics_.reserved -= size;
        pool.erase(pool.begin());
      }
    }
  }

  static Key key(Stream stream) { return {stream.device.index, stream.handle}; }

  /// Sizes are rounded to steps of at most an eighth, so that close sizes share blocks.
  static std::size_t round_up(std::size_t bytes) {
    std::size_t step = 512;
    while (step < bytes / 16) step *= 2;
    return (bytes + step - 1) / step * step;
  }

  /// The smallest free block that fits, unless more than a quarter of it would lie idle.
  void* take(std::size_t size, Stream stream) {
    Pool& pool = pools_[key(stream)];
    const auto found = pool.lower_bound(size);
    if (found == pool.end() || found->first > size + std::max<std::size_t>(size / 4, 512)) return nullptr;
    void* data = found->second;
    live_.emplace(data, found->first);
    pool.erase(found);
    return data;
  }

  void* reserve(std::size_t size, std::size_t bytes, Stream stream) {
    use(stream);
    void* data = nullptr;
    if (!malloc(&data, size)) {
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      release(stream.device.index);
      if (!malloc(&data, size)) fail_out_of_memory(bytes, stream.device);
    }
    statistics_.reserved += size;
    live_.emplace(data, size);
    return data;
  }

  /// False where memory is short.
  static bool malloc(void** data, std::size_t size) {
    const cudaError_t code = cudaMalloc(data, size);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // an error that is dealt with must not meet the next check
      return false;
    }
    check(code, "cudaMalloc");
    return true;
  }

  [[noreturn]] void fail_out_of_memory(std::size_t bytes, Device device) {
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
    const auto mib = [](std::size_t count) { return std::to_string(count >> 20) + " MiB"; };
    fail("cuda", "expected " + std::to_string(bytes) + " bytes (" + mib(bytes) + ") of memory on " + to_string(device) + " but got none: " +
                     mib(free) + " free of " + mib(total) + ", " + mib(statistics_.allocated) + " in live tensors, " +
                     mib(statistics_.reserved) + " reserved");
  }

  std::mutex mutex_;
  std::map<Key, Pool> pools_;
  std::set<Key> held_;
  std::unordered_map<void*, std::size_t> live_;
  MemoryStatistics statistics_;
};

/// Never destroyed: tensors of static duration give memory back after main, when no call of the runtime is safe any more.
CachingAllocator& allocator() {
  static auto& instance = *new CachingAllocator;
  return instance;
}

}  // namespace

void release_cached_memory() { allocator().release_all(); }
void hold_cached_memory(Stream stream, bool is_held) { allocator().hold(stream, is_held); }

}  // namespace tern::gpu

namespace tern::backend {

void* allocate(Cuda, std::size_t bytes, Stream stream) { return gpu::allocator().allocate(bytes, stream); }
void deallocate(Cuda, void* data, std::size_t bytes, Stream stream) noexcept { gpu::allocator().deallocate(data, bytes, stream); }
MemoryStatistics memory_statistics(Cuda) { return gpu::allocator().statistics(); }
void reset_peak_memory(Cuda) { gpu::allocator().reset_peak(); }

}  // namespace tern::backend
