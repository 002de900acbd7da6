#include "ops/kernels/matmul.h"

#include <vector>

#include "backend/stream.h"
#include "catch.h"
#include "tensor/context.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

/// Shapes and strides of a (..., M, K), b (..., K, N) and c (..., M, N).
struct Case {
  Shape a, b, c;
  Strides a_strides, b_strides, c_strides;
};

std::string difference(const Case& p, DType dtype, double alpha = 1, Write write = Write::overwrite, int shift = 0) {
  Twin a(dtype, p.a, p.a_strides.empty() ? contiguous_strides(p.a) : p.a_strides, shift);
  Twin b(dtype, p.b, p.b_strides.empty() ? contiguous_strides(p.b) : p.b_strides, shift);
  Twin c(dtype, p.c, p.c_strides.empty() ? contiguous_strides(p.c) : p.c_strides, shift);
  a.randomize(1, -1, 1).upload();
  b.randomize(2, -1, 1).upload();
  c.randomize(3, -1, 1).upload();
  kernels::Matmul{a.host(), b.host(), c.host(), alpha, write}.run(Cpu{});
  kernels::Matmul{a.device(), b.device(), c.device(), alpha, write}.run(Cuda{});
  const bool is_rounded = dtype == DType::f32 && context().kernels.matmul_precision == MatmulPrecision::tf32;
  return c.difference(is_rounded ? 4e-2 : 4 * tolerance(dtype));
}

Case plain(std::int64_t m, std::int64_t n, std::int64_t k) { return {{m, k}, {k, n}, {m, n}, {}, {}, {}}; }

}  // namespace

TEST_CASE("float32 products are strict float32", "[cuda]") {
  // TF32 would lose the last 13 bits of 1 + 2^-20.
  Twin a(DType::f32, {64, 64}), b(DType::f32, {64, 64}), c(DType::f32, {64, 64});
  for (int i = 0; i < 64 * 64; ++i) {
    a.set(i, i / 64 == i % 64 ? 1 : 0);
    b.set(i, 1 + 0x1p-20);
  }
  for (Twin* twin : {&a, &b, &c}) twin->upload();
  kernels::Matmul{a.host(), b.host(), c.host(), 1, Write::overwrite}.run(Cpu{});
  kernels::Matmul{a.device(), b.device(), c.device(), 1, Write::overwrite}.run(Cuda{});
  CHECK(c.difference() == "");
}

TEST_CASE("products of strided operands in every precision, new or added to a slice, agree with the CPU", "[cuda]") {
  for (const MatmulPrecision precision : {MatmulPrecision::fp32, MatmulPrecision::tf32, MatmulPrecision::tf32x3}) {
    const MatmulPrecisionMode mode(precision);
    INFO("precision " << static_cast<int>(precision));
    for (const DType dtype : floats)
      for (auto [m, n, k] :
           std::vector<std::array<std::int64_t, 3>>{{33, 31, 17}, {128, 64, 256}, {1, 65, 33}, {257, 129, 40}, {640, 256, 300}}) {
        INFO(name(dtype) << " " << m << " x " << n << " x " << k);
        CHECK(difference(plain(m, n, k), dtype) == "");
        CHECK(difference(plain(m, n, k), dtype, 0.5, Write::accumulate, 1) == "");
        Case transposed = plain(m, n, k);
        transposed.a_strides = {1, m + 3};
        transposed.b_strides = {1, k + 1};
        CHECK(difference(transposed, dtype) == "");
        Case slices = plain(m, n, k);
        slices.a_strides = {k + 5, 1};
        slices.b_strides = {n + 3, 1};
        slices.c_strides = {n + 2, 1};
        CHECK(difference(slices, dtype, -2, Write::accumulate) == "");
      }
    CHECK(difference({{3, 17, 8}, {3, 8, 17}, {3, 17, 17}, {}, {}, {}}, DType::f32) == "");
    CHECK(difference({{3, 4, 17, 8}, {3, 4, 8, 17}, {3, 4, 17, 17}, {17 * 96, 8, 96, 1}, {17 * 96, 8, 1, 96}, {}}, DType::f32) == "");
  }
  CHECK(context().kernels.matmul_precision == MatmulPrecision::fp32);
}

TEST_CASE("a product that was timed gives the same bits again, and within a graph", "[cuda]") {
  // Large enough to be timed. The recorded call comes first for one of the shapes, where nothing can be.
  for (const MatmulPrecision precision : {MatmulPrecision::fp32, MatmulPrecision::tf32, MatmulPrecision::tf32x3})
    for (const bool is_recorded_first : {false, true})
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        const MatmulPrecisionMode mode(precision);
        const std::int64_t m = 520, n = is_recorded_first ? 264 : 256, k = 512;
        Twin a(DType::f32, {m, k}), b(DType::f32, {k, n});
        a.randomize(1).upload();
        b.randomize(2).upload();
        const auto stream = backend::graph_stream(Cuda{}, cuda());
        const auto product = [&](Twin& c) {
          View x = a.device(), y = b.device(), z = c.device();
          x.stream = y.stream = z.stream = stream->get();
          kernels::Matmul{x, y, z, 1, write}.run(Cuda{});
        };
        std::vector<std::vector<std::byte>> results;
        for (int i = 0; i < 4; ++i) {
          Twin c(DType::f32, {m, n});
          c.randomize(3).upload();
          backend::wait_stream(stream->get(), gpu_stream);
          if ((i == 0) == is_recorded_first) stream->record([&] { product(c); })->launch();
          else product(c);
          backend::wait_stream(gpu_stream, stream->get());
          results.push_back(c.download());
        }
        for (const auto& result : results) CHECK(result == results[0]);
      }
}

}  // namespace tern
