// The entry of every test program. `--needs-cuda` makes it leave with 77, which CTest reports as skipped, where no GPU
// answers, and `--needs-two-gpus` where only one does: a test that did not run is never a test that passed. A case that finds out for
// itself says so with skip.h.
#ifdef __has_include
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#endif
#include <cstdio>
#include <cstring>
#include <vector>

#include "backend/device.h"
#include "catch.h"
#include "skip.h"

int main(int argc, char** argv) {
  std::vector<char*> arguments;
  int needed_gpus = 0;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--needs-cuda") == 0) needed_gpus = 1;
    else if (std::strcmp(argv[i], "--needs-two-gpus") == 0) needed_gpus = 2;
    else arguments.push_back(argv[i]);
  }
  if (const int gpus = tern::cuda_device_count(); gpus < needed_gpus) {
    if (gpus == 0) std::puts("skipped: no CUDA device, or a build without CUDA");
    else std::puts("skipped: one CUDA device where the tests need two");
    return 77;
  }
  const int result = Catch::Session().run(static_cast<int>(arguments.size()), arguments.data());
  return result == 0 && tern::test::skipped_cases > 0 ? 77 : result;
}
