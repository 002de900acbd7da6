#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/error.h"

namespace tern {

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int8_t index = 0;
  friend constexpr bool operator==(Device, Device) = default;
};

inline constexpr Device cpu{};
constexpr Device cuda(int index = 0) { return {DeviceType::cuda, static_cast<std::int8_t>(index)}; }

/// "cpu", "cuda:0".
std::string to_string(Device device);

/// The number of CUDA devices that this build and this machine can use; 0 in a build without CUDA.
int cuda_device_count();

/// How many threads CPU kernels use; by default one for each processor that this process may run on.
int num_threads();
/// Throws Error unless count >= 1.
void set_num_threads(int count);

/// A queue of work on a device. The handle is a cudaStream_t; it is null on the CPU and for CUDA's default stream.
struct Stream {
  Device device;
  void* handle = nullptr;
};

/// Tags that choose a device's overload of a kernel.
struct Cpu {};
struct Cuda {};

/// Calls f with the tag of the device's backend. Kernels are overloaded on the tag, so a kernel that a backend lacks
/// is a link error and not a surprise at run time. This is the only place that asks whether CUDA is built in.
template <class F>
decltype(auto) on(Device device, F&& f) {
  if (device.type == DeviceType::cuda) {
#ifdef TERN_CUDA
    return f(Cuda{});
#else
    fail("device", "expected a build with CUDA for " + to_string(device) + ": configure with -DTERN_CUDA=ON");
#endif
  }
  return f(Cpu{});
}

/// What a backend offers beneath the kernels. Everything but `synchronize` and the copies to the host is asynchronous
/// on the stream.
namespace backend {

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

/// A moment in a stream's work: it is past when all that was queued before is done. For measuring without a wait; whoever marks
/// it also forgets it.
void* mark(Cpu, Stream stream);
void* mark(Cuda, Stream stream);
/// Waits for the later one.
double milliseconds_between(Cpu, const void* earlier, const void* later);
double milliseconds_between(Cuda, const void* earlier, const void* later);
void forget(Cpu, void* moment) noexcept;
void forget(Cuda, void* moment) noexcept;

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

}  // namespace backend
}  // namespace tern
