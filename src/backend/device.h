#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "backend/error.h"
#include "backend/observer.h"

namespace tern {

/// The kind of a device, which chooses a kernel's overload: see on().
enum class DeviceType : std::uint8_t { cpu, cuda };

/// A device of this machine: the CPU, all of its cores together, or one GPU.
struct Device {
  DeviceType type = DeviceType::cpu;  ///< cpu unless said
  std::int8_t index = 0;              ///< of several GPUs, as CUDA numbers them
  friend constexpr bool operator==(Device, Device) = default;
};

/// The processor.
inline constexpr Device cpu{};
/// A GPU by its number. That it is there is asked where it is first used.
constexpr Device cuda(int index = 0) { return {DeviceType::cuda, static_cast<std::int8_t>(index)}; }

/// "cpu", "cuda:0".
std::string to_string(Device device);

/// The number of CUDA devices that this build and this machine can use, at most max_cuda_devices; 0 in a build without CUDA.
int cuda_device_count();
/// GPUs of a machine that a process can use at most.
inline constexpr int max_cuda_devices = 16;

/// How many threads the CPU kernels that this thread calls use; by default one for each processor that this process may run on, or the
/// number in OMP_NUM_THREADS.
int num_threads();
/// For this thread. Throws Error unless 1 <= count <= 1024.
void set_num_threads(int count);

/// A queue of work on a device. The handle is a cudaStream_t; it is null on the CPU and for CUDA's default stream.
struct Stream {
  Device device;           ///< that it runs on
  void* handle = nullptr;  ///< not owned
};

/// Whether CUDA is built in. This is the only place that asks the build.
#ifdef TERN_CUDA
inline constexpr bool built_with_cuda = true;
#else
inline constexpr bool built_with_cuda = false;
#endif
/// Throws Error: the device is a GPU, and this build has no CUDA.
[[noreturn]] void fail_without_cuda(Device device);

/// Tags that choose a device's overload of a kernel.
struct Cpu {};
struct Cuda {};

/// Calls f with the tag of the device's backend, for memory, events and all that is no kernel.
template <class F>
decltype(auto) with_backend(Device device, F&& f) {
  if (device.type == DeviceType::cuda) {
    if constexpr (built_with_cuda) return f(Cuda{});
    else fail_without_cuda(device);
  }
  return f(Cpu{});
}

/// Calls kernels by f with the tag of the device's backend. Kernels are overloaded on the tag, so a kernel that a backend lacks
/// is an error of the compiler or the linker, and not a surprise at run time. `op` names the kernel of an op that does not pass through
/// `record`, for a profile.
template <class F>
decltype(auto) on(Device device, F&& f, const char* op = nullptr) {
  const backend::KernelScope observed(op);
  return with_backend(device, std::forward<F>(f));
}

/// For kernels that CUDA alone has, and which so have no overload for the CPU. Throws Error that names `where` on another device.
template <class F>
decltype(auto) on_cuda(const char* where, Device device, F&& f) {
  if (device.type != DeviceType::cuda) fail(where, "expected a CUDA device for a kernel that no other has but got " + to_string(device));
  const backend::KernelScope observed(nullptr);
  if constexpr (built_with_cuda) return f(Cuda{});
  else fail_without_cuda(device);
}
/// Asks such a kernel whether it takes the arguments: f's answer on a CUDA device, and false elsewhere.
template <class F>
bool cuda_has(Device device, F&& f) {
  if constexpr (built_with_cuda) return device.type == DeviceType::cuda && f(Cuda{});
  else return false;
}

}  // namespace tern
