#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/error.h"

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

}  // namespace tern
