#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/cpu/loops.h"
#include "tensor/sizes.h"

namespace tern::gemm {

/// Note [Gemm]: c += a b after Goto & van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS 2008. Both operands are
/// packed into panels in the order in which the microkernel reads them: `height` rows of a, and `breadth` columns of b, for each step of
/// the depth. The microkernel keeps a height x breadth tile of c in registers and does one outer product of a panel column with a panel row
/// per step. A block of b's panels should stay in the L3 cache, a block of a's in L2, and one panel of b in L1. Packing also converts
/// 16-bit floats, resolves transposition and pads edges with zeros.
///
/// Each element of c is summed over the depth in one fixed order, in every tile, block and thread. That, 16-bit operands without converted
/// copies, and speed (docs/sgemm.md, bench/products.md) are the reasons not to use Eigen.

using loops::vector_bytes;
/// A tile of two vectors per row leaves a few of AVX-512's 32 registers, or of 16 otherwise, for a and b.
inline constexpr int max_height = vector_bytes == 64 ? 14 : 6;
inline constexpr std::int64_t block_depth = 384, block_rows = 20 * max_height, block_columns = 2048;
/// Stride of the rows of a panel that is packed by rows: not a power of two, which would map the rows to a few sets of the L1 cache.
inline constexpr std::int64_t packed_row = block_depth + 16;
/// Number of multiplications below which a second thread costs more than it gains.
inline constexpr std::int64_t product_grain = 1 << 17;

template <class T>
inline constexpr int lanes = vector_bytes / int(sizeof(T));
/// Columns of a full tile: two vectors.
template <class T>
inline constexpr int breadth = 2 * lanes<T>;

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(vector_bytes)));
};

/// A strided matrix: element (i, j) is at data + i * row_stride + j * column_stride.
template <class T>
struct Matrix {
  T* data;
  std::int64_t row_stride, column_stride;
  Matrix at(std::int64_t i, std::int64_t j) const { return {data + i * row_stride + j * column_stride, row_stride, column_stride}; }
};

/// Copies n < 2 * Most elements, by powers of two, whose moves are single instructions: a tile's edge is too short for std::memcpy.
template <int Most, class T>
[[gnu::always_inline]] inline void copy_edge(T* to, const T* from, int n) {
  if (n & Most) {
    std::memcpy(to, from, Most * sizeof(T));
    to += Most;
    from += Most;
  }
  if constexpr (Most > 1) copy_edge<Most / 2>(to, from, n);
}

/// Left operand of a tile, read one column per step of the depth: packed R rows wide, packed by rows, or in place, by rows or by columns.
template <class T, int R>
struct PanelOperand {
  const T* at;
  T operator[](int r) const { return at[r]; }
  void step() { at += R; }
};
template <class T>
struct PackedRowsOperand {
  const T* at;
  T operator[](int r) const { return at[r * packed_row]; }
  void step() { ++at; }
};
template <class T>
struct RowsOperand {
  const T* at;
  std::int64_t stride;
  T operator[](int r) const { return at[r * stride]; }
  void step() { ++at; }
};
template <class T>
struct ColumnsOperand {
  const T* at;
  std::int64_t stride;
  T operator[](int r) const { return at[r]; }
  void step() { at += stride; }
};

/// Memory to prefetch: `runs` contiguous segments of `bytes` bytes, `stride` bytes apart. Each `call` prefetches `lines` cache lines into
/// L2, between steps of a tile: a burst for a whole tile would fill the queue of misses and delay the tile's own operands.
struct Prefetch {
  const char* data = nullptr;
  std::int64_t stride = 0, runs = 0, bytes = 0, at = 0, lines = 0;

  template <class S>
  static Prefetch of(const S* from, std::int64_t stride, std::int64_t runs, std::int64_t elements) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(S));
    return {reinterpret_cast<const char*>(from), stride * size, runs, elements * size};
  }
  static constexpr std::int64_t line = 64;
  /// Spreads the prefetches over that many calls.
  void spread(std::int64_t calls) { lines = ceil_div(runs * ceil_div(bytes, line), calls); }
  void call() {
    for (std::int64_t left = lines; left > 0 && runs > 0; --left) {
      __builtin_prefetch(data + at, 0, 2);
      at += line;
      if (at < bytes) continue;
      data += stride;
      at = 0;
      --runs;
    }
  }
};

/// Steps of the depth between two prefetch calls, and the number of last steps, in which c is prefetched.
inline constexpr std::int64_t last_steps = 32;

/// Microkernel: c (rows x columns, of a tile of R x V vectors) = alpha * a b, or added to c; steps of b are b_stride apart. Prefetches
/// `next`, if given, meanwhile.
template <int R, int V, class T, class A>
[[gnu::always_inline]] inline void multiply_tile(std::int64_t depth, A a, const T* __restrict b, std::int64_t b_stride, T* c,
                                                 std::int64_t c_stride, int rows, int columns, T alpha, bool add, Prefetch* next) {
  using Vector = typename VectorOf<T>::type;
  constexpr int width = V * lanes<T>;
  Vector sum[R][V] = {};
  const auto add_steps = [&](std::int64_t steps) __attribute__((always_inline)) {
    for (std::int64_t k = 0; k < steps; ++k, a.step(), b += b_stride) {
      Vector row[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) std::memcpy(&row[v], b + v * lanes<T>, sizeof(Vector));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sum[r][v] += a[r] * row[v];
    }
  };
  // c is prefetched into L1 during the last steps: earlier, the panel of b would evict it again. The next tile below finds its c in L2,
  // into which two rows are prefetched at a time.
  const T* below = c + R * c_stride;
  for (std::int64_t left = depth; left > 0;) {
    const std::int64_t steps = left > last_steps ? std::min(last_steps, left - last_steps) : left;
    if (next) {
      next->call();
      for (int line = 0; line < 2 * V; ++line) __builtin_prefetch(below + line / V * c_stride + line % V * lanes<T>, 0, 2);
      below += 2 * c_stride;
    }
    if (left <= last_steps)
      for (int r = 0; r < rows; ++r)
        for (int v = 0; v < V; ++v) __builtin_prefetch(c + r * c_stride + v * lanes<T>, 1);
    add_steps(steps);
    left -= steps;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if (r >= rows) break;
    // Edges go through a buffer, with exactly the same arithmetic.
    alignas(vector_bytes) T edge[width] = {};
    T* const to = c + r * c_stride;
    const bool whole = columns == width;
    if (add && !whole) copy_edge<width / 2>(edge, to, columns);
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      Vector value = alpha * sum[r][v], before;
      T* const place = whole ? to + v * lanes<T> : edge + v * lanes<T>;
      if (add) {
        std::memcpy(&before, place, sizeof before);
        value = before + alpha * sum[r][v];
      }
      std::memcpy(place, &value, sizeof value);
    }
    if (!whole) copy_edge<width / 2>(to, edge, columns);
  }
}

template <class T, int R, int V>
void tile(std::int64_t depth, const T* __restrict a, const T* __restrict b, T* c, std::int64_t c_stride, int rows, int columns, T alpha,
          bool add, Prefetch* next) {
  multiply_tile<R, V>(depth, PanelOperand<T, R>{a}, b, V * lanes<T>, c, c_stride, rows, columns, alpha, add, next);
}
template <class T>
using Tile = void (*)(std::int64_t, const T*, const T*, T*, std::int64_t, int, int, T, bool, Prefetch*);

/// The microkernel for packed panels of an even height and of V vectors.
template <class T>
Tile<T> tile_for(int height, int vectors) {
  static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<std::array<Tile<T>, 2>, sizeof...(I)>{{{tile<T, 2 * I + 2, 1>, tile<T, 2 * I + 2, 2>}...}};
  }(std::make_integer_sequence<int, max_height / 2>());
  return table[static_cast<std::size_t>(height / 2 - 1)][static_cast<std::size_t>(vectors - 1)];
}

/// The microkernel for an a that is not packed: all rows of the tile must exist.
template <class A, int R, int V, class T>
void strided_tile(std::int64_t depth, A a, const T* b, std::int64_t b_stride, T* c, std::int64_t c_stride, int rows, int columns, T alpha,
                  bool add, Prefetch* next) {
  multiply_tile<R, V>(depth, a, b, b_stride, c, c_stride, rows, columns, alpha, add, next);
}
template <class A, class T>
using StridedTile = void (*)(std::int64_t, A, const T*, std::int64_t, T*, std::int64_t, int, int, T, bool, Prefetch*);

template <class A, class T>
StridedTile<A, T> strided_tile_for(int height, int vectors) {
  static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<std::array<StridedTile<A, T>, 2>, sizeof...(I)>{
        {{strided_tile<A, 2 * I + 2, 1, T>, strided_tile<A, 2 * I + 2, 2, T>}...}};
  }(std::make_integer_sequence<int, max_height / 2>());
  return table[static_cast<std::size_t>(height / 2 - 1)][static_cast<std::size_t>(vectors - 1)];
}

/// Height of the panels that waste least for `rows` rows.
inline int panel_height(std::int64_t rows) {
  const std::int64_t panels = ceil_div(rows, max_height);
  return static_cast<int>(round_up(ceil_div(rows, panels), 2));
}

/// One stage of the transpose of a square of vectors: swaps the off-diagonal blocks of Step x Step elements.
template <int Step, class Vector, int... Lane>
[[gnu::always_inline]] inline void exchange(Vector* rows, std::integer_sequence<int, Lane...>) {
  constexpr int n = sizeof...(Lane);
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    if (i & Step) continue;
    const Vector upper = rows[i], lower = rows[i + Step];
    rows[i] = __builtin_shufflevector(upper, lower, (Lane & Step ? n + Lane - Step : Lane)...);
    rows[i + Step] = __builtin_shufflevector(upper, lower, (Lane & Step ? n + Lane : Lane + Step)...);
  }
  if constexpr (Step > 1) exchange<Step / 2>(rows, std::make_integer_sequence<int, n>());
}

/// to[j * width + i] = x[i * line_stride + j] for n lines, padded with zeros to `width`, and `depth` steps. Stores whole vectors in
/// ascending order, so that the excess of one is overwritten by the next; `to` has room for one vector more.
template <class T, class S>
void pack_transposed(const S* x, std::int64_t line_stride, int n, std::int64_t depth, int width, T* to) {
  using Vector = typename VectorOf<T>::type;
  constexpr int square = lanes<T>, max_groups = ceil_div(std::max(max_height, breadth<T>), square);
  const int groups = ceil_div(width, square);
  for (std::int64_t j = 0; j < depth; j += square) {
    const int steps = static_cast<int>(std::min<std::int64_t>(square, depth - j));
    Vector rows[max_groups][square];
    for (int g = 0; g < groups; ++g) {
      for (int i = 0; i < square; ++i) {
        const S* const line = x + (g * square + i) * line_stride + j;
        rows[g][i] = Vector{};
        if (g * square + i >= n) continue;
        if (std::is_same_v<T, S> && steps == square) std::memcpy(&rows[g][i], line, sizeof(Vector));
        else loops::convert_run(line, reinterpret_cast<T*>(&rows[g][i]), steps);
      }
      exchange<square / 2>(rows[g], std::make_integer_sequence<int, square>());
    }
    for (int k = 0; k < steps; ++k)
      for (int g = 0; g < groups; ++g) std::memcpy(to + (j + k) * width + g * square, &rows[g][k], sizeof(Vector));
  }
}

/// Packs `count` lines of x, `depth` long, into panels of `width` lines, step by step of the depth. `to` has room for one vector more.
template <class T, class S>
void pack(const S* x, std::int64_t line_stride, std::int64_t depth_stride, std::int64_t count, std::int64_t depth, int width, T* to) {
  for (std::int64_t first = 0; first < count; first += width, to += width * depth, x += width * line_stride) {
    const std::int64_t n = std::min<std::int64_t>(width, count - first);
    if (depth_stride == 1) {
      pack_transposed(x, line_stride, static_cast<int>(n), depth, width, to);
      continue;
    }
    // Nearly all panels have one of two widths; moves of a constant length need no loop.
    const auto copy = [&]<int Width>(std::integral_constant<int, Width>) {
      for (std::int64_t k = 0; k < depth; ++k) std::memcpy(to + k * Width, x + k * depth_stride, Width * sizeof(T));
    };
    if (std::is_same_v<T, S> && n == max_height && width == n) copy(std::integral_constant<int, max_height>());
    else if (std::is_same_v<T, S> && n == breadth<T> && width == n) copy(std::integral_constant<int, breadth<T>>());
    else {
      if (n < width) std::fill_n(to, width * depth, T(0));
      for (std::int64_t k = 0; k < depth; ++k) loops::convert_run(x + k * depth_stride, to + k * width, n);
    }
  }
}

struct Sizes {
  std::int64_t rows, columns, depth;
};

using tern::round_up;

/// Number of elements that `multiply` needs for packed panels of a and then of b.
template <class T>
constexpr std::int64_t packed_a_size(Sizes size) {
  return round_up((std::min(size.rows, block_rows) + max_height) * packed_row + lanes<T>, lanes<T>);
}
template <class T>
constexpr std::int64_t packed_size(Sizes size) {
  return packed_a_size<T>(size) + round_up(std::min(size.columns, block_columns), breadth<T>) * std::min(size.depth, block_depth) +
         lanes<T>;
}

/// A block of a in panels of one height and, if the remaining rows would waste more than one row, a last panel of a smaller height. A
/// matrix with contiguous rows is copied row by row, any other step by step of the depth.
template <class T>
struct PackedRows {
  template <class S>
  PackedRows(const Matrix<const S>& a, std::int64_t count, std::int64_t depth_, T* to) : rows(count), depth(depth_), data(to) {
    height = panel_height(rows);
    if (round_up(rows, height) - rows > 1) height = max_height;
    whole = rows / height * height;
    rest = static_cast<int>(round_up(rows - whole, 2));
    is_by_rows = has_row_tiles && a.column_stride == 1;
    if (is_by_rows) {
      constexpr std::int64_t ahead = 4;
      for (std::int64_t i = 0; i < rows; ++i) {
        if (i + ahead < rows) {
          Prefetch row = Prefetch::of(a.at(i + ahead, 0).data, 0, 1, depth);
          row.spread(1);
          row.call();
        }
        loops::convert_run(a.at(i, 0).data, data + i * packed_row, depth);
      }
      std::fill_n(data + rows * packed_row, whole + rest > rows ? depth : 0, T(0));
    } else {
      pack(a.data, a.row_stride, a.column_stride, whole, depth, height, data);
      if (rest) pack(a.at(whole, 0).data, a.row_stride, a.column_stride, rows - whole, depth, rest, data + whole * depth);
    }
  }

  /// c = alpha times this block times a panel of b, of `columns` columns and with steps `stride` apart, or added to c; packed by rows if
  /// the panel is not packed. Prefetches `next` meanwhile: the hardware prefetcher does not follow strides of more than a page.
  void multiply(const T* panel, std::int64_t stride, int columns, T* c, std::int64_t c_stride, T alpha, bool add, Prefetch next) const {
    const int vectors = columns <= lanes<T> ? 1 : 2;
    next.spread(ceil_div(rows, height) * ceil_div(depth, last_steps));
    for (std::int64_t i = 0; i < rows; i += height) {
      const int own = i < whole ? height : rest, kept = static_cast<int>(std::min<std::int64_t>(own, rows - i));
      T* const to = c + i * c_stride;
      if constexpr (has_row_tiles)
        if (is_by_rows) {
          strided_tile_for<PackedRowsOperand<T>, T>(own, vectors)(depth, {data + i * packed_row}, panel, stride, to, c_stride, kept,
                                                                  columns, alpha, add, &next);
          continue;
        }
      tile_for<T>(own, vectors)(depth, data + i * depth, panel, to, c_stride, kept, columns, alpha, add, &next);
    }
  }

  std::int64_t rows, depth, whole;
  T* data;
  int height, rest;
  bool is_by_rows;
  /// Microkernels on unpacked rows, 14 of them. For float64, the reference's type, they would add 70 KB to a user's program.
  static constexpr bool has_row_tiles = !std::is_same_v<T, double>;
};

/// c = alpha * a b, or added to c, on the calling thread. c's rows are contiguous; one stride of a and of b is 1. S is T or a 16-bit float.
/// `work` is aligned to vectors and has packed_size elements.
template <class T, class S>
void multiply(Sizes size, T alpha, const Matrix<const S>& a, const Matrix<const S>& b, T* c, std::int64_t c_stride, bool add, T* work) {
  T *const packed_a = work, *const packed_b = work + packed_a_size<T>(size);
  // Panels that already are in L2 need no prefetch.
  const bool is_far = size.columns * size.depth > 1 << 16;
  // Few rows read b where it is, if it has whole vectors: packing takes longer than the products that it speeds up.
  const bool is_in_place = b.column_stride == 1 && size.rows <= 4 * max_height && size.columns % lanes<T> == 0;
  // Even blocks of the depth.
  const std::int64_t depth_blocks = std::max<std::int64_t>(ceil_div(size.depth, block_depth), 1);
  const std::int64_t depth_step = ceil_div(size.depth, depth_blocks);
  for (std::int64_t j0 = 0; j0 < size.columns; j0 += block_columns) {
    const std::int64_t columns = std::min(block_columns, size.columns - j0);
    for (std::int64_t k0 = 0; k0 < size.depth; k0 += depth_step) {
      const std::int64_t depth = std::min(depth_step, size.depth - k0);
      for (std::int64_t i0 = 0; i0 < size.rows; i0 += block_rows) {
        const PackedRows<T> block(a.at(i0, k0), std::min(block_rows, size.rows - i0), depth, packed_a);
        for (std::int64_t j = 0; j < columns; j += breadth<T>) {
          // The last panel of b is one vector wide if that suffices. Each panel is packed when the first block of a needs it, and is then
          // still in a near cache; if there is only one block of a, all panels share one buffer.
          const int width = static_cast<int>(std::min<std::int64_t>(breadth<T>, columns - j)),
                    padded = width <= lanes<T> ? lanes<T> : breadth<T>;
          if constexpr (std::is_same_v<T, S>)
            if (is_in_place && block.is_by_rows) {
              block.multiply(b.at(k0, j0 + j).data, b.row_stride, width, c + i0 * c_stride + j0 + j, c_stride, alpha, add || k0 > 0, {});
              continue;
            }
          T* const panel = packed_b + (size.rows > block_rows ? j * depth : 0);
          if (i0 == 0) pack(b.at(k0, j0 + j).data, b.column_stride, b.row_stride, width, depth, padded, panel);
          Prefetch next;
          if (const std::int64_t following = j + breadth<T>; is_far && following < columns) {
            const S* const source = b.at(k0, j0 + following).data;
            const std::int64_t count = std::min<std::int64_t>(breadth<T>, columns - following);
            if (i0 > 0) next = Prefetch::of(packed_b + following * depth, depth, count, depth);
            else if (b.column_stride == 1) next = Prefetch::of(source, b.row_stride, depth, count);
            else next = Prefetch::of(source, b.column_stride, count, depth);
          }
          block.multiply(panel, padded, width, c + i0 * c_stride + j0 + j, c_stride, alpha, add || k0 > 0, next);
        }
      }
    }
  }
}

}  // namespace tern::gemm

namespace tern::onednn {

/// c (rows, columns) = alpha * a b, or added to c, for bfloat16 by oneDNN, which uses the processor's bfloat16 products (AVX-512 BF16,
/// AMX), at least twice as fast as float32. Sums are float32 and rounded once. c's rows are contiguous; one stride of a and of b is 1.
/// Returns false, and does nothing, in a build without oneDNN, on a processor without such products, and for products too small to gain.
bool multiply(gemm::Sizes size, double alpha, const gemm::Matrix<const bf16>& a, const gemm::Matrix<const bf16>& b, bf16* c,
              std::int64_t c_stride, bool add);

/// True if oneDNN should compute a float32 product: in a build with oneDNN, on an Intel processor with AVX-512, from 2^22 multiplications
/// on. There it is faster than the tiles of gemm.h; on AMD's processors it is not (bench/products.md). The answer depends on the product's
/// sizes and strides alone, not on threads, because the two sum in different orders.
bool is_faster(gemm::Sizes size, const gemm::Matrix<const float>& a, const gemm::Matrix<const float>& b);

/// The same for float32 operands that is_faster or a test chose, on the calling thread alone, which handles no signal meanwhile. Returns
/// false, and does nothing, in a build without oneDNN or with one on other threads than OpenMP's, and if oneDNN fails.
bool multiply(gemm::Sizes size, float alpha, const gemm::Matrix<const float>& a, const gemm::Matrix<const float>& b, float* c,
              std::int64_t c_stride, bool add);

}  // namespace tern::onednn
