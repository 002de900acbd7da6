#include "ops/kernels/matmul.h"

#include "ops/cpu/gemm.h"
#include "ops/cpu/loops.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/functors.h"
#include "ops/kernels/reduce.h"
#include "tensor/sizes.h"

namespace tern::kernels {

using namespace loops;
using gemm::Matrix;
using gemm::product_grain;
using gemm::Sizes;

// Matrix products on the CPU: batches that share one b become rows of one product; a product with a single row or column becomes sums over
// the other operand's memory; all others use the packed kernel of gemm.h, or oneDNN if available, for bfloat16, and on Intel processors for
// float32. Threads share the batch if it is long enough, else a grid of parts of c; neither changes the order in which an element is
// summed.

namespace {

/// Multiplications that make a part worth its own packing, half a millisecond of work.
constexpr std::int64_t long_part = 1 << 26;
/// Number of parts of a product that oneDNN computes: as many as threads may share, of at least 2^22 multiplications each, since smaller
/// parts slow it down. The order of its sums depends on a part's sizes, which therefore depend on the product's sizes alone, and not on the
/// number of threads.
std::int64_t onednn_parts(std::int64_t multiplications) {
  return std::clamp<std::int64_t>(multiplications >> 22, 1, std::clamp<std::int64_t>(multiplications >> 28, 16, 64));
}

/// Batch of products: sizes, the batch dimensions as a loop over (c, a, b), and the first matrices.
struct Batch {
  Sizes size;
  Layout<3> loop;
  std::int64_t a_row, a_column, b_row, b_column, c_row;
};

Batch make_batch(const View& a, const View& b, const View& c) {
  const int last = c.dims() - 1;
  Shape shape = c.shape;
  Strides in_c = c.strides, in_a = a.strides, in_b = b.strides;
  for (int i = 0; i < 2; ++i) {
    shape.pop_back();
    in_c.pop_back();
    in_a.pop_back();
    in_b.pop_back();
  }
  const Sizes size{c.shape[last - 1], c.shape[last], a.shape[last]};
  Batch batch{size,
              make_loop<3>(shape, {in_c, in_a, in_b}),
              a.strides[last - 1],
              a.strides[last],
              b.strides[last - 1],
              b.strides[last],
              c.strides[last - 1]};
  // The stride of a dimension of size 1 may be anything; setting it to 1 keeps one stride of every matrix at 1.
  if (size.depth <= 1) batch.a_column = batch.b_row = 1;
  if (size.rows <= 1 && batch.a_column != 1) batch.a_row = 1;
  if (size.columns <= 1 && batch.b_row != 1) batch.b_column = 1;
  return batch;
}

/// Merges a batch whose products share one b, and whose matrices' rows are evenly spaced, into one product: (B, M, K) times (K, N) is (B M,
/// K) times (K, N).
void merge_batch(Batch& batch) {
  Layout<3>& loop = batch.loop;
  const std::int64_t in_c = loop.inner_stride(0), in_a = loop.inner_stride(1), length = loop.inner();
  if (length <= 1 || loop.inner_stride(2) != 0 || in_a < 0 || in_c <= 0) return;
  if (batch.size.rows == 1 && batch.a_column == 1) {
    batch.a_row = in_a;
    batch.c_row = in_c;
  }
  if (in_a != batch.size.rows * batch.a_row || in_c != batch.size.rows * batch.c_row) return;
  batch.size.rows *= length;
  if (loop.dims > 1) loop = loop.without(0);
  else loop.sizes[0] = 1;
}

/// Dot product of two contiguous runs, in lanes.
template <class C>
C dot(const C* x, const C* y, std::int64_t n) {
  constexpr int lanes = 32;
  C lane[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int j = 0; j < lanes; ++j) lane[j] += x[i + j] * y[i + j];
  for (int j = 0; i < n; ++i, ++j) lane[j] += x[i] * y[i];
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  return lane[0];
}

/// y[i] = alpha * sum over k of m[i, k] x[k], or added to y, for i in [begin, end). `m` is read along its unit stride.
template <class C, class S>
void matrix_vector(const Matrix<const S>& m, const C* x, std::int64_t depth, S* y, std::int64_t y_stride, C alpha, Write write,
                   std::int64_t begin, std::int64_t end) {
  alignas(64) C row[chunk];
  alignas(64) C sums[chunk];
  for (std::int64_t first = begin; first < end; first += chunk) {
    const std::int64_t n = std::min(chunk, end - first);
    std::fill_n(sums, n, C(0));
    if (m.column_stride == 1) {
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t k = 0; k < depth; k += chunk) {
          const std::int64_t length = std::min(chunk, depth - k);
          sums[i] += dot(load(m.at(first + i, k).data, 1, length, row), x + k, length);
        }
    } else {
      for (std::int64_t k = 0; k < depth; ++k) {
        const C* const column = load(m.at(first, k).data, m.row_stride, n, row);
        const C factor = x[k];
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) sums[i] += factor * column[i];
      }
    }
    for (std::int64_t i = 0; i < n; ++i) {
      S& to = y[(first + i) * y_stride];
      to = S(alpha * sums[i] + (write == Write::accumulate ? C(to) : C(0)));
    }
  }
}

/// Products with a vector on one side: b's columns, or a's rows, times the vector.
template <class C, class S>
void vector_products(const Batch& batch, const View& a, const View& b, const View& c, C alpha, Write write) {
  const std::int64_t rows = batch.size.rows, columns = batch.size.columns, depth = batch.size.depth;
  const bool row = rows == 1;
  const std::int64_t count = row ? columns : rows, y_stride = row ? 1 : batch.c_row, x_stride = row ? batch.a_column : batch.b_row;
  const Scratch<C> xs(depth * batch.loop.numel(), c.stream);
  std::int64_t filled = 0;
  walk(batch.loop, 0, batch.loop.numel(), 1, [&](const std::int64_t* at, std::int64_t) {
    const S* const x = row ? a.as<const S>() + at[1] : b.as<const S>() + at[2];
    for (std::int64_t k = 0; k < depth; ++k) xs.data()[filled++] = convert<C>(x[k * x_stride]);
  });
  const auto product = [&](const std::int64_t* at, std::int64_t number, std::int64_t begin, std::int64_t end) {
    Matrix<const S> m{a.as<const S>() + at[1], batch.a_row, batch.a_column};
    if (row) m = {b.as<const S>() + at[2], batch.b_column, batch.b_row};
    matrix_vector<C, S>(m, xs.data() + depth * number, depth, c.as<S>() + at[0], y_stride, alpha, write, begin, end);
  };
  // Short products go to threads as a whole, long ones are divided.
  const bool whole = batch.loop.numel() >= num_threads();
  parallel_units(whole ? batch.loop.numel() : 1, count * depth, stream_grain, [&](std::int64_t first, std::int64_t last) {
    std::int64_t number = first;
    walk(batch.loop, whole ? first : 0, whole ? last : batch.loop.numel(), 1, [&](const std::int64_t* at, std::int64_t) {
      const auto part = [&](std::int64_t begin, std::int64_t end) { product(at, number, begin, end); };
      if (whole) part(0, count);
      else parallel_units(count, depth, stream_grain, part);
      ++number;
    });
  });
}

/// Division of a product's c into row_parts x column_parts parts, whose edges are tile edges.
struct Grid {
  std::int64_t row_parts = 1, column_parts = 1;
};

/// The grid for `threads` threads: the most parts of at least one tile each, and among those the one that packs least, since each part
/// packs its own rows of a and columns of b.
template <class C>
Grid make_grid(Sizes size, std::int64_t threads) {
  const std::int64_t row_tiles = ceil_div(size.rows, gemm::max_height);
  const std::int64_t column_tiles = ceil_div(size.columns, gemm::breadth<C>);
  Grid best;
  const auto packed = [&](const Grid& grid) { return size.rows * grid.column_parts + size.columns * grid.row_parts; };
  for (std::int64_t row_parts = 1; row_parts <= std::min(threads, row_tiles); ++row_parts) {
    const Grid grid{row_parts, std::min(threads / row_parts, column_tiles)};
    const std::int64_t more = grid.row_parts * grid.column_parts - best.row_parts * best.column_parts;
    if (more > 0 || (more == 0 && packed(grid) < packed(best))) best = grid;
  }
  return best;
}

/// Products of a batch into c; place(at, number) gives the matrix of product `number`, whose rows are c_row apart.
template <class C, class S, class Place>
void tiled_products(const Batch& batch, const View& a, const View& b, std::int64_t c_row, C alpha, bool add, const Stream& stream,
                    Place&& place) {
  const std::int64_t rows = batch.size.rows, columns = batch.size.columns, depth = batch.size.depth;
  const std::int64_t count = batch.loop.numel(), multiplications = count * rows * columns * depth;
  const std::int64_t threads = std::clamp<std::int64_t>(multiplications / product_grain, 1, num_threads());
  // A long product is divided more finely than the threads need: if one thread is delayed, the others take the parts that it has not begun.
  const bool whole = count % threads == 0 || count >= 8 * threads;
  const std::int64_t spare_parts = threads > 1 ? std::clamp<std::int64_t>(multiplications / (threads * long_part), 1, 4) : 1;
  Grid grid = whole ? Grid{} : make_grid<C>(batch.size, threads * spare_parts);
  bool by_onednn = false;
  if constexpr (std::is_same_v<S, float>) {
    by_onednn =
        onednn::is_faster(batch.size, {a.as<const S>(), batch.a_row, batch.a_column}, {b.as<const S>(), batch.b_row, batch.b_column});
    if (by_onednn) grid = make_grid<C>(batch.size, onednn_parts(rows * columns * depth));
  }
  const std::int64_t parts = grid.row_parts * grid.column_parts;
  constexpr std::int64_t height = gemm::max_height, breadth = gemm::breadth<C>;
  const auto row_edge = [&](std::int64_t i) { return std::min(rows, round_up(rows * i / grid.row_parts, height)); };
  const auto column_edge = [&](std::int64_t j) { return std::min(columns, round_up(columns * j / grid.column_parts, breadth)); };
  // Rounding the edges may add a tile to a part.
  const std::int64_t work_size =
      by_onednn ? 0 : gemm::packed_size<C>({rows / grid.row_parts + 2 * height, columns / grid.column_parts + 2 * breadth, depth});
  const Scratch<C> work(work_size * threads, stream);
  const std::int64_t units = count * parts, at_once = std::max<std::int64_t>(1, units / (8 * threads));
  share_dynamically(units, threads, at_once, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
    C* const own = work.data() + work_size * thread;
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t number = unit / parts, i = unit % parts / grid.column_parts, j = unit % grid.column_parts;
      const std::int64_t i0 = row_edge(i), j0 = column_edge(j);
      const Sizes size{row_edge(i + 1) - i0, column_edge(j + 1) - j0, depth};
      if (size.rows <= 0 || size.columns <= 0) continue;
      walk(batch.loop, number, number + 1, 1, [&](const std::int64_t* at, std::int64_t) {
        const Matrix<const S> left{a.as<const S>() + at[1], batch.a_row, batch.a_column};
        const Matrix<const S> right{b.as<const S>() + at[2], batch.b_row, batch.b_column};
        C* const to = place(at, number) + i0 * c_row + j0;
        if constexpr (std::is_same_v<S, float>)
          if (by_onednn && onednn::multiply(size, alpha, left.at(i0, 0), right.at(0, j0), to, c_row, add)) return;
        const Scratch<C> spare(by_onednn ? gemm::packed_size<C>(size) : 0, stream);  // oneDNN failed: it was out of memory
        gemm::multiply<C, S>(size, alpha, left.at(i0, 0), right.at(0, j0), to, c_row, add, by_onednn ? spare.data() : own);
      });
    }
  });
}

}  // namespace

void Matmul::run(Cpu) const {
  if (c.numel() == 0) return;
  Batch batch = make_batch(a, b, c);
  if (batch.size.depth == 0) {
    if (write == Write::overwrite) Fill{c, 0}.run(Cpu{});
    return;
  }
  backend::count_flops(2 * static_cast<double>(c.numel()) * static_cast<double>(batch.size.depth), true);
  merge_batch(batch);
  const std::int64_t rows = batch.size.rows, columns = batch.size.columns;
  dispatch_floats(c.dtype, "matmul", [&]<class S>() {
    using C = compute_t<S>;
    if (rows == 1 || columns == 1) {
      vector_products<C, S>(batch, a, b, c, C(alpha), write);
    } else if constexpr (std::is_same_v<C, S>) {
      const auto place = [&](const std::int64_t* at, std::int64_t) { return c.as<C>() + at[0]; };
      tiled_products<C, S>(batch, a, b, batch.c_row, C(alpha), write == Write::accumulate, c.stream, place);
    } else {
      if constexpr (std::is_same_v<S, bf16>) {
        const Matrix<const bf16> left{a.as<const bf16>(), batch.a_row, batch.a_column},
            right{b.as<const bf16>(), batch.b_row, batch.b_column};
        const bool add = write == Write::accumulate;
        if (batch.loop.numel() == 1 && onednn::multiply(batch.size, alpha, left, right, c.as<bf16>(), batch.c_row, add)) return;
      }
      // Sums stay in float32 until they are complete, and are rounded once.
      const Scratch<C> wide(batch.loop.numel() * rows * columns, c.stream);
      const auto place = [&](const std::int64_t*, std::int64_t number) { return wide.data() + number * rows * columns; };
      tiled_products<C, S>(batch, a, b, columns, C(alpha), false, c.stream, place);
      std::int64_t number = 0;
      walk(batch.loop, 0, batch.loop.numel(), 1, [&](const std::int64_t* at, std::int64_t) {
        const C* const from = wide.data() + number++ * rows * columns;
        parallel_units(rows, columns, stream_grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            S* const to = c.as<S>() + at[0] + i * batch.c_row;
            if (write == Write::overwrite) convert_run(from + i * columns, to, columns);
            else
              for (std::int64_t j = 0; j < columns; ++j) to[j] = S(C(to[j]) + from[i * columns + j]);
          }
        });
      });
    }
  });
}

void Linear::run(Cpu) const {
  plain_linear([](const auto& kernel) { kernel.run(Cpu{}); }, x, weight, bias, y);
}

void LinearGelu::run(Cpu) const {
  Linear{x, weight, bias, before}.run(Cpu{});
  Unary{functors::GeluTanh{}, before, y}.run(Cpu{});
}

void ColumnSums::run(Cpu) const {
  View row = sums;
  row.shape = {1, sums.shape[0]};
  row.strides = {0, sums.strides[0]};
  if (write == Write::overwrite) return Reduce{ReduceFunction::sum, g, row, 1}.run(Cpu{});
  const Scratch<std::byte> memory(sums.shape[0] * static_cast<std::int64_t>(size_of(sums.dtype)), sums.stream);
  View added = row;
  added.data = memory.data();
  added.strides = {0, 1};
  Reduce{ReduceFunction::sum, g, added, 1}.run(Cpu{});
  Binary{functors::Add{}, row, added, row}.run(Cpu{});
}

void GeluBiasGrad::run(Cpu) const {
  UnaryGrad{functors::GeluTanh{}, g, x, x, dx}.run(Cpu{});
  if (sums.data) ColumnSums{dx, sums, write}.run(Cpu{});
}

// Products of integers: plain loops over the unit stride, without packing, a few times slower than those of floats. Sums are in
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
void integer_products(const View& a, const View& b, const View& c) {
  const Batch batch = make_batch(a, b, c);
  const std::int64_t rows = batch.size.rows, columns = batch.size.columns, depth = batch.size.depth;
  walk(batch.loop, 0, batch.loop.numel(), 1, [&](const std::int64_t* at, std::int64_t) {
    const Matrix<const T> left{a.as<const T>() + at[1], batch.a_row, batch.a_column};
    const Matrix<const T> right{b.as<const T>() + at[2], batch.b_row, batch.b_column};
    T* const to = c.as<T>() + at[0];
    parallel_units(rows, columns * depth, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) product_row(left, right, to + i * batch.c_row, i, depth, columns);
    });
  });
}

}  // namespace

void IntegerMatmul::run(Cpu) const {
  if (c.numel() == 0) return;
  switch (c.dtype) {
    case DType::i32: return integer_products<std::int32_t>(a, b, c);
    case DType::i64: return integer_products<std::int64_t>(a, b, c);
    case DType::u8: return integer_products<std::uint8_t>(a, b, c);
    default: fail("matmul", std::string("expected integers but got ") + name(c.dtype));
  }
}

}  // namespace tern::kernels
