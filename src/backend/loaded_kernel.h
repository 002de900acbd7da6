#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "backend/device.h"

namespace tern::backend {

/// Kernel of machine code that is loaded on a GPU at run time. Its only parameter is a struct.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;
  /// Queues the kernel on the stream, with the bytes of its struct, as a grid of rows of blocks.
  virtual void launch(unsigned blocks, unsigned rows, unsigned threads, const void* arguments, Stream stream) const = 0;
};

/// Loads the kernel of this name. Throws Error if the code is not for the device.
std::unique_ptr<LoadedKernel> load_kernel(Cuda, Device device, std::string_view code, const char* name);
/// Architecture of the device, as compilers name it: "sm_90a".
std::string architecture_of(Cuda, Device device);

}  // namespace tern::backend
