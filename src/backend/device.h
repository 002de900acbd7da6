#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "backend/error.h"
#include "backend/observer.h"

namespace tern {

/// Type of a device, which selects a kernel's definition: see launch() in tensor/kernel.h.
enum class DeviceType : std::uint8_t { cpu, cuda };

/// A device of this machine: the CPU, all of its cores together, or one GPU.
struct Device {
  DeviceType type = DeviceType::cpu;  ///< the CPU by default
  std::int8_t index = 0;              ///< number of the GPU, as CUDA counts
  friend constexpr bool operator==(Device, Device) = default;
};

/// The CPU.
inline constexpr Device cpu{};
/// A GPU by its number, which is checked at the first use.
constexpr Device cuda(int index = 0) { return {DeviceType::cuda, static_cast<std::int8_t>(index)}; }

/// Name of a device: "cpu", "cuda:0".
std::string to_string(Device device);

/// Number of CUDA devices that this build can use on this machine, at most max_cuda_devices; 0 in a build without CUDA.
int cuda_device_count();
/// Maximal number of GPUs that a process can use.
inline constexpr int max_cuda_devices = 16;

/// Number of threads of the CPU kernels that this thread calls. Default: OMP_NUM_THREADS, or else the number of processors that this
/// process may use.
int num_threads();
/// Sets num_threads() for this thread. Throws Error unless 1 <= count <= 1024.
void set_num_threads(int count);

/// Queue of work on a device. The handle is a cudaStream_t; it is null on the CPU and for CUDA's default stream.
struct Stream {
  Device device;           ///< device of the stream
  void* handle = nullptr;  ///< not owned
};

/// True in a build with CUDA. This is the only place that reads the build flag.
#ifdef TERN_CUDA
inline constexpr bool built_with_cuda = true;
#else
inline constexpr bool built_with_cuda = false;
#endif
/// Throws Error: the device is a GPU, and this build has no CUDA.
[[noreturn]] void fail_without_cuda(Device device);

/// Tags that select a device's definition of a kernel, and overload of everything else that a backend has.
struct Cpu {};
struct Cuda {};

/// Calls f with the tag of the device's backend, for memory, events and everything that is not a kernel.
template <class F>
decltype(auto) with_backend(Device device, F&& f) {
  if (device.type == DeviceType::cuda) {
    if constexpr (built_with_cuda) return f(Cuda{});
    else fail_without_cuda(device);
  }
  return f(Cpu{});
}

/// Queries a kernel that only CUDA has: f's answer on a CUDA device, false elsewhere.
template <class F>
bool cuda_has(Device device, F&& f) {
  if constexpr (built_with_cuda) return device.type == DeviceType::cuda && f(Cuda{});
  else return false;
}

}  // namespace tern
