#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "backend/device.h"
#include "backend/memory.h"
#include "backend/stream.h"

namespace tern::backend {

namespace {

// A training step requests the blocks that the step before has freed. Returning them to the system in between would cost a page fault for
// every 4 KiB that is used again, which is more than most ops cost. The cached memory is bounded: together with the memory in use it is at
// most twice the peak use, plus 16 MiB. A step's blocks are fewer than that, and stay cached. Without a bound, a size that grows from step
// to step would leave all of its earlier blocks behind. Where memory has run out, an eighth of it is left to all others who allocate, so
// that a program that catches OutOfMemory goes on with smaller tensors. Under AddressSanitizer nothing is cached, so that accesses to freed
// memory are detected.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool keeps_blocks = false;
#else
constexpr bool keeps_blocks = true;
#endif

class CachingAllocator {
 public:
  void* allocate(std::size_t bytes) {
    const std::size_t size = size_for(bytes);
    const std::lock_guard lock(mutex_);
    void* data = nullptr;
    FreeBlocks* const blocks = keeps_blocks ? &free_[size] : nullptr;  // made here, as deallocate() may not fail
    if (blocks && blocks->head) {
      data = std::exchange(blocks->head, blocks->head->next);
      blocks->last_use = statistics_.allocations;
    } else {
      trim(size);
      data = reserve(size, bytes);
      statistics_.reserved += size;
      tell(MemoryAction::segment_alloc, data, size);
    }
    ++statistics_.allocations;
    statistics_.allocated += size;
    statistics_.peak_allocated = std::max(statistics_.peak_allocated, statistics_.allocated);
    max_allocated_ = std::max(max_allocated_, statistics_.allocated);
    tell(MemoryAction::alloc, data, size, bytes);
    return data;
  }

  void deallocate(void* data, std::size_t bytes) noexcept {
    const std::size_t size = size_for(bytes);
    const std::lock_guard lock(mutex_);
    statistics_.allocated -= size;
    tell(MemoryAction::free, data, size, bytes);
    if (!keeps_blocks) {
      statistics_.reserved -= size;
      tell(MemoryAction::segment_free, data, size);
      return std::free(data);
    }
    FreeBlocks& blocks = free_.find(size)->second;
    blocks.head = new (data) FreeBlock{blocks.head};
    blocks.last_use = statistics_.allocations;
    if (statistics_.reserved > limit_) trim(0);
  }

  MemoryStatistics statistics() {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }
  void observe(MemoryObserver* watcher) {
    const std::lock_guard lock(mutex_);
    if (watcher && observer_) fail("memory", "expected one observer of the CPU's memory at a time but got a second one");
    observer_ = watcher;
    for (const auto& [size, blocks] : free_)
      for (const FreeBlock* block = blocks.head; block; block = block->next) tell(MemoryAction::segment_alloc, block, size);
    if (observer_) observer_->on_begin(statistics_);
  }
  void release_all() {
    const std::lock_guard lock(mutex_);
    release_cache();
  }
  static std::size_t size_for(std::size_t bytes) { return keeps_blocks ? round_up(bytes) : bytes; }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    statistics_.peak_allocated = statistics_.allocated;
  }

 private:
  struct FreeBlock {
    FreeBlock* next;
  };
  /// Free blocks of one size.
  struct FreeBlocks {
    FreeBlock* head = nullptr;
    std::size_t last_use = 0;  ///< as a number of allocations
  };
  static constexpr std::size_t alignment = 64, huge_page = std::size_t{2} << 20;
  static constexpr std::size_t spare_bytes = std::size_t{16} << 10;  ///< of memory for the error that says that there is no other

  /// Sizes are rounded up in steps of at most an eighth, so that similar sizes share blocks.
  static std::size_t round_up(std::size_t bytes) {
    std::size_t step = alignment;
    while (step * 16 < bytes) step *= 2;
    return (bytes + step - 1) / step * step;
  }

  /// Memory of the system, or null. A large block asks for huge pages: what reads it once, as decoding reads weights, then misses the TLB
  /// less, and the prefetcher, which stops at the end of a page, stops less: 1.2 to 1.4 times the bandwidth with 2 MiB beside 4 KiB.
  static void* take(std::size_t size) {
    const bool is_large = size >= 2 * huge_page;
    void* data = nullptr;
    if (::posix_memalign(&data, is_large ? huge_page : alignment, size) != 0) return nullptr;
    if (is_large) static_cast<void>(::madvise(data, size, MADV_HUGEPAGE));  // a wish: without huge pages, the block has others
    return data;
  }

  /// Gets memory from the system; if it has no more, cached blocks are released first.
  void* reserve(std::size_t size, std::size_t bytes) {
    if (!spare_) spare_ = std::malloc(spare_bytes);
    if (void* data = take(size)) return data;
    release_cache();
    if (void* data = take(size)) return data;
    std::free(std::exchange(spare_, nullptr));
    limit_ = std::min(limit_, (statistics_.allocated + size) / 8 * 7);
    tell(MemoryAction::out_of_memory, nullptr, size, bytes);
    const auto mib = [](std::size_t count) { return std::to_string((count >> 20) + ((count & 0xFFFFF) != 0)) + " MiB"; };
    throw OutOfMemory("[cpu] expected " + std::to_string(size) + " bytes (" + mib(size) +
                      ") of memory but got none: " + mib(statistics_.allocated) +
                      " are in live tensors; use a smaller batch or model, or keep fewer results of the graph alive");
  }

  /// Releases cached blocks, the least recently used first, until there is room for one more block.
  void trim(std::size_t size) {
    const std::size_t twice_the_peak = 2 * std::max(max_allocated_, statistics_.allocated + size) + (std::size_t(16) << 20);
    const std::size_t max_reserved = std::min(twice_the_peak, limit_);
    while (statistics_.reserved + size > max_reserved) {
      auto oldest = free_.end();
      for (auto blocks = free_.begin(); blocks != free_.end(); ++blocks)
        if (blocks->second.head && (oldest == free_.end() || blocks->second.last_use < oldest->second.last_use)) oldest = blocks;
      if (oldest == free_.end()) return;
      while (oldest->second.head && statistics_.reserved + size > max_reserved) release(oldest->first, oldest->second);
    }
  }

  void release(std::size_t size, FreeBlocks& blocks) {
    tell(MemoryAction::segment_free, blocks.head, size);
    std::free(std::exchange(blocks.head, blocks.head->next));
    statistics_.reserved -= size;
  }

  void release_cache() {
    for (auto& [size, blocks] : free_)
      while (blocks.head) release(size, blocks);
  }

  void tell(MemoryAction action, const void* data, std::size_t size, std::size_t requested = 0) {
    if (!observer_) [[likely]]
      return;
    const bool has_failed = action == MemoryAction::out_of_memory;
    const std::size_t usable = has_failed ? usable_memory() : 0;
    observer_->on_memory({action, {}, data, size, requested, usable - std::min(usable, statistics_.reserved)});
  }

  std::mutex mutex_;
  MemoryObserver* observer_ = nullptr;
  std::unordered_map<std::size_t, FreeBlocks> free_;
  std::size_t max_allocated_ = 0;                                ///< since the start, regardless of reset_peak
  std::size_t limit_ = std::numeric_limits<std::size_t>::max();  ///< of live and cached memory, known when memory has run out
  void* spare_ = nullptr;
  MemoryStatistics statistics_;
};

/// Never destroyed: tensors of static duration may outlive any other static object.
CachingAllocator& allocator() {
  static auto& instance = *new CachingAllocator;
  return instance;
}

}  // namespace

void* allocate(Cpu, std::size_t bytes, Stream) { return allocator().allocate(bytes); }
void deallocate(Cpu, void* data, std::size_t bytes, Stream) noexcept { allocator().deallocate(data, bytes); }
void release_cached_memory(Cpu) { allocator().release_all(); }
void copy_from_host(Cpu, void* destination, const void* source, std::size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(destination, source, bytes);  // which takes no null pointer, even for no bytes
}
void copy_to_host(Cpu cpu, void* destination, const void* source, std::size_t bytes, Stream stream) {
  copy_from_host(cpu, destination, source, bytes, stream);
}
void synchronize(Cpu, Stream) {}

using Clock = std::chrono::steady_clock;
void* create_event(Cpu, Device, bool) { return new Clock::time_point; }
void record_event(Cpu, void* event, Stream) { *static_cast<Clock::time_point*>(event) = Clock::now(); }
bool is_event_reached(Cpu, const void*) { return true; }
void synchronize_event(Cpu, const void*) {}
double milliseconds_between(Cpu, const void* earlier, const void* later) {
  const auto at = [](const void* event) { return *static_cast<const Clock::time_point*>(event); };
  return std::chrono::duration<double, std::milli>(at(later) - at(earlier)).count();
}
void destroy_event(Cpu, void* event) noexcept { delete static_cast<Clock::time_point*>(event); }

MemoryStatistics memory_statistics(Cpu, Device) { return allocator().statistics(); }
void reset_peak_memory(Cpu, Device) { allocator().reset_peak(); }
void observe_memory(Cpu, Device, MemoryObserver* watcher) { allocator().observe(watcher); }
std::size_t allocated_size(Cpu, std::size_t bytes) { return CachingAllocator::size_for(bytes); }

}  // namespace tern::backend
