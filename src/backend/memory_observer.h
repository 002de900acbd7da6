#pragma once
#include <cstddef>
#include <cstdint>

#include "backend/device.h"
#include "backend/memory.h"

namespace tern::backend {

/// An allocator's doings. A segment is memory that it takes from the device, of which blocks are given out and kept in its cache.
enum class MemoryAction : std::uint8_t { alloc, free, segment_alloc, segment_free, out_of_memory };

/// An event of an allocator.
struct MemoryEvent {
  MemoryAction action = MemoryAction::alloc;  ///< what happened
  Stream stream;                              ///< that asked, and its device
  const void* address = nullptr;              ///< of the block or segment; null where memory ran out
  std::size_t bytes = 0;                      ///< as memory_statistics counts them: rounded up
  std::size_t requested = 0;                  ///< of an allocation, and of one that failed
  std::size_t available = 0;                  ///< of one that failed: the device's free memory, where it says so
};

/// A watcher of an allocator. It is called while the allocator is locked, in the order in which memory is given and taken back, from any
/// thread: it must not use memory of the device, nor ask for statistics.
class MemoryObserver {
 public:
  virtual ~MemoryObserver() = default;
  /// Memory that was there before has been told by on_memory; events after this call happen as they are told.
  virtual void on_begin(const MemoryStatistics& now) noexcept = 0;
  /// An event, as it happens. It may not throw.
  virtual void on_memory(const MemoryEvent& event) noexcept = 0;
};

/// @{
/// Sets the observer of the device's allocator; null removes it. It first gets the present state as if it were new: the segments that are
/// kept, and on CUDA the live blocks as well; then on_begin. Without an observer an allocation costs a load and a branch
/// more. Throws Error where another one watches; all CUDA devices have one observer.
void observe_memory(Cpu, Device device, MemoryObserver* observer);
void observe_memory(Cuda, Device device, MemoryObserver* observer);
/// @}

/// The bytes that the CPU's allocator counts for a request.
std::size_t allocated_size(Cpu, std::size_t bytes);

}  // namespace tern::backend
