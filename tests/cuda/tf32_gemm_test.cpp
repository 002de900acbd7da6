#include <fmt/format.h>

#include <cmath>

#include "catch.h"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime/launch.h"
#include "ops/factory.h"
#include "ops/kernels/matmul.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "skip.h"
#include "tensor/context.h"

namespace tern {

namespace {

/// |got - exact| / |exact|.
double error_of(const Tensor& got, const Tensor& exact) {
  return std::sqrt(sum(square(cast(got, DType::f64) - exact)).item<double>() / sum(square(exact)).item<double>());
}

}  // namespace

TEST_CASE("A build for Hopper has Hopper's kernels", "[cuda]") {
  if (std::string(TERN_CUDA_ARCHITECTURES).find("90") == std::string::npos ||
      gpu::attribute(cudaDevAttrComputeCapabilityMajor, cuda()) != 9)
    return test::skip("the GPU is no Hopper, or the build is for others");
  CHECK(gpu::has_tf32_gemm(cuda()));
}

TEST_CASE("3xTF32 is as exact as float32", "[cuda]") {
  if (!has_matmul_precision(MatmulPrecision::tf32x3, cuda())) return test::skip("the kernel is for Hopper GPUs");
  manual_seed(5);
  // With tiles of either width, with and without split-K, and at sizes that fill neither tiles nor TMA boxes.
  for (auto [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {512, 512, 256}, {5120, 256, 256}, {5120, 768, 96}, {520, 264, 1028}, {1004, 132, 1028}, {512, 256, 10000}, {256, 256, 50304}})
    for (const bool is_positive : {false, true})
      for (const bool a_transposed : {false, true})
        for (const bool b_transposed : {false, true}) {
          INFO(fmt::format("{} x {} x {}, positive {}, transposed {} {}", m, n, k, is_positive, a_transposed, b_transposed));
          const auto draw = [&](const Shape& shape) {
            return is_positive ? rand(shape, 0, 1, DType::f32, cuda()) : randn(shape, 0, 1, DType::f32, cuda());
          };
          const Tensor a = a_transposed ? transpose(draw({k, m}), 0, 1) : draw({m, k}),
                       b = b_transposed ? transpose(draw({n, k}), 0, 1) : draw({k, n});
          const Tensor exact = matmul(cast(a, DType::f64), cast(b, DType::f64));
          const double strict = error_of(matmul(a, b), exact);
          const MatmulPrecisionMode mode(MatmulPrecision::tf32x3);
          const Tensor c = matmul(a, b);
          CHECK(error_of(c, exact) <= strict + 1e-7);
          // Another kernel made it, and makes the same bits again.
          CHECK(error_of(c, cast(matmul(a, b), DType::f64)) == 0);
        }
}

TEST_CASE("3xTF32 adds, scales, takes a bias and keeps to its place", "[cuda]") {
  manual_seed(6);
  for (auto [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{520, 520, 300}, {5120, 256, 256}, {256, 260, 5120}})
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true}) {
        INFO(fmt::format("{} x {} x {}, transposed {} {}", m, n, k, a_transposed, b_transposed));
        const auto draw = [&](const Shape& shape) { return randn(shape, 0, 1, DType::f32, cuda()); };
        const Tensor a = a_transposed ? transpose(draw({k, m}), 0, 1) : draw({m, k}),
                     b = b_transposed ? transpose(draw({n, k}), 0, 1) : draw({k, n});
        const Tensor around = draw({m + 2, n + 8}), before = clone(around);
        const Tensor c = slice(slice(around, 0, 1, m + 1), 1, 4, n + 4);
        const Tensor want = cast(clone(c), DType::f64) + matmul(cast(a, DType::f64), cast(b, DType::f64), -0.5);
        {
          const MatmulPrecisionMode mode(MatmulPrecision::tf32x3);
          kernels::Matmul{a, b, c, -0.5, Write::accumulate}.run(Cuda{});
        }
        CHECK(error_of(c, want) < 1e-6);
        // Memory around c is as it was.
        const Tensor moved = around - before;
        CHECK(max(abs(slice(moved, 1, 0, 4))).item<double>() == 0);
        CHECK(max(abs(slice(moved, 1, n + 4, n + 8))).item<double>() == 0);
        CHECK(max(abs(slice(moved, 0, 0, 1))).item<double>() == 0);
        CHECK(max(abs(slice(moved, 0, m + 1, m + 2))).item<double>() == 0);
      }
  const Tensor x = randn({5120, 256}, 0, 1, DType::f32, cuda());
  for (const std::int64_t out : {256, 520}) {
    const Tensor weight = randn({out, 256}, 0, 1, DType::f32, cuda()), bias = randn({out}, 0, 1, DType::f32, cuda());
    const Tensor want = linear(cast(x, DType::f64), cast(weight, DType::f64), cast(bias, DType::f64));
    const MatmulPrecisionMode mode(MatmulPrecision::tf32x3);
    CHECK(error_of(linear(x, weight, bias), want) < 1e-6);
  }
}

TEST_CASE("3xTF32 is right in every tile configuration", "[cuda]") {
  if (!has_matmul_precision(MatmulPrecision::tf32x3, cuda())) return test::skip("the kernel is for Hopper GPUs");
  manual_seed(7);
  // Sizes that fill tiles, and sizes that do not.
  for (auto [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{520, 264, 1028}, {132, 1004, 416}, {256, 256, 2080}})
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true}) {
        const auto draw = [&](const Shape& shape) { return randn(shape, 0, 1, DType::f32, cuda()); };
        const Tensor a = a_transposed ? transpose(draw({k, m}), 0, 1) : draw({m, k}),
                     b = b_transposed ? transpose(draw({n, k}), 0, 1) : draw({k, n});
        const Tensor before = draw({m, n}), bias = draw({n});
        const Tensor want = cast(before, DType::f64) + cast(bias, DType::f64) + matmul(cast(a, DType::f64), cast(b, DType::f64), 0.5);
        // Columns first: c^T = b^T a^T.
        const gpu::GemmProblem problem{.dtype = DType::f32,
                                       .precision = MatmulPrecision::tf32x3,
                                       .epilogue = gpu::Epilogue::bias,
                                       .write = Write::accumulate,
                                       .a_transposed = b_transposed,
                                       .b_transposed = a_transposed,
                                       .m = n,
                                       .n = m,
                                       .k = k,
                                       .lda = b_transposed ? k : n,
                                       .ldb = a_transposed ? m : k,
                                       .ldc = n};
        const auto run = [&](const gpu::TileConfig& config, const Tensor& c) {
          const gpu::GemmOperands at{.a = b.view().data, .b = a.view().data, .c = before.view().data, .bias = bias.view().data};
          gpu::tf32_gemm(problem, at, c.view().data, 0.5, config, c.view().stream);
        };
        const auto configs =
            gpu::tf32_configs(problem, {.a = b.view().data, .b = a.view().data, .c = before.view().data}, before.view().stream);
        REQUIRE(!configs.empty());
        for (std::size_t i = 0; i < configs.size(); i += 5) {
          const gpu::TileConfig& config = configs[i];
          INFO(fmt::format("{} x {} x {}, transposed {} {}, swap_ab {}, tile_n {}, cluster {}, slices {}", m, n, k, a_transposed,
                           b_transposed, config.swap_ab, config.tile_n, config.cluster, config.slices));
          const Tensor c = full({m, n}, std::nan(""), DType::f32, cuda()), again = clone(c);
          run(config, c);
          run(config, again);
          CHECK(error_of(c, want) < 1e-6);
          CHECK(error_of(again, cast(c, DType::f64)) == 0);
        }
      }
}

}  // namespace tern
