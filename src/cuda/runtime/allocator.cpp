#include "cuda/runtime/allocator.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/memory.h"
#include "backend/usable_memory.h"
#include "cuda/runtime/launch.h"
#include "tensor/sizes.h"

// cudaMalloc and cudaFree wait for the device, so memory is taken in segments, and blocks that tensors free are cached. A block is split if
// a request leaves enough of it, and merged with its free neighbours when it is freed, so that sizes that change from step to step share
// the same segments.
//
// Note [Stream order]: a free block may still be in use by kernels queued on its stream. It is reused only on that stream, where new work
// is queued after the old. Memory that is used on a second stream must outlive that use.
//
// Note [Memory of graphs]: a graph writes at each launch to the memory that its kernels had at the capture, which is free since. So what a
// stream allocates during a capture is a pool of its own, for captures alone: graphs of one stream, which run one after the other, share
// it, and no tensor that lives on has memory of it. It begins with what the runs before the capture have left, and stays until the stream
// has no graphs.
namespace tern::gpu {

namespace {

using backend::MemoryAction, backend::MemoryObserver, backend::MemoryStatistics;

constexpr std::size_t KiB = std::size_t(1) << 10, MiB = KiB << 10;

/// Small requests share small segments, so that they do not fragment the large ones.
constexpr std::size_t small_limit = MiB, small_segment = 2 * MiB, medium_limit = 10 * MiB, medium_segment = 20 * MiB;

/// Bytes of a segment that a request takes.
std::size_t block_size_for(std::size_t bytes) { return round_up(bytes, std::size_t(512)); }
std::size_t segment_size_for(std::size_t size) {
  return size <= small_limit ? small_segment : size < medium_limit ? medium_segment : round_up(size, 2 * MiB);
}

/// Whose memory it is: a stream's, or that of its graphs (Note [Memory of graphs]).
struct Key {
  int device;
  void* stream;
  bool is_of_graphs;
  auto operator<=>(const Key&) const = default;
};
Key key_of(Stream stream, bool is_of_graphs) { return {stream.device.index, stream.handle, is_of_graphs}; }

/// Part of a segment; adjacent blocks are linked.
struct Block {
  std::byte* data = nullptr;
  std::size_t size = 0;
  Key key;
  bool is_small = false, is_live = false;
  Block *previous = nullptr, *next = nullptr;

  int device() const { return key.device; }
  bool is_segment() const { return !previous && !next; }
};

struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const { return std::pair(a->size, a->data) < std::pair(b->size, b->data); }
  bool operator()(const Block* a, std::size_t size) const { return a->size < size; }
};
using FreeBlocks = std::set<Block*, BySize>;

/// Returns false if memory is short.
bool malloc(void** data, std::size_t size) {
  const cudaError_t code = cudaMalloc(data, size);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which is handled here and must not reach the next check
    return false;
  }
  check(code, "cudaMalloc");
  return true;
}

class CachingAllocator {
 public:
  void* allocate(std::size_t bytes, Stream stream) {
    const std::size_t size = block_size_for(bytes);
    std::unique_lock lock(mutex_);
    const Key key = key_of(stream, capturing_.contains(key_of(stream, true)));
    Block* block = take(size, key);
    if (!block && key.is_of_graphs) block = adopt(size, key);
    if (!block) block = reserve(size, bytes, stream, key, lock);
    split(block, size);
    block->is_live = true;
    live_.emplace(block->data, block);
    MemoryStatistics& statistics = statistics_[stream.device.index];
    ++statistics.allocations;
    statistics.allocated += block->size;
    statistics.peak_allocated = std::max(statistics.peak_allocated, statistics.allocated);
    tell(MemoryAction::alloc, block->key, block->data, block->size, bytes);
    return block->data;
  }

  void deallocate(void* data) noexcept {
    const std::lock_guard lock(mutex_);
    const auto place = live_.find(data);
    if (place == live_.end()) return;
    Block* block = place->second;
    live_.erase(place);
    statistics_[block->device()].allocated -= block->size;
    tell(MemoryAction::free, block->key, block->data, block->size);
    block->is_live = false;
    if (block->next && !block->next->is_live) absorb_next(block);
    if (block->previous && !block->previous->is_live) {
      block = block->previous;
      absorb_next(block);
    }
    free_blocks(block).insert(block);
  }

  void release_all() {
    std::unique_lock lock(mutex_);
    if (!wait_for_captures(lock)) return;
    std::set<int> devices;
    for (const auto& [key, pool] : pools_) devices.insert(key.device);
    for (const int device : devices) {
      check(cudaSetDevice(device), "cudaSetDevice");
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      release(device);
    }
  }

  void set_capturing(Stream stream, bool is_capturing) {
    const std::lock_guard lock(mutex_);
    if (is_capturing) capturing_.emplace(key_of(stream, true), std::this_thread::get_id());
    else capturing_.erase(key_of(stream, true));
    captured_.notify_all();
  }

  void end_graphs(Stream stream) {
    const std::lock_guard lock(mutex_);
    const Key from = key_of(stream, true), to = key_of(stream, false);
    for (const auto& [data, block] : live_)
      if (block->key == from) block->key = to;
    Pool &graphs = pools_[from], &own = pools_[to];
    for (const auto blocks : {&Pool::small, &Pool::large}) {
      for (Block* const block : graphs.*blocks) block->key = to;
      (own.*blocks).merge(graphs.*blocks);
    }
  }

  void observe(Device device, MemoryObserver* watcher) {
    const std::lock_guard lock(mutex_);
    if (watcher && observer_) fail("memory", "expected one observer of CUDA memory at a time but got a second one");
    observer_ = watcher;
    if (!observer_) return;
    tell_all(device.index);
    observer_->on_begin(statistics_[device.index]);
  }

  MemoryStatistics statistics(Device device) {
    const std::lock_guard lock(mutex_);
    return statistics_[device.index];
  }
  void reset_peak(Device device) {
    const std::lock_guard lock(mutex_);
    statistics_[device.index].peak_allocated = statistics_[device.index].allocated;
  }

 private:
  struct Pool {
    FreeBlocks small, large;
  };

  FreeBlocks& free_blocks(const Key& key, bool is_small) {
    Pool& pool = pools_[key];
    return is_small ? pool.small : pool.large;
  }
  FreeBlocks& free_blocks(const Block* block) { return free_blocks(block->key, block->is_small); }

  /// Removes the smallest free block that fits from its pool.
  Block* take(std::size_t size, const Key& key) {
    FreeBlocks& blocks = free_blocks(key, size <= small_limit);
    const auto found = blocks.lower_bound(size);
    if (found == blocks.end()) return nullptr;
    Block* const block = *found;
    blocks.erase(found);
    return block;
  }

  /// Makes the smallest free segment of the stream that fits one of its graphs.
  Block* adopt(std::size_t size, const Key& key) {
    FreeBlocks& blocks = free_blocks({key.device, key.stream, false}, size <= small_limit);
    const auto found = std::find_if(blocks.lower_bound(size), blocks.end(), [](const Block* block) { return block->is_segment(); });
    if (found == blocks.end()) return nullptr;
    Block* const block = *found;
    blocks.erase(found);
    block->key = key;
    return block;
  }

  /// Splits off the remainder of a block, unless it is too small for another request of its kind.
  void split(Block* block, std::size_t size) {
    const std::size_t rest = block->size - size;
    if (rest < (block->is_small ? 512 : small_limit + 1)) return;
    auto* const other = new Block{block->data + size, rest, block->key, block->is_small, false, block, block->next};
    if (block->next) block->next->previous = other;
    block->next = other;
    block->size = size;
    free_blocks(other).insert(other);
  }

  /// Merges a block that is in no pool with its right neighbour, which may be in one; afterwards it is in none.
  void absorb_next(Block* block) noexcept {
    Block* const next = block->next;
    free_blocks(block).erase(block);
    free_blocks(next).erase(next);
    block->size += next->size;
    block->next = next->next;
    if (block->next) block->next->previous = block;
    delete next;
  }

  /// Waits until other threads have ended their captures, which a wait for the device would break. False if this thread has one.
  bool wait_for_captures(std::unique_lock<std::mutex>& lock) {
    for (const auto& [key, thread] : capturing_)
      if (thread == std::this_thread::get_id()) return false;
    captured_.wait(lock, [&] { return capturing_.empty(); });
    return true;
  }

  Block* reserve(std::size_t size, std::size_t bytes, Stream stream, const Key& key, std::unique_lock<std::mutex>& lock) {
    use(stream);
    std::size_t segment = segment_size_for(size);
    void* data = nullptr;
    if (!malloc(&data, segment)) {
      if (wait_for_captures(lock)) {
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        release(stream.device.index);
      }
      // If a whole segment is too much, only the request.
      if (!malloc(&data, segment) && !malloc(&data, segment = size)) fail_out_of_memory(bytes, stream);
    }
    statistics_[stream.device.index].reserved += segment;
    tell(MemoryAction::segment_alloc, key, data, segment);
    return new Block{static_cast<std::byte*>(data), segment, key, size <= small_limit};
  }

  /// Returns the device's free segments, but for those of graphs. The device must be idle and current.
  void release(int device) {
    for (auto& [key, pool] : pools_) {
      if (key.device != device || key.is_of_graphs) continue;
      for (FreeBlocks* const blocks : {&pool.small, &pool.large})
        for (auto i = blocks->begin(); i != blocks->end();) {
          Block* const block = *i;
          if (!block->is_segment()) {
            ++i;
            continue;
          }
          tell(MemoryAction::segment_free, key, block->data, block->size);
          check(cudaFree(block->data), "cudaFree");
          statistics_[device].reserved -= block->size;
          i = blocks->erase(i);
          delete block;
        }
    }
  }

  [[noreturn]] void fail_out_of_memory(std::size_t bytes, Stream stream) {
    const Device device = stream.device;
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
    tell(MemoryAction::out_of_memory, key_of(stream, false), nullptr, block_size_for(bytes), bytes, free);
    const auto mib = [](std::size_t count) { return std::to_string((count + MiB / 2) / MiB) + " MiB"; };
    std::vector<std::size_t> sizes;
    for (const auto& [data, block] : live_)
      if (block->device() == device.index) sizes.push_back(block->size);
    std::sort(sizes.rbegin(), sizes.rend());
    std::string largest;
    for (std::size_t i = 0; i < std::min<std::size_t>(sizes.size(), 3); ++i) largest += (i == 0 ? ", the largest " : ", ") + mib(sizes[i]);
    throw OutOfMemory("[cuda] expected " + std::to_string(bytes) + " bytes (" + mib(bytes) + ") of memory on " + to_string(device) +
                      " but got none: " + mib(total) + " in all, " + mib(free) + " free, " + mib(statistics_[device.index].reserved) +
                      " reserved, " + mib(statistics_[device.index].allocated) + " in " + std::to_string(sizes.size()) + " live tensors" +
                      largest + "; use a smaller batch or model, or keep fewer results of the graph alive");
  }

  void tell(MemoryAction action, const Key& key, const void* data, std::size_t size, std::size_t requested = 0, std::size_t free = 0) {
    if (!observer_) [[likely]]
      return;
    const Device device = cuda(key.device);
    observer_->on_memory({action, {device, key.stream}, data, size, requested, free});
  }

  /// Reports every segment of a device, and then its live blocks.
  void tell_all(int device) {
    const auto tell_segment = [&](const Block* block) {
      if (block->device() != device || block->previous) return;
      std::size_t size = 0;
      for (const Block* part = block; part; part = part->next) size += part->size;
      tell(MemoryAction::segment_alloc, block->key, block->data, size);
    };
    for (const auto& [data, block] : live_) tell_segment(block);
    for (const auto& [key, pool] : pools_)
      for (const FreeBlocks* const blocks : {&pool.small, &pool.large})
        for (const Block* const block : *blocks) tell_segment(block);
    for (const auto& [data, block] : live_)
      if (block->device() == device) tell(MemoryAction::alloc, block->key, block->data, block->size, block->size);
  }

  std::mutex mutex_;
  MemoryObserver* observer_ = nullptr;
  std::map<Key, Pool> pools_;
  std::map<Key, std::thread::id> capturing_;  ///< and the thread that does
  std::condition_variable captured_;          ///< a capture has begun or ended
  std::unordered_map<void*, Block*> live_;
  std::map<int, MemoryStatistics> statistics_;  ///< of each device
};

/// Never destroyed: tensors of static duration free memory after main, when calls of the runtime are unsafe.
CachingAllocator& allocator() {
  static auto& instance = *new CachingAllocator;
  return instance;
}

}  // namespace

void release_cached_memory() { allocator().release_all(); }
CaptureMemory::CaptureMemory(Stream stream) : stream_(stream) { allocator().set_capturing(stream, true); }
CaptureMemory::~CaptureMemory() { allocator().set_capturing(stream_, false); }
void end_graphs(Stream stream) { allocator().end_graphs(stream); }

void* allocate_for_good(std::size_t bytes, const char* what) {
  void* data = nullptr;
  if (malloc(&data, bytes)) return data;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  release_cached_memory();
  check(cudaSetDevice(device), "cudaSetDevice");
  if (!malloc(&data, bytes))
    throw OutOfMemory("[cuda] expected " + std::to_string(bytes) + " bytes of memory on " + to_string(cuda(device)) + " for the " + what +
                      " but got none; use a smaller batch or model, or keep fewer results of the graph alive");
  return data;
}

unsigned* completion_counters(Stream stream, std::size_t count) {
  struct Counters {
    unsigned* data = nullptr;
    std::size_t count = 0;
  };
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<int, void*>, Counters>;  // never freed: captured graphs contain the addresses
  const std::lock_guard lock(mutex);
  Counters& counters = all[{stream.device.index, stream.handle}];
  if (counters.count >= count) return counters.data;
  use(stream);
  const std::size_t wanted = std::max<std::size_t>(2 * count, 1024);
  void* const data = allocate_for_good(wanted * sizeof(unsigned), "completion counters");
  const OwnedStream separate(stream.device);  // the stream itself may be capturing
  check(cudaMemsetAsync(data, 0, wanted * sizeof(unsigned), handle(separate.get())), "completion counters");
  check(cudaStreamSynchronize(handle(separate.get())), "completion counters");
  counters = {static_cast<unsigned*>(data), wanted};
  return counters.data;
}

}  // namespace tern::gpu

namespace tern::backend {

void* allocate(Cuda, std::size_t bytes, Stream stream) { return gpu::allocator().allocate(bytes, stream); }
void deallocate(Cuda, void* data, std::size_t, Stream) noexcept { gpu::allocator().deallocate(data); }
MemoryStatistics memory_statistics(Cuda, Device device) { return gpu::allocator().statistics(device); }
std::uint64_t usable_memory(Cuda, Device device) {
  gpu::check(cudaSetDevice(device.index), "cudaSetDevice");
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return cudaGetLastError(), 0;
  return free + gpu::allocator().statistics(device).reserved;
}
void reset_peak_memory(Cuda, Device device) { gpu::allocator().reset_peak(device); }
void observe_memory(Cuda, Device device, MemoryObserver* watcher) { gpu::allocator().observe(device, watcher); }

}  // namespace tern::backend
