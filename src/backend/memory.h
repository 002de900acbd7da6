#pragma once
#include <cstddef>

#include "backend/device.h"

/// What a backend offers beneath the kernels. Everything but `synchronize` and the copies to the host is asynchronous
/// on the stream.
namespace tern::backend {

void* allocate(Cpu, std::size_t bytes, Stream stream);
void deallocate(Cpu, void* data, std::size_t bytes, Stream stream) noexcept;
void copy_from_host(Cpu, void* destination, const void* source, std::size_t bytes, Stream stream);
void copy_to_host(Cpu, void* destination, const void* source, std::size_t bytes, Stream stream);
void synchronize(Cpu, Stream stream);

void* allocate(Cuda, std::size_t bytes, Stream stream);
void deallocate(Cuda, void* data, std::size_t bytes, Stream stream) noexcept;
/// The source may be reused as soon as the call returns.
void copy_from_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream);
/// Waits for the stream.
void copy_to_host(Cuda, void* destination, const void* source, std::size_t bytes, Stream stream);
void synchronize(Cuda, Stream stream);
int device_count(Cuda);

/// What a device's allocator has done so far, in bytes and calls.
struct MemoryStatistics {
  std::size_t allocated = 0;       ///< in live tensors
  std::size_t peak_allocated = 0;  ///< the most that was ever in live tensors
  std::size_t reserved = 0;        ///< taken from the device, live or cached
  std::size_t allocations = 0;     ///< calls so far
};
MemoryStatistics memory_statistics(Cpu);
MemoryStatistics memory_statistics(Cuda);
void reset_peak_memory(Cpu);
void reset_peak_memory(Cuda);

}  // namespace tern::backend
