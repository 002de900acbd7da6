#include "backend/device.h"

#include <fmt/format.h>
#include <tern/version.h>

#include <algorithm>
#include <cstdio>

#include "backend/memory.h"

namespace tern {

void fail(const char* where, const std::string& message) {
  const std::string place = backend::failing_place ? backend::failing_place() : "";
  const bool says_more = !place.empty() && place != where;
  throw Error(fmt::format("[{}] {}{}{}", where, message, says_more ? ", in module " : "", says_more ? place : ""));
}

void warn(const char* where, const std::string& message) { std::fputs(fmt::format("tern: [{}] {}\n", where, message).c_str(), stderr); }

std::string to_string(Device device) { return device.type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", int(device.index)); }

int cuda_device_count() {
  if constexpr (built_with_cuda) return std::min(backend::device_count(Cuda{}), max_cuda_devices);
  else return 0;
}

void fail_without_cuda(Device device) {
  fail("device", fmt::format("expected a build with CUDA for {}: configure with -DTERN_CUDA=ON", to_string(device)));
}

}  // namespace tern

const char* tern::version() noexcept { return TERN_VERSION_STRING; }
