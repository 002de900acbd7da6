#pragma once
#include <cstdio>

#include "backend/device.h"
#include "catch.h"

namespace tern::test {

/// Cases of this program that did not run. Where there are some and nothing failed, the program leaves with 77, which CTest reports as
/// skipped (main.cpp).
inline int skipped_cases = 0;

/// Says why the running case does not run here: `return skip("...")`. Catch2 2 has no SKIP.
inline void skip(const char* reason) {
  ++skipped_cases;
  std::printf("skipped: %s: %s\n", Catch::getResultCapture().getCurrentTestName().c_str(), reason);
}

/// True, and the running case is skipped, where there is no second GPU.
inline bool lacks_second_gpu() {
  if (cuda_device_count() > 1) return false;
  skip("it needs two GPUs");
  return true;
}

}  // namespace tern::test
