#pragma once
#include <cstddef>

#include "backend/device.h"

/// The seam of a backend beneath the kernels. Everything but `synchronize` and the copies to the host is asynchronous
/// on the stream.
namespace tern::backend {

/// @{
/// Uninitialised memory for work on the stream, aligned for every kernel: to 64 bytes on the CPU, to 256 on a GPU. Throws OutOfMemory,
/// which says what the device holds.
void* allocate(Cpu, std::size_t bytes, Stream stream);
void* allocate(Cuda, std::size_t bytes, Stream stream);
/// @}
/// @{
/// Gives back what allocate() gave, with the same number of bytes. Work that is queued on the stream may still use it: later
/// users are queued behind.
void deallocate(Cpu, void* data, std::size_t bytes, Stream stream) noexcept;
void deallocate(Cuda, void* data, std::size_t bytes, Stream stream) noexcept;
/// @}
/// @{
/// Copies host memory to the device. The source may be reused as soon as the call returns.
void copy_from_host(Cpu, void* destination, const void* source, std::size_t bytes, Stream stream);
void copy_from_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream);
/// @}
/// @{
/// Copies to host memory, and waits for the stream.
void copy_to_host(Cpu, void* destination, const void* source, std::size_t bytes, Stream stream);
void copy_to_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream);
/// @}
/// @{
/// Waits for the work queued on the stream. Nothing on the CPU, where a kernel is done when its call returns.
void synchronize(Cpu, Stream stream);
void synchronize(Cuda, Stream stream);
/// @}
/// GPUs that CUDA sees; 0 where it finds no driver.
int device_count(Cuda);
/// Copies from one CUDA device to another, directly where the two reach each other and over the host else. Work queued later on either
/// stream comes after the copy, so that both blocks of memory keep their stream's order.
void copy_between(Cuda, void* destination, Stream destination_stream, const void* source, Stream source_stream, std::size_t bytes);

/// Statistics of one device's allocator, in bytes and calls.
struct MemoryStatistics {
  std::size_t allocated = 0;       ///< in live tensors
  std::size_t peak_allocated = 0;  ///< the most that was ever in live tensors
  std::size_t reserved = 0;        ///< taken from the device, live or cached
  std::size_t allocations = 0;     ///< calls so far
};
/// @{
/// The statistics of the device's allocator now; the CPU has one allocator.
MemoryStatistics memory_statistics(Cpu, Device device);
MemoryStatistics memory_statistics(Cuda, Device device);
/// @}
/// @{
/// Resets the peak to the memory allocated now.
void reset_peak_memory(Cpu, Device device);
void reset_peak_memory(Cuda, Device device);
/// @}

}  // namespace tern::backend
