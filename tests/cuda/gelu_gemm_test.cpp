#include <algorithm>

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
/// Less than a tile, edges of tiles, depths of less and more than the ring of stages, several tiles for each consumer of a block.
const std::vector<Size> sizes = {{1, 8, 8},        {128, 192, 64}, {129, 200, 72},   {256, 192, 320},
                                 {300, 1544, 768}, {1000, 96, 40}, {4000, 3072, 64}, {5000, 3080, 328}};

gpu::GemmProblem problem_of(DType dtype, const Size& size, gpu::Epilogue epilogue, std::int64_t gap) {
  gpu::GemmProblem p;
  p.dtype = dtype;
  p.epilogue = epilogue;
  p.a_transposed = epilogue == gpu::Epilogue::bias_gelu;
  p.m = size.columns;
  p.n = size.rows;
  p.k = size.depth;
  p.lda = (p.a_transposed ? size.depth : size.columns) + gap;
  p.ldb = size.depth + gap;
  p.ldc = size.columns;
  return p;
}

Twin twin(DType dtype, const Shape& shape, std::int64_t leading_dimension, unsigned seed) {
  Twin made(dtype, shape, {leading_dimension, 1});
  made.randomize(seed, -1, 1).upload();
  return made;
}

}  // namespace

TEST_CASE("GELU in a GEMM's epilogue agrees with the CPU, and gives the same bits again", "[cuda]") {
  int taken = 0, refused = 0;
  for (DType dtype : {DType::bf16, DType::f16})
    for (const Size& size : sizes)
      for (std::int64_t gap : {0, 8}) {
        INFO(name(dtype) << " (" << size.rows << ", " << size.columns << ", " << size.depth << "), gap " << gap);
        const gpu::GemmProblem p = problem_of(dtype, size, gpu::Epilogue::bias_gelu, gap);
        Twin x = twin(dtype, {size.rows, size.depth}, p.ldb, 1), weight = twin(dtype, {size.columns, size.depth}, p.lda, 2);
        Twin bias(dtype, {size.columns});
        bias.randomize(3, -1, 1).upload();
        Twin before = twin(dtype, {size.rows, size.columns}, p.ldc, 4), y = twin(dtype, {size.rows, size.columns}, p.ldc, 5),
             again = twin(dtype, {size.rows, size.columns}, p.ldc, 5);
        gpu::GemmOperands at;
        at.a = weight.device().data;
        at.b = x.device().data;
        at.c = y.device().data;
        at.bias = bias.device().data;
        at.before_gelu = before.device().data;
        if (!gpu::has_gelu_gemm(p, at, gpu_stream)) {
          ++refused;
          continue;
        }
        gpu::gelu_gemm(p, at, y.device().data, gpu_stream);
        gpu::gelu_gemm(p, at, again.device().data, gpu_stream);
        kernels::linear_gelu(Cpu{}, x.host(), weight.host(), bias.host(), before.host(), y.host());
        CHECK(before.difference(4 * tolerance(dtype)) == "");
        CHECK(y.difference(8 * tolerance(dtype)) == "");
        CHECK(y.download() == again.download());
        ++taken;
      }
  if (taken == 0) return test::skip("the kernel is for Hopper GPUs");
  CHECK(refused == 0);
}

TEST_CASE("GELU's derivative in a GEMM's epilogue agrees with the CPU, and gives the same bits again", "[cuda]") {
  int taken = 0, refused = 0;
  for (DType dtype : {DType::bf16, DType::f16})
    for (const Size& size : sizes)
      for (std::int64_t gap : {0, 8}) {
        INFO(name(dtype) << " (" << size.rows << ", " << size.columns << ", " << size.depth << "), gap " << gap);
        const gpu::GemmProblem p = problem_of(dtype, size, gpu::Epilogue::gelu_grad, gap);
        Twin g = twin(dtype, {size.rows, size.depth}, p.ldb, 1), weight = twin(dtype, {size.depth, size.columns}, p.lda, 2);
        Twin before = twin(dtype, {size.rows, size.columns}, p.ldc, 4), dx = twin(dtype, {size.rows, size.columns}, p.ldc, 5),
             again = twin(dtype, {size.rows, size.columns}, p.ldc, 5);
        const auto parts = static_cast<std::int64_t>(gpu::gelu_gemm_parts(p));
        Twin sums(DType::f32, {parts, size.columns}), sums_again(DType::f32, {parts, size.columns});
        sums.randomize(6).upload();
        sums_again.randomize(6).upload();
        gpu::GemmOperands at;
        at.a = weight.device().data;
        at.b = g.device().data;
        at.c = dx.device().data;
        at.before_gelu = before.device().data;
        if (!gpu::has_gelu_gemm(p, at, gpu_stream)) {
          ++refused;
          continue;
        }
        at.column_parts = static_cast<float*>(sums.device().data);
        gpu::gelu_gemm(p, at, dx.device().data, gpu_stream);
        at.column_parts = static_cast<float*>(sums_again.device().data);
        gpu::gelu_gemm(p, at, again.device().data, gpu_stream);
        kernels::linear_gelu_grad(Cpu{}, g.host(), weight.host(), before.host(), dx.host(), View{}, Write::overwrite);
        for (std::int64_t part = 0; part < parts; ++part)
          for (std::int64_t column = 0; column < size.columns; ++column) {
            double total = 0;
            for (std::int64_t row = part * 128; row < std::min(part * 128 + 128, size.rows); ++row)
              total += dx.get(row * size.columns + column);
            sums.set(part * size.columns + column, total);
          }
        CHECK(dx.difference(20 * tolerance(dtype)) == "");
        CHECK(sums.difference(100 * tolerance(dtype)) == "");
        CHECK(dx.download() == again.download());
        CHECK(sums.download() == sums_again.download());
        ++taken;
      }
  if (taken == 0) return test::skip("the kernel is for Hopper GPUs");
  CHECK(refused == 0);
}

TEST_CASE("GEMMs with GELU in the epilogue are of 16-bit floats at addresses of 16 bytes", "[cuda]") {
  alignas(16) static char memory[32];
  gpu::GemmOperands at;
  at.a = at.b = at.c = at.before_gelu = memory;
  const auto has = [&](auto&& change) {
    gpu::GemmProblem p = problem_of(DType::bf16, {64, 64, 64}, gpu::Epilogue::gelu_grad, 0);
    gpu::GemmOperands operands = at;
    change(p, operands);
    return gpu::has_gelu_gemm(p, operands, gpu_stream);
  };
  if (!has([](auto&, auto&) {})) return test::skip("the kernel is for Hopper GPUs");
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.dtype = DType::f32; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.a_transposed = true; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.b_transposed = true; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.epilogue = gpu::Epilogue::bias; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.write = Write::accumulate; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.batch_count = 2; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.m = 60; }));
  CHECK_FALSE(has([](gpu::GemmProblem& p, auto&) { p.ldb = 66; }));
  CHECK_FALSE(has([](auto&, gpu::GemmOperands& operands) { operands.before_gelu = memory + 2; }));
}
