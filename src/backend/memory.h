#pragma once
#include <cstddef>

#include "backend/device.h"

/// The seam of a backend beneath the kernels. Everything but `synchronize` and the copies to the host is asynchronous
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
MemoryStatistics memory_statistics(Cpu, Device device);
MemoryStatistics memory_statistics(Cuda, Device device);
/// The peak starts anew from what is allocated now.
void reset_peak_memory(Cpu, Device device);
void reset_peak_memory(Cuda, Device device);

}  // namespace tern::backend
