#include "ops/kernels/linalg.h"

#include <algorithm>

#include "backend/memory.h"
#include "catch.h"
#include "cuda/runtime/launch.h"
#include "skip.h"
#include "twin.h"

// Kernels write their results and nothing beside them, from matrices with gaps between their elements, on the stream that these have: it
// is not the default one, whose work they would not wait for. tests/ops/linalg_test.cpp has sizes and errors.
namespace tern::cuda_test {

namespace {

/// A stream of its own, and views on it.
struct Side {
  gpu::OwnedStream stream{cuda()};
  View of(Twin& x) const {
    x.upload();
    backend::synchronize(Cuda{}, gpu_stream);
    View y = x.device();
    y.stream = stream.get();
    return y;
  }
  void wait() const { backend::synchronize(Cuda{}, stream.get()); }
};

/// Matrices whose diagonal, 12, 16, 20, ..., is far above their other elements, so that all decompositions are well determined.
void make_dominant(Twin& x, std::int64_t count, std::int64_t rows, std::int64_t columns) {
  x.randomize(7, -1, 1);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < std::min(rows, columns); ++j) x.set((i * rows + j) * columns + j, 12 + 4 * double(j));
}

}  // namespace

TEST_CASE("Linear algebra writes its results alone, on the stream of its arguments", "[cuda]") {
  if (!kernels::has_linalg(Cpu{}) || !kernels::has_linalg(Cuda{})) return test::skip("a build without Eigen or cuSOLVER");
  const Side side;
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double limit = dtype == DType::f32 ? 1e-4 : 1e-12;
    for (const std::int64_t count : {1, 2, 40}) {
      for (const std::int64_t n : {9, 70}) {
        CAPTURE(name(dtype), count, n);
        const Shape square{count, n, n};
        for (const Strides& strides : {contiguous_strides(square), permuted(square, {0, 2, 1}), gapped(square), reversed(square)}) {
          Twin a(dtype, square, strides), b(dtype, {count, n, 3}, permuted({count, n, 3}, {2, 1, 0}));
          make_dominant(a, count, n, n);
          b.randomize(8);
          Twin l(dtype, square), x(dtype, {count, n, 3}), values(dtype, {count, n}), vectors(dtype, square);
          const View there = side.of(a);
          CHECK(kernels::Cholesky{there, side.of(l)}.run(Cuda{}) == -1);
          CHECK(kernels::Solve{there, side.of(b), side.of(x)}.run(Cuda{}) == -1);
          kernels::Eigh{there, side.of(values), side.of(vectors)}.run(Cuda{});
          kernels::Cholesky{a.host(), l.host()}.run(Cpu{});
          kernels::Solve{a.host(), b.host(), x.host()}.run(Cpu{});
          kernels::Eigh{a.host(), values.host(), vectors.host()}.run(Cpu{});
          side.wait();
          for (const Twin* y : {&l, &x, &values}) CHECK(y->difference(limit) == "");
          // An eigenvector is off by the decomposition's error, n units of the norm, over the gap to the next value, which is 2 or more.
          const double unit = dtype == DType::f32 ? 0x1p-23 : 0x1p-52, norm = 12 + 4 * double(n);
          CHECK(vectors.difference(double(n) * unit * norm / 2) == "");
          CHECK(a.difference() == "");
          CHECK(b.difference() == "");
        }
      }
      for (const Shape& shape : {Shape{count, 9, 5}, Shape{count, 5, 9}, Shape{count, 70, 40}}) {
        const std::int64_t rows = shape[1], columns = shape[2], k = std::min(rows, columns);
        CAPTURE(name(dtype), count, rows, columns);
        Twin a(dtype, shape, gapped(shape)), determinants(dtype, {count}), q(dtype, {count, rows, k}), r(dtype, {count, k, columns}),
            u(dtype, {count, rows, k}), s(dtype, {count, k}), vt(dtype, {count, k, columns});
        make_dominant(a, count, rows, columns);
        const View there = side.of(a);
        kernels::Qr{there, side.of(q), side.of(r)}.run(Cuda{});
        kernels::Svd{there, side.of(u), side.of(s), side.of(vt)}.run(Cuda{});
        Twin corner(dtype, {count, 4, 4});
        make_dominant(corner, count, 4, 4);
        kernels::Det{side.of(corner), side.of(determinants)}.run(Cuda{});
        kernels::Qr{a.host(), q.host(), r.host()}.run(Cpu{});
        kernels::Svd{a.host(), u.host(), s.host(), vt.host()}.run(Cpu{});
        kernels::Det{corner.host(), determinants.host()}.run(Cpu{});
        side.wait();
        for (const Twin* y : {&q, &r, &u, &s, &vt, &determinants}) CHECK(y->difference(limit) == "");
        CHECK(a.difference() == "");
      }
    }
  }
}

}  // namespace tern::cuda_test
