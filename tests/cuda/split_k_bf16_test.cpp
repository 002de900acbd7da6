#include <cstring>

#include "catch.h"
#include "cuda/gemm/algorithm.h"
#include "ops/kernels/matmul.h"
#include "skip.h"
#include "twin.h"

using namespace tern;
using namespace tern::cuda_test;

namespace {

struct Size {
  std::int64_t rows, columns, depth;
};

gpu::GemmProblem problem_of(DType dtype, const Size& size, Write write, std::int64_t gap) {
  gpu::GemmProblem p;
  p.dtype = dtype;
  p.write = write;
  p.b_transposed = true;
  p.m = size.columns;
  p.n = size.rows;
  p.k = size.depth;
  p.lda = (size.columns + 7) / 8 * 8 + gap;
  p.ldb = (size.rows + 7) / 8 * 8 + gap;
  p.ldc = size.columns + gap;
  return p;
}

}  // namespace

TEST_CASE("split-K within clusters agrees with the CPU, and gives the same bits again", "[cuda]") {
  int taken = 0, refused = 0;
  for (DType dtype : {DType::bf16, DType::f16})
    for (const Size& size :
         {Size{1, 1, 64}, {31, 33, 65}, {64, 64, 100}, {65, 63, 1000}, {130, 200, 5000}, {256, 256, 5120}, {384, 40, 4097}, {8, 1025, 777}})
      for (Write write : {Write::overwrite, Write::accumulate})
        for (std::int64_t gap : {0, 8}) {
          INFO(name(dtype) << " (" << size.rows << ", " << size.columns << ", " << size.depth << "), gap " << gap);
          const gpu::GemmProblem p = problem_of(dtype, size, write, gap);
          Twin left(dtype, {size.depth, size.rows}, {p.ldb, 1}), right(dtype, {size.depth, size.columns}, {p.lda, 1});
          Twin c(dtype, {size.rows, size.columns}, {p.ldc, 1});
          left.randomize(1, -1, 1).upload();
          right.randomize(2, -1, 1).upload();
          c.randomize(3, -1, 1).upload();
          gpu::GemmOperands at;
          at.a = right.device().data;
          at.b = left.device().data;
          at.c = c.device().data;
          if (!gpu::has_split_k_gemm(p, at, gpu_stream)) {
            ++refused;
            continue;
          }
          Twin again(dtype, {size.rows, size.columns}, {p.ldc, 1});
          again.randomize(3, -1, 1).upload();
          gpu::split_k_gemm(p, at, c.device().data, 0.5, gpu_stream);
          gpu::GemmOperands other = at;
          other.c = again.device().data;
          gpu::split_k_gemm(p, other, again.device().data, 0.5, gpu_stream);
          const View x = left.host();
          View transposed = x;
          transposed.shape = {size.rows, size.depth};
          transposed.strides = {1, p.ldb};
          kernels::matmul(Cpu{}, transposed, right.host(), c.host(), 0.5, write);
          CHECK(c.difference(tolerance(dtype)) == "");
          CHECK(c.download() == again.download());
          ++taken;
        }
  if (taken == 0) return test::skip("the kernel is for Hopper GPUs");
  CHECK(refused == 0);
}

TEST_CASE("split-K within clusters takes only deep GEMMs of 16-bit floats at addresses of 16 bytes", "[cuda]") {
  const Size size{64, 64, 640};
  alignas(16) static char memory[32];
  gpu::GemmOperands at;
  at.a = at.b = at.c = memory;
  const auto has = [&](auto&& change) {
    gpu::GemmProblem p = problem_of(DType::bf16, size, Write::overwrite, 0);
    gpu::GemmOperands operands = at;
    change(p, operands);
    return gpu::has_split_k_gemm(p, operands, gpu_stream);
  };
  if (!has([](auto&, auto&) {})) return test::skip("the kernel is for Hopper GPUs");
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.dtype = DType::f32; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.a_transposed = true; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.b_transposed = false; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.k = 63; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.batch_count = 2; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.lda = 66; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.epilogue = gpu::Epilogue::bias; }));
  CHECK_FALSE(has([](auto&, gpu::GemmOperands& operands) { operands.b = memory + 2; }));
}
