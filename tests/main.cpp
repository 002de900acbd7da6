// The entry of every test program. `--needs-cuda` makes it leave with 77, which CTest reports as skipped, where no GPU
// answers, and `--needs-two-gpus` where only one does: a test that did not run is never a test that passed. A case that finds out for
// itself says so with skip.h. Where the command line does not mention [cuda], cases of that tag are left out without a GPU, and said to be.
#ifdef __has_include
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#endif
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "backend/device.h"
#include "catch.h"
#include "skip.h"

/// A test specification, a list of patterns, without the cases that take a GPU.
static std::string without_cuda(const std::string& specification) {
  std::string result = "~[cuda]";
  for (std::size_t i = 0; i < specification.size(); ++i) {
    result += specification[i];
    if (specification[i] == ',' && (i == 0 || specification[i - 1] != '\\')) result += "~[cuda]";
  }
  return result;
}

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
  Catch::Session session;
  if (const int result = session.applyCommandLine(static_cast<int>(arguments.size()), arguments.data()); result != 0) return result;
  std::vector<std::string>& specifications = session.configData().testsOrTags;
  const auto mentions_cuda = [](const std::string& each) { return each.find("[cuda]") != std::string::npos; };
  if (tern::cuda_device_count() == 0 && std::none_of(specifications.begin(), specifications.end(), mentions_cuda)) {
    std::puts("no GPU here: cases of the tag [cuda] are left out");
    if (specifications.empty()) specifications.emplace_back("~[.]");
    for (std::string& each : specifications) each = without_cuda(each);
  }
  const int result = session.run();
  return result == 0 && tern::test::skipped_cases > 0 ? 77 : result;
}
