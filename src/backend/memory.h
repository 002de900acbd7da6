#pragma once
#include <cstddef>

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

}  // namespace tern::backend
