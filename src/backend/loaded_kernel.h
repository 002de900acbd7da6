#pragma once
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/device.h"

namespace tern::backend {

/// Blocks of a grid and threads of a block, in x, y and z.
struct LaunchSize {
  std::array<unsigned, 3> grid{1, 1, 1}, block{1, 1, 1};
  unsigned shared = 0;  ///< bytes of a block's memory of `extern __shared__` arrays
};

/// Kernel of machine code that is loaded on a GPU at run time.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;
  /// Queues the kernel on the stream, with the addresses of its parameters.
  virtual void launch(const LaunchSize& size, std::span<const void* const> parameters, Stream stream) const = 0;
};

/// Loads the kernels of these names, which share the code's global variables. Throws Error if the code is not for the device.
std::vector<std::unique_ptr<LoadedKernel>> load_kernels(Cuda, Device device, std::string_view code, std::span<const std::string> names);
/// Architecture of the device, as compilers name it: "sm_90a".
std::string architecture_of(Cuda, Device device);

}  // namespace tern::backend
