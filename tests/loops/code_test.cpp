// Text for compilers: C++, which runs here, and CUDA, which NVRTC compiles without a GPU.
#include "loops/code.h"

#include <filesystem>

#include "catch.h"
#include "compile/generated.h"
#include "files.h"
#include "loops/run.h"
#include "paths.h"
#include "schedule_text.h"
#include "skip.h"

using namespace study::loops;
using namespace study::loops::test;
using tern::contains, tern::message_of;

namespace {

/// The largest error of the compiled program at an odd size, between red zones.
double run_text(const std::string& name, const std::string& text, int threads) {
  const Program plain = kernel(name, odd_sizes(name)[2]), p = scheduled(plain, text);
  const Values values = make_values(plain), expected = interpret(plain, values);
  const CpuKernel kernel(p);
  const Values got = run_between_red_zones(p, values, [&](auto tensors) { kernel.run(tensors, threads); });
  return compare(name, got.back(), expected.back(), 1e-5);
}

}  // namespace

TEST_CASE("Schedules as C++ compute what their kernels do, at sizes that are no multiple of a tile or a vector") {
  CHECK(run_text("matmul",
                 "split i by 6 -> io, i\nsplit j by 2, 8 -> jo, j, v\nsplit k by 9 -> ko, k\nreorder io, ko, jo, k, i, j, v\n"
                 "keep c in registers at jo\nvectorise v\nunroll i, j\nbind io cores",
                 2) > 0);
  CHECK(run_text("softmax", gpu_softmax, 2) > 0);
  CHECK(run_text("rms_norm", "split c by 4, 8 -> c, v, u\npart s by u in registers\nvectorise u\nbind r cores", 3) > 0);
}

TEST_CASE("C++ of a schedule has its vectors, threads and unrolled loops") {
  const std::string text =
      cpp_text(scheduled(kernel("matmul", {32, 64, 16}),
                         "split j by 16 -> j, v\nreorder i, k, j, v\nkeep c in registers at i\nvectorise v\nunroll j\nbind i cores"));
  CHECK(contains(text, "  for (long i_2 = first; i_2 < last; ++i_2) {\n    alignas(64) float c_r[64];\n    #pragma GCC unroll 4\n"));
  CHECK(contains(text, "store<16>(&c_r[16 * j_"));
  CHECK(contains(text, "fma_of(a[16 * i_2 + k_4], load<16>(&b["));
}

TEST_CASE("Without a compiler, or with a text that it refuses, one line says so") {
  Program p = kernel("gelu", {4});
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  const std::string none = message_of([&] { CpuKernel kernel(p); });
  setenv("PATH", path.c_str(), 1);
  CHECK(none == "[loops] expected a C++ compiler, c++, on the PATH but found none");
  p.tensors[0].name = "1";
  const std::string refused = message_of([&] { CpuKernel kernel(p); });
  CHECK(contains(refused, "expected c++ to compile the program but it says: "));
  CHECK_FALSE(contains(refused, "\n"));
  const std::string kept = std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp";
  setenv("TMPDIR", "/nowhere", 1);
  CHECK(contains(message_of([&] { CpuKernel kernel(p); }), "[loops] expected to make a directory"));
  setenv("TMPDIR", kept.c_str(), 1);
}

TEST_CASE("CUDA of a schedule has its threads, barriers and vectors, and registers of a thread's own elements") {
  const std::string text = cuda_text(scheduled(kernel("softmax", {8, 256}), "split r by 2 -> r, q\nbind q thread\n" + gpu_softmax));
  for (const char* part : {"__launch_bounds__(16) loops_0(Tensors tensors) {", "const unsigned q_6 = thread / 8;", "const unsigned t_",
                           " = thread % 8;", "__syncthreads();", "__shared__ alignas(16) float m_t[16];", "alignas(16) float x_r[32];",
                           "alignas(16) float e[32];", "store<4>(&y[", "+ 8 * q_6] = "}) {
    INFO(part << "\n" << text);
    CHECK(contains(text, part));
  }
  // Each of 8 threads has a place for the elements of the last vectors, which guards leave out.
  CHECK(contains(cuda_text(scheduled(kernel("softmax", {5, 130}), gpu_softmax)), "alignas(16) float e[20];"));
  // Threads that compute alike write once.
  CHECK(contains(
      cuda_text(scheduled(kernel("softmax", {8, 64}), "split c by 4 -> c, t in y\nkeep s, m, e in shared\nbind r block, t thread")),
      "if (thread % 4 == 0) s[0] = 0"));
}

TEST_CASE("Every lesson keeps what its kernel computes, and becomes code") {
  int count = 0;
  for (const std::string& name : kernel_names())
    for (const char* device : {"cpu", "gpu"})
      for (const auto& entry :
           std::filesystem::directory_iterator(std::filesystem::path(tern::test::source_directory) / "study/loops" / name / device)) {
        INFO(entry.path().string());
        const std::string text = tern::test::slurp(entry.path());
        CHECK(check_text(name, text) < 1e-12);
        const Program p = scheduled(name, text);
        ++count;
        if (device[0] == 'c') CHECK((run_text(name, text, 2) > 0) == (name != "transpose"));
        else if (tern::compiler::has_nvrtc()) CHECK_NOTHROW(tern::compiler::compile_cuda(cuda_text(p), "sm_90a"));
      }
  CHECK(count == 26);
}

TEST_CASE("NVRTC compiles the CUDA of every kernel and schedule") {
  if (!tern::compiler::has_nvrtc()) return tern::test::skip("it needs NVRTC");
  for (const std::string& text :
       {cuda_text(scheduled(kernel("matmul", {33, 65, 17}), gpu_product)), cuda_text(scheduled(kernel("softmax", {5, 130}), gpu_softmax)),
        cuda_text(scheduled(kernel("softmax", {8, 256}), gpu_softmax)),
        cuda_text(scheduled("rms_norm", "split c by 32, 4 -> c, t, v\npart s by t in shared\nbind r block, t thread\nvectorise v in y")),
        cuda_text(scheduled("gelu", "split i by 256, 4 -> b, t, v\nbind b block, t thread\nvectorise v"))}) {
    INFO(text);
    std::string code;
    REQUIRE_NOTHROW(code = tern::compiler::compile_cuda(text, "sm_90a"));
    CHECK(contains(code, "loops_0"));
  }
}
