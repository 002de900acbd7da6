#include "backend/device.h"

#include <fmt/format.h>

#include "backend/memory.h"

namespace tern {

void fail(const char* where, const std::string& message) { throw Error(fmt::format("[{}] {}", where, message)); }

std::string to_string(Device device) { return device.type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", int(device.index)); }

int cuda_device_count() {
#ifdef TERN_CUDA
  return backend::device_count(Cuda{});
#else
  return 0;
#endif
}

}  // namespace tern
