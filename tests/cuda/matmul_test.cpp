#include "ops/kernels/matmul.h"

#include <vector>

#include "backend/event.h"
#include "backend/graph.h"
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
  kernels::matmul(Cpu{}, a.host(), b.host(), c.host(), alpha, write);
  kernels::matmul(Cuda{}, a.device(), b.device(), c.device(), alpha, write);
  const bool is_rounded = dtype == DType::f32 && context().matmul_precision == MatmulPrecision::tf32;
  return c.difference(is_rounded ? 4e-2 : 4 * tolerance(dtype));
}

Case plain(std::int64_t m, std::int64_t n, std::int64_t k) { return {{m, k}, {k, n}, {m, n}, {}, {}, {}}; }

}  // namespace

TEST_CASE("products of matrices agree with the CPU", "[cuda]") {
  for (DType dtype : floats)
    for (auto [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{1, 1, 1},
                                                                   {33, 31, 17},
                                                                   {128, 64, 256},
                                                                   {1, 65, 33},
                                                                   {65, 1, 33},
                                                                   {5, 7, 1},
                                                                   {0, 5, 3},
                                                                   {5, 0, 3},
                                                                   {5, 3, 0},
                                                                   {1, 1, 1025},
                                                                   {257, 129, 40}}) {
      INFO(name(dtype) << " " << m << " x " << n << " x " << k);
      CHECK(difference(plain(m, n, k), dtype) == "");
      CHECK(difference(plain(m, n, k), dtype, 0.5, Write::accumulate) == "");
      CHECK(difference(plain(m, n, k), dtype, 1, Write::overwrite, 1) == "");
      Case transposed = plain(m, n, k);
      transposed.b_strides = {1, std::max<std::int64_t>(k, 1)};
      CHECK(difference(transposed, dtype) == "");
      transposed.a_strides = {1, std::max<std::int64_t>(m, 1)};
      CHECK(difference(transposed, dtype, -2, Write::accumulate) == "");
      Case slices = plain(m, n, k);
      slices.a_strides = {k + 5, 1};
      slices.b_strides = {n + 3, 1};
      slices.c_strides = {n + 2, 1};
      CHECK(difference(slices, dtype, 1, Write::accumulate) == "");
    }
}

TEST_CASE("batched products agree with the CPU", "[cuda]") {
  constexpr std::int64_t B = 3, H = 4, T = 17, D = 8, E = H * D;
  for (DType dtype : floats) {
    INFO(name(dtype));
    const auto both = [&](const Case& p) {
      CHECK(difference(p, dtype) == "");
      CHECK(difference(p, dtype, 0.25, Write::accumulate) == "");
      CHECK(difference(p, dtype, 1, Write::overwrite, 1) == "");
    };
    both({{B, T, D}, {B, D, T}, {B, T, T}, {}, {}, {}});
    both({{B, T, D}, {B, D, T}, {B, T, T}, {}, {0, T, 1}, {}});  // b broadcast: more rows
    both({{B, T, D}, {B, D, T}, {B, T, T}, {0, D, 1}, {}, {}});  // a broadcast
    both({{B, 1, D}, {B, D, T}, {B, 1, T}, {}, {0, 1, D}, {}});
    both({{B, H, T, D}, {B, H, D, T}, {B, H, T, T}, {}, {}, {}});
    // Heads straight from a projection (B, T, 3 E): queries, keys, then weights times values into (B, T, E).
    both({{B, H, T, D}, {B, H, D, T}, {B, H, T, T}, {T * 3 * E, D, 3 * E, 1}, {T * 3 * E, D, 1, 3 * E}, {}});
    both({{B, H, T, T}, {B, H, T, D}, {B, H, T, D}, {}, {T * 3 * E, D, 3 * E, 1}, {T * E, D, E, 1}});
    both({{B, H, T, D}, {B, H, D, T}, {B, H, T, T}, {}, {0, D * T, T, 1}, {}});
    both({{B, H, T, D}, {B, H, D, T}, {B, H, T, T}, {}, {D * T, 0, T, 1}, {}});
    both({{2, B, H, T, D},
          {2, B, H, D, 5},
          {2, B, H, T, 5},
          permuted({2, B, H, T, D}, {2, 0, 1, 3, 4}),
          permuted({2, B, H, D, 5}, {1, 2, 0, 4, 3}),
          {}});
    both({{0, T, D}, {0, D, T}, {0, T, T}, {}, {}, {}});
    both({{B, T, 0}, {B, 0, T}, {B, T, T}, {}, {}, {}});
  }
  CHECK(difference({{70000, 2, 3}, {70000, 3, 2}, {70000, 2, 2}, {}, {}, {}}, DType::f32) == "");
  CHECK(difference({{2, 35000, 2, 3}, {2, 35000, 3, 2}, {2, 35000, 2, 2}, permuted({2, 35000, 2, 3}, {1, 0, 2, 3}), {}, {}}, DType::f32) ==
        "");
}

TEST_CASE("float32 products are strict float32", "[cuda]") {
  // TF32 would lose the last 13 bits of 1 + 2^-20.
  Twin a(DType::f32, {64, 64}), b(DType::f32, {64, 64}), c(DType::f32, {64, 64});
  for (int i = 0; i < 64 * 64; ++i) {
    a.set(i, i / 64 == i % 64 ? 1 : 0);
    b.set(i, 1 + 0x1p-20);
  }
  for (Twin* twin : {&a, &b, &c}) twin->upload();
  kernels::matmul(Cpu{}, a.host(), b.host(), c.host(), 1, Write::overwrite);
  kernels::matmul(Cuda{}, a.device(), b.device(), c.device(), 1, Write::overwrite);
  CHECK(c.difference() == "");
}

TEST_CASE("products in every precision agree with the CPU", "[cuda]") {
  for (const MatmulPrecision precision : {MatmulPrecision::tf32, MatmulPrecision::tf32x3}) {
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
      }
    CHECK(difference({{3, 17, 8}, {3, 8, 17}, {3, 17, 17}, {}, {}, {}}, DType::f32) == "");
    CHECK(difference({{3, 4, 17, 8}, {3, 4, 8, 17}, {3, 4, 17, 17}, {17 * 96, 8, 96, 1}, {17 * 96, 8, 1, 96}, {}}, DType::f32) == "");
  }
  CHECK(context().matmul_precision == MatmulPrecision::fp32);
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
          kernels::matmul(Cuda{}, x, y, z, 1, write);
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

TEST_CASE("linear layers agree with the CPU", "[cuda]") {
  for (const DType dtype : floats)
    for (auto [rows, out, in] : std::vector<std::array<std::int64_t, 3>>{
             {1, 1, 1}, {33, 31, 17}, {5, 7, 1025}, {260, 129, 40}, {512, 256, 128}, {0, 3, 2}, {3, 2, 0}})
      for (const int shift : {0, 1})
        for (const bool has_bias : {true, false}) {
          INFO(name(dtype) << " " << rows << " x " << in << " -> " << out << ", shift " << shift << ", bias " << has_bias);
          Twin x(dtype, {rows, in}, {in + 3, 1}, shift), weight(dtype, {out, in}, contiguous_strides({out, in}), shift);
          Twin bias(dtype, {out}, contiguous_strides({out}), shift), y(dtype, {rows, out}, contiguous_strides({rows, out}), shift);
          x.randomize(1, -1, 1).upload();
          weight.randomize(2, -1, 1).upload();
          bias.randomize(3, -1, 1).upload();
          y.randomize(4).upload();
          kernels::linear(Cpu{}, x.host(), weight.host(), has_bias ? bias.host() : View{}, y.host());
          kernels::linear(Cuda{}, x.device(), weight.device(), has_bias ? bias.device() : View{}, y.device());
          CHECK(y.difference(4 * tolerance(dtype)) == "");
        }
}

TEST_CASE("a linear layer with GELU and its gradients agree with the CPU", "[cuda]") {
  for (const DType dtype : floats)
    for (auto [rows, out, in] : std::vector<std::array<std::int64_t, 3>>{
             {1, 1, 1}, {33, 31, 17}, {1025, 8, 40}, {260, 129, 40}, {512, 256, 128}, {0, 3, 2}, {3, 2, 0}})
      for (const int shift : {0, 1})
        for (const bool has_bias : {true, false}) {
          INFO(name(dtype) << " " << rows << " x " << in << " -> " << out << ", shift " << shift << ", bias " << has_bias);
          const auto twin = [&](const Shape& shape, unsigned seed) {
            Twin made(dtype, shape, contiguous_strides(shape), shift);
            made.randomize(seed, -1, 1).upload();
            return made;
          };
          Twin x = twin({rows, in}, 1), weight = twin({out, in}, 2), bias = twin({out}, 3), before = twin({rows, out}, 4),
               y = twin({rows, out}, 5);
          kernels::linear_gelu(Cpu{}, x.host(), weight.host(), has_bias ? bias.host() : View{}, before.host(), y.host());
          kernels::linear_gelu(Cuda{}, x.device(), weight.device(), has_bias ? bias.device() : View{}, before.device(), y.device());
          CHECK(before.difference(4 * tolerance(dtype)) == "");
          CHECK(y.difference(8 * tolerance(dtype)) == "");
          for (const Write write : {Write::overwrite, Write::accumulate}) {
            Twin g = twin({rows, out}, 6), dx = twin({rows, out}, 7), sums(dtype, {out}, {2});
            sums.randomize(8).upload();
            kernels::gelu_bias_grad(Cpu{}, g.host(), y.host(), dx.host(), has_bias ? sums.host() : View{}, write);
            y.upload();
            kernels::gelu_bias_grad(Cuda{}, g.device(), y.device(), dx.device(), has_bias ? sums.device() : View{}, write);
            CHECK(dx.difference(4 * tolerance(dtype)) == "");
            // 16-bit floats: the CPU sums what it has rounded.
            CHECK(sums.difference((size_of(dtype) == 2 ? 40 : 4) * tolerance(dtype)) == "");
            if (!has_bias) continue;
            kernels::column_sums(Cpu{}, g.host(), sums.host(), write);
            sums.upload();
            kernels::column_sums(Cpu{}, g.host(), sums.host(), write);
            kernels::column_sums(Cuda{}, g.device(), sums.device(), write);
            CHECK(sums.difference(8 * tolerance(dtype)) == "");
          }
        }
}

}  // namespace tern
