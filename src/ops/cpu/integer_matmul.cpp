#include "ops/cpu/gemm.h"
#include "ops/cpu/loops.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/functors.h"
#include "ops/kernels/matmul.h"

namespace tern::kernels {

using namespace loops;
using gemm::Matrix;

// Products of integers on the CPU: plain loops over the unit stride, without packing, a few times slower than those of floats. Sums are in
// the unsigned type, which wraps.

namespace {

/// Row i of c = a @ b.
template <class T>
void product_row(const Matrix<const T>& a, const Matrix<const T>& b, T* c, std::int64_t i, std::int64_t depth, std::int64_t columns) {
  using U = functors::wrapping_t<T>;
  const T* const left = a.data + i * a.row_stride;
  if (b.column_stride == 1) {
    std::fill_n(c, columns, T(0));
    for (std::int64_t k = 0; k < depth; ++k) {
      const U factor = U(left[k * a.column_stride]);
      const T* const right = b.data + k * b.row_stride;
      for (std::int64_t j = 0; j < columns; ++j) c[j] = T(U(c[j]) + U(factor * U(right[j])));
    }
    return;
  }
  for (std::int64_t j = 0; j < columns; ++j) {
    const T* const right = b.data + j * b.column_stride;
    U total = 0;
    for (std::int64_t k = 0; k < depth; ++k) total = U(total + U(left[k * a.column_stride]) * U(right[k * b.row_stride]));
    c[j] = T(total);
  }
}

template <class T>
void products(const View& a, const View& b, const View& c) {
  const int last = c.dims() - 1;
  const Shape batch(c.shape.begin(), c.shape.end() - 2);
  const auto lead = [](const View& x) { return Strides(x.strides.begin(), x.strides.end() - 2); };
  const Strides in_c = lead(c), in_a = lead(a), in_b = lead(b);
  const Layout<3> loop = make_loop<3>(batch, {in_c, in_a, in_b});
  const std::int64_t rows = c.shape[last - 1], columns = c.shape[last], depth = a.shape[last];
  walk(loop, 0, loop.numel(), 1, [&](const std::int64_t* at, std::int64_t) {
    const Matrix<const T> left{a.as<const T>() + at[1], a.strides[last - 1], a.strides[last]};
    const Matrix<const T> right{b.as<const T>() + at[2], b.strides[last - 1], b.strides[last]};
    T* const to = c.as<T>() + at[0];
    parallel_units(rows, columns * depth, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) product_row(left, right, to + i * c.strides[last - 1], i, depth, columns);
    });
  });
}

}  // namespace

void integer_matmul(Cpu, const View& a, const View& b, const View& c) {
  if (c.numel() == 0) return;
  switch (c.dtype) {
    case DType::i32: return products<std::int32_t>(a, b, c);
    case DType::i64: return products<std::int64_t>(a, b, c);
    case DType::u8: return products<std::uint8_t>(a, b, c);
    default: fail("matmul", std::string("expected integers but got ") + name(c.dtype));
  }
}

}  // namespace tern::kernels
