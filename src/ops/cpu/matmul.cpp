#include "ops/kernels/matmul.h"

#include <Eigen/Core>
#include <vector>

#include "ops/cpu/loops.h"

namespace tern::kernels {

using namespace loops;

namespace {

/// One matrix of a batch: element (i, j) lies at data + i * row_stride + j * column_stride.
template <class T>
struct Matrix {
  T* data;
  std::int64_t row_stride, column_stride;
};

template <class T, int Major>
using Map = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Major>, 0, Eigen::OuterStride<>>;

/// Calls f with an Eigen map of the matrix in whichever order is contiguous.
template <class T, class F>
void with_map(const Matrix<T>& matrix, std::int64_t rows, std::int64_t columns, F&& f) {
  using Plain = std::remove_const_t<T>;
  const bool row_major = matrix.column_stride == 1 || columns <= 1;
  const std::int64_t outer = row_major ? (rows <= 1 ? columns : matrix.row_stride) : (columns <= 1 ? rows : matrix.column_stride);
  if (row_major) f(Eigen::Map<const Eigen::Matrix<Plain, -1, -1, Eigen::RowMajor>, 0, Eigen::OuterStride<>>(matrix.data, rows, columns, Eigen::OuterStride<>(outer)));
  else f(Eigen::Map<const Eigen::Matrix<Plain, -1, -1, Eigen::ColMajor>, 0, Eigen::OuterStride<>>(matrix.data, rows, columns, Eigen::OuterStride<>(outer)));
}

struct Sizes {
  std::int64_t rows, columns, depth;
};

template <class T>
void product(const Matrix<const T>& a, const Matrix<const T>& b, T* c, std::int64_t c_stride, Sizes size, T alpha, Write write) {
  Map<T, Eigen::RowMajor> out(c, size.rows, size.columns, Eigen::OuterStride<>(c_stride));
  if (write == Write::overwrite) out.setZero();
  with_map(a, size.rows, size.depth, [&](const auto& left) {
    with_map(b, size.depth, size.columns, [&](const auto& right) { out.noalias() += alpha * left * right; });
  });
}

}  // namespace

void matmul(Cpu, const View& a, const View& b, const View& c, double alpha, Write write) {
  const int last = c.dims() - 1;
  const Sizes size{c.shape[last - 1], c.shape[last], a.shape[last]};
  Shape batch = c.shape;
  Strides a_batch = a.strides, b_batch = b.strides, c_batch = c.strides;
  for (int i = 0; i < 2; ++i) batch.pop_back(), a_batch.pop_back(), b_batch.pop_back(), c_batch.pop_back();
  const auto loop = make_loop<3>(batch, {&c_batch, &a_batch, &b_batch});
  dispatch_floats(c.dtype, "matmul", [&]<class S>() {
    using C = compute_t<S>;
    const auto each = [&](const std::int64_t* at, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        const S* pa = a.as<const S>() + at[1] + i * loop.inner_stride(1);
        const S* pb = b.as<const S>() + at[2] + i * loop.inner_stride(2);
        S* pc = c.as<S>() + at[0] + i * loop.inner_stride(0);
        if constexpr (std::is_same_v<C, S>) {
          product<C>({pa, a.strides[last - 1], a.strides[last]}, {pb, b.strides[last - 1], b.strides[last]}, pc, c.strides[last - 1], size, C(alpha), write);
        } else {
          std::vector<C> fa(size.rows * size.depth), fb(size.depth * size.columns), fc(size.rows * size.columns);
          for (std::int64_t r = 0; r < size.rows; ++r)
            for (std::int64_t k = 0; k < size.depth; ++k) fa[r * size.depth + k] = C(pa[r * a.strides[last - 1] + k * a.strides[last]]);
          for (std::int64_t k = 0; k < size.depth; ++k)
            for (std::int64_t j = 0; j < size.columns; ++j) fb[k * size.columns + j] = C(pb[k * b.strides[last - 1] + j * b.strides[last]]);
          product<C>({fa.data(), size.depth, 1}, {fb.data(), size.columns, 1}, fc.data(), size.columns, size, C(alpha), Write::overwrite);
          for (std::int64_t r = 0; r < size.rows; ++r)
            for (std::int64_t j = 0; j < size.columns; ++j) {
              S& out = pc[r * c.strides[last - 1] + j];
              out = S(fc[r * size.columns + j] + (write == Write::accumulate ? C(out) : C(0)));
            }
        }
      }
    };
    if (loop.count > 1) parallel_walk(loop, 1, loop.count, each);
    else walk(loop, 0, loop.count, loop.count, each);
  });
}

}  // namespace tern::kernels
