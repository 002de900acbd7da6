// Products of square float32 matrices beside MKL, oneDNN and OpenBLAS, in one process, for products.md. Not part of the build:
//
//   g++ -std=c++20 -O3 -march=native bench/products.cpp -Isrc -o products BUILD/libtern_{ops,autodiff,cpu,tensor,backend}.a -lfmt -ldl
//   -pthread [BUILD's libdnnl.so]
//   ./products THREADS ROUNDS [SIZES] [NAME=LIBRARY.so ...] >> ROWS.jsonl
//
// for instance ./products 2 20 256,1024 mkl=libmkl_rt.so.2 onednn=libdnnl.so.2 openblas=libopenblas.so.0. In each round each takes its
// turn, and begins one place later than in the round before; a turn is as many products as take some milliseconds. A row for each size and
// library: Gflop/s by the least, the lower quartile and the median of the turns. For AVX2: ours with matmul.cpp compiled with
// -march=x86-64-v3 and linked first, and MKL_ENABLE_INSTRUCTIONS=AVX2, ONEDNN_MAX_CPU_ISA=AVX2, OPENBLAS_CORETYPE=Haswell.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "ops/matmul.h"
#include "ops/random.h"

using namespace tern;

namespace {

struct Library {
  std::string name;
  std::function<void(const float* a, const float* b, float* c, int n)> multiply;
  std::vector<double> times = {};
};

template <class F>
F* symbol(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

/// "mkl=PATH": oneDNN has its own interface, the others that of CBLAS and each a way to say how many threads.
Library open_library(const std::string& argument, int threads) {
  const std::size_t split = argument.find('=');
  if (split == std::string::npos) {
    std::fprintf(stderr, "error: expected NAME=LIBRARY.so but got %s\n", argument.c_str());
    std::exit(2);
  }
  const std::string name = argument.substr(0, split), path = argument.substr(split + 1);
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    std::fprintf(stderr, "error: cannot open %s: %s\n", path.c_str(), dlerror());
    std::exit(2);
  }
  if (auto* const sgemm = symbol<int(char, char, std::int64_t, std::int64_t, std::int64_t, float, const float*, std::int64_t, const float*,
                                     std::int64_t, float, float*, std::int64_t)>(handle, "dnnl_sgemm"))
    return {name, [=](const float* a, const float* b, float* c, int n) { sgemm('N', 'N', n, n, n, 1, a, n, b, n, 0, c, n); }};
  for (const char* setter : {"MKL_Set_Num_Threads", "openblas_set_num_threads"})
    if (auto* const set = symbol<void(int)>(handle, setter)) set(threads);
  auto* const sgemm =
      symbol<void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int)>(handle, "cblas_sgemm");
  if (!sgemm) {
    std::fprintf(stderr, "error: %s has neither dnnl_sgemm nor cblas_sgemm\n", path.c_str());
    std::exit(2);
  }
  constexpr int row_major = 101, as_it_is = 111;
  return {name,
          [=](const float* a, const float* b, float* c, int n) { sgemm(row_major, as_it_is, as_it_is, n, n, n, 1, a, n, b, n, 0, c, n); }};
}

double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1, rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  const clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  std::stringstream sizes(argc > 3 ? argv[3] : "256,512,1024,2048,4096");
  set_num_threads(threads);
  // OpenMP asks when it is loaded.
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 1);
  std::vector<Library> libraries = {{"tern", {}}};
  for (int i = 4; i < argc; ++i) libraries.push_back(open_library(argv[i], threads));
  for (std::string size; std::getline(sizes, size, ',');) {
    const int n = std::atoi(size.c_str());
    const Tensor a = randn({n, n}), b = randn({n, n}), c = empty_like(a);
    const auto multiply = [&](const Library& library) {
      if (library.multiply) library.multiply(a.data<float>(), b.data<float>(), c.data<float>(), n);
      else matmul(a, b);
    };
    const Tensor expected = matmul(a, b);
    for (Library& library : libraries) {
      library.times.clear();
      multiply(library);
      const auto got = c.to_vector<float>(), wanted = expected.to_vector<float>();
      double off = 0;
      for (std::size_t i = 0; library.multiply && i < got.size(); ++i) off = std::max<double>(off, std::abs(got[i] - wanted[i]));
      if (off > 1e-4 * n) {
        std::fprintf(stderr, "error: %s and tern differ by %g at %d\n", library.name.c_str(), off, n);
        return 1;
      }
    }
    const double flops = 2.0 * n * n * n;
    const int at_once = std::max(1, static_cast<int>(5e8 / flops));
    for (int round = 0; round < rounds; ++round)
      for (std::size_t i = 0; i < libraries.size(); ++i) {
        Library& library = libraries[(i + static_cast<std::size_t>(round)) % libraries.size()];
        multiply(library);  // its own memory is in the caches again, its threads are awake
        const double start = seconds(clock);
        for (int k = 0; k < at_once; ++k) multiply(library);
        library.times.push_back((seconds(clock) - start) / at_once);
      }
    for (Library& library : libraries) {
      std::sort(library.times.begin(), library.times.end());
      const auto speed = [&](std::size_t place) { return flops / library.times[place] / 1e9; };
      std::printf(
          "{\"impl\": \"%s\", \"n\": %d, \"threads\": %d, \"clock\": \"%s\", \"best\": %.1f, \"quartile\": %.1f, \"median\": %.1f}\n",
          library.name.c_str(), n, threads, threads == 1 ? "cpu" : "wall", speed(0), speed(library.times.size() / 4),
          speed(library.times.size() / 2));
      std::fflush(stdout);
    }
  }
}
