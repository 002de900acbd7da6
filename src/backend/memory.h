#pragma once
#include <cstddef>
#include <cstdint>

#include "backend/device.h"

/// Functions of a backend other than kernels. All are asynchronous on the stream, except `synchronize` and copies to the host.
namespace tern::backend {

/// @{
/// Allocates uninitialized memory for work on the stream, aligned for every kernel: to 64 bytes on the CPU, to 256 on a GPU. Throws
/// OutOfMemory that says what the device holds.
void* allocate(Cpu, std::size_t bytes, Stream stream);
void* allocate(Cuda, std::size_t bytes, Stream stream);
/// @}
/// @{
/// Frees memory from allocate(), with the same number of bytes. Work that is already queued on the stream may still use it: later users are
/// queued after it.
void deallocate(Cpu, void* data, std::size_t bytes, Stream stream) noexcept;
void deallocate(Cuda, void* data, std::size_t bytes, Stream stream) noexcept;
/// @}
/// @{
/// Copies host memory to the device. The source may be reused as soon as the call returns. Without bytes both pointers may be null.
void copy_from_host(Cpu, void* destination, const void* source, std::size_t bytes, Stream stream);
void copy_from_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream);
/// @}
/// @{
/// Copies to host memory, and waits for the stream. Without bytes both pointers may be null.
void copy_to_host(Cpu, void* destination, const void* source, std::size_t bytes, Stream stream);
void copy_to_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream);
/// @}
/// Pinned (page-locked) host memory for copies to a device: copy_from_host from it returns before the copy is done, and only then may the
/// source be reused. Only CUDA has it. Allocating and freeing it is slow, and may wait for the device.
void* allocate_pinned(Cuda, std::size_t bytes, Device device);
/// Frees memory from allocate_pinned().
void free_pinned(Cuda, void* data) noexcept;
/// @{
/// Waits for the work queued on the stream. Does nothing on the CPU, where a kernel is done when its call returns.
void synchronize(Cpu, Stream stream);
void synchronize(Cuda, Stream stream);
/// @}
/// Number of GPUs that CUDA sees; 0 without a driver.
int device_count(Cuda);
/// Copies from one CUDA device to another, directly if the two have peer access, else through the host. Work queued later on either stream
/// runs after the copy, so both blocks of memory keep their stream's order.
void copy_between(Cuda, void* destination, Stream destination_stream, const void* source, Stream source_stream, std::size_t bytes);

/// Statistics of one device's allocator, in bytes and calls.
struct MemoryStatistics {
  std::size_t allocated = 0;       ///< bytes in live tensors
  std::size_t peak_allocated = 0;  ///< maximum of `allocated` so far
  std::size_t reserved = 0;        ///< bytes taken from the device, live or cached
  std::size_t allocations = 0;     ///< number of allocations so far
};
/// @{
/// Current statistics of the device's allocator; the CPU has one allocator.
MemoryStatistics memory_statistics(Cpu, Device device);
MemoryStatistics memory_statistics(Cuda, Device device);
/// @}
/// @{
/// Resets the peak to the memory allocated now.
void reset_peak_memory(Cpu, Device device);
void reset_peak_memory(Cuda, Device device);
/// @}

/// Number of bytes that the CPU's allocator counts for a request.
std::size_t allocated_size(Cpu, std::size_t bytes);
/// Returns the memory that the CPU's allocator keeps for later tensors to the system.
void release_cached_memory(Cpu);
/// Bytes of memory that this process may use: the machine's, or less if its control groups (of a container or a batch job), of version 1 or
/// 2, have limits. 0 if unknown.
std::uint64_t usable_memory();

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

}  // namespace tern::backend
