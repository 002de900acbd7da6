#include "ops/kernels/matmul.h"

#include <vector>

#include "catch.h"
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
  return c.difference(4 * tolerance(dtype));
}

Case plain(std::int64_t m, std::int64_t n, std::int64_t k) { return {{m, k}, {k, n}, {m, n}, {}, {}, {}}; }

}  // namespace

TEST_CASE("products of matrices agree with the CPU", "[cuda]") {
  for (DType dtype : floats)
    for (auto [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{1, 1, 1}, {33, 31, 17}, {128, 64, 256}, {1, 65, 33}, {65, 1, 33}, {5, 7, 1}, {0, 5, 3}, {5, 0, 3}, {5, 3, 0}, {1, 1, 1025}, {257, 129, 40}}) {
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
    both({{2, B, H, T, D}, {2, B, H, D, 5}, {2, B, H, T, 5}, permuted({2, B, H, T, D}, {2, 0, 1, 3, 4}), permuted({2, B, H, D, 5}, {1, 2, 0, 4, 3}), {}});
    both({{0, T, D}, {0, D, T}, {0, T, T}, {}, {}, {}});
    both({{B, T, 0}, {B, 0, T}, {B, T, T}, {}, {}, {}});
  }
  CHECK(difference({{70000, 2, 3}, {70000, 3, 2}, {70000, 2, 2}, {}, {}, {}}, DType::f32) == "");
  CHECK(difference({{2, 35000, 2, 3}, {2, 35000, 3, 2}, {2, 35000, 2, 2}, permuted({2, 35000, 2, 3}, {1, 0, 2, 3}), {}, {}}, DType::f32) == "");
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

}  // namespace tern
