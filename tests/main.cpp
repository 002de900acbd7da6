// The entry of every test program. `--needs-cuda` makes it leave with 77, which CTest reports as skipped, where no GPU
// answers: a test that did not run is never a test that passed.
#ifdef __has_include
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#endif
#include <cstdio>
#include <cstring>
#include <vector>

#include "catch.h"
#include "tensor/tensor.h"

int main(int argc, char** argv) {
  std::vector<char*> arguments;
  bool needs_cuda = false;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--needs-cuda") == 0) needs_cuda = true;
    else arguments.push_back(argv[i]);
  }
  if (needs_cuda && tern::cuda_device_count() == 0) {
    std::puts("skipped: no CUDA device, or a build without CUDA");
    return 77;
  }
  return Catch::Session().run(static_cast<int>(arguments.size()), arguments.data());
}
