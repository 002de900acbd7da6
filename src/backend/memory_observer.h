#pragma once
#include <cstddef>
#include <cstdint>

#include "backend/device.h"
#include "backend/memory.h"

namespace tern::backend {

/// Kind of an allocator's event. A segment is memory that it takes from the device, from which blocks are handed out and cached.
enum class MemoryAction : std::uint8_t { alloc, free, segment_alloc, segment_free, out_of_memory };

/// Event of an allocator.
struct MemoryEvent {
  MemoryAction action = MemoryAction::alloc;  ///< what happened
  Stream stream;                              ///< stream of the request, and its device
  const void* address = nullptr;              ///< address of the block or segment; null if memory ran out
  std::size_t bytes = 0;                      ///< as memory_statistics counts them: rounded up
  std::size_t requested = 0;                  ///< bytes requested, of an allocation, also a failed one
  std::size_t available = 0;                  ///< free memory of the device at a failed allocation, if known
};

/// Observer of an allocator. It is called with the allocator locked, in the order of allocations and frees, from any thread: it must not
/// use memory of the device, nor query statistics.
class MemoryObserver {
 public:
  virtual ~MemoryObserver() = default;
  /// Called after on_memory has reported the memory that already existed; events after this call are reported as they happen.
  virtual void on_begin(const MemoryStatistics& now) noexcept = 0;
  /// Reports an event. Must not throw.
  virtual void on_memory(const MemoryEvent& event) noexcept = 0;
};

/// @{
/// Sets the observer of the device's allocator; null removes it. It first gets the current state as events: the segments that are held, and
/// on CUDA the live blocks too; then on_begin. Without an observer an allocation costs one extra load and branch. Throws Error if there is
/// another observer; all CUDA devices share one.
void observe_memory(Cpu, Device device, MemoryObserver* observer);
void observe_memory(Cuda, Device device, MemoryObserver* observer);
/// @}

/// Number of bytes that the CPU's allocator counts for a request.
std::size_t allocated_size(Cpu, std::size_t bytes);

}  // namespace tern::backend
