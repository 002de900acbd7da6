#pragma once
#include <cstdint>
#include <type_traits>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/math.cuh"

// Tensor cores of Ampere and later GPUs, one function for each instruction: ldmatrix loads fragments from shared memory to registers,
// mma.sync multiplies them, one warp at a time; and tiles of fragments. Hopper's wgmma is in wgmma.cuh.
//
// A fragment is the part of a matrix that one lane holds. With group = lane / 4 and member = lane % 4, the accumulator c (16, 8) is
// distributed like this, two adjacent elements of a row in a lane:
//
//                          columns 0, 1     2, 3        4, 5        6, 7
//     row group     (8)    lane 4 group     + 1         + 2         + 3        elements c[0], c[1]
//     row group + 8 (8)    the same lanes                                      elements c[2], c[3]
//
// A left operand of 16 bits, a (16, 16), is two such accumulators side by side, with a pair of elements in a register: the rounded result
// of one product is the left operand of the next without any shuffle. b (16, 8), transposed, is one half of that.
namespace tern::gpu {

/// Loads four 8 x 16-byte matrices. Lane l supplies the shared-memory address of row l % 8 of matrix l / 8, and gets, of each matrix, 4
/// bytes: number l % 4 of row l / 4.
__device__ __forceinline__ void ldmatrix(unsigned (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
/// The same with each matrix, of 16-bit elements, transposed.
__device__ __forceinline__ void ldmatrix_trans(unsigned (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

/// Inverse of ldmatrix: from registers to rows in shared memory (sm_90).
__device__ __forceinline__ void stmatrix(unsigned row, const unsigned (&from)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row), "r"(from[0]), "r"(from[1]), "r"(from[2]),
               "r"(from[3])
               : "memory");
#endif
}

/// c (16, 8) += a (16, 16) b (16, 8) of f16 or bf16.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, bf16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// c (16, 8) += a (16, 8) b (8, 8) of floats that are truncated to TF32. A lane has a[group][member], a[group + 8][member], then both with
/// member + 4; b[member][group] and b[member + 4][group].
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&c)[4], const float (&a)[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Warp tiles: accumulators in registers, 16-bit operands in swizzled shared memory or in registers, and their products. An attention kernel
// reads like its formula: mma(scores, queries, keys transposed), row_max, exp2, row_sum, mma(y, scores, values).

/// Layout of mma accumulators over lanes: a group of four adjacent lanes shares each row.
struct MmaLanes {
  static constexpr unsigned low_step = 1, high_step = 2;  ///< bits of the lane index in which a group's members differ
  static __device__ __forceinline__ int group() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int member() { return threadIdx.x % 4; }
};

/// Accumulators (rows, columns) of a warp, in tiles of (16, 8). A lane holds a small grid of them, `lane_rows` x `lane_columns`: element
/// (r, c) of the grid, at(r, c), is element (row_of(r), column_of(c)) of the tile.
template <int rows_, int columns_, class Lanes_ = MmaLanes>
struct FragmentTile {
  using Lanes = Lanes_;
  static constexpr int rows = rows_, columns = columns_, row_tiles = rows / 16, column_tiles = columns / 8;
  static constexpr int lane_rows = 2 * row_tiles, lane_columns = 2 * column_tiles;
  static_assert(rows % 16 == 0 && columns % 8 == 0);

  float values[row_tiles][column_tiles][4];

  static __device__ __forceinline__ int row_of(int r) { return r / 2 * 16 + r % 2 * 8 + Lanes::group(); }
  static __device__ __forceinline__ int column_of(int c) { return c / 2 * 8 + c % 2 + 2 * Lanes::member(); }
  __device__ __forceinline__ float& at(int r, int c) { return values[r / 2][c / 2][r % 2 * 2 + c % 2]; }
  __device__ __forceinline__ float at(int r, int c) const { return values[r / 2][c / 2][r % 2 * 2 + c % 2]; }

  __device__ __forceinline__ void add(const FragmentTile& other) {
#pragma unroll
    for (int r = 0; r < lane_rows; ++r)
#pragma unroll
      for (int c = 0; c < lane_columns; ++c) at(r, c) += other.at(r, c);
  }

  /// Calls f(the lane's four elements of tile (m, n), m, n) for the first `limit` column tiles.
  template <class F>
  __device__ __forceinline__ void for_each_tile(int limit, F&& f) {
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
      if (n >= limit) break;
#pragma unroll
      for (int m = 0; m < row_tiles; ++m) f(values[m][n], m, n);
    }
  }
  /// Calls f(element, r, c) for the lane's elements of these tiles.
  template <class F>
  __device__ __forceinline__ void for_each(int limit, F&& f) {
    for_each_tile(limit, [&](float (&tile)[4], int m, int n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) f(tile[e], 2 * m + e / 2, 2 * n + e % 2);
    });
  }

  /// All-reduce of a row over the lanes that share it.
  template <class F>
  static __device__ __forceinline__ float combine(float part, F&& f) {
    part = f(part, shuffle_xor(part, Lanes::low_step));
    return f(part, shuffle_xor(part, Lanes::high_step));
  }
  static __device__ __forceinline__ float combine_max(float part) {
    return combine(part, [](float a, float b) { return fmaxf(a, b); });
  }
  static __device__ __forceinline__ float combine_sum(float part) {
    return combine(part, [](float a, float b) { return a + b; });
  }

  // The functions below work on one row, the lane's r-th.

  __device__ __forceinline__ float row_max(int r) const {
    float largest = -INFINITY;
#pragma unroll
    for (int c = 0; c < lane_columns; c += 2) largest = fmaxf(largest, fmaxf(at(r, c), at(r, c + 1)));
    return combine_max(largest);
  }
  /// Sum of the lane's elements of the row; combine_sum completes it to the row's sum.
  __device__ __forceinline__ float partial_row_sum(int r) const {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < lane_columns; ++c) sum += at(r, c);
    return sum;
  }
  /// x = 2^(factor x - shift)
  __device__ __forceinline__ void exp2_row(int r, float factor, float shift) {
#pragma unroll
    for (int c = 0; c < lane_columns; ++c) at(r, c) = exp2_approx(at(r, c) * factor - shift);
  }
  __device__ __forceinline__ void scale_row(int r, float factor) {
#pragma unroll
    for (int c = 0; c < lane_columns; ++c) at(r, c) *= factor;
  }

  /// Writes factor times the row to `to`, where a row has `size` elements, a multiple of 8, and the tile starts at element `first`.
  template <class T>
  __device__ __forceinline__ void store_row(int r, float factor, T* to, int first, int size) const {
    T* const pairs = to + first + 2 * Lanes::member();
#pragma unroll
    for (int n = 0; n < column_tiles; ++n)
      if (first + n * 8 < size) {
        const float x = at(r, 2 * n) * factor, y = at(r, 2 * n + 1) * factor;
        if constexpr (std::is_same_v<T, float>) *reinterpret_cast<float2*>(pairs + n * 8) = {x, y};
        else *reinterpret_cast<unsigned*>(pairs + n * 8) = pack_pair<T>(x, y);
      }
  }

  /// Fragment (m, k) of the tile, rounded to 16 bits, as a left operand.
  template <class T>
  __device__ __forceinline__ void load(unsigned (&to)[4], int m, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = pack_pair<T>(values[m][2 * k + i / 2][i % 2 * 2], values[m][2 * k + i / 2][i % 2 * 2 + 1]);
  }
};

/// Tile of rows of `width` 16-bit elements in shared memory. Its swizzle permutes the 16-byte chunks of a row by the row's index, so that
/// eight rows of one chunk, as ldmatrix reads them, are in different banks.
template <int width>
struct SharedTile {
  static constexpr int chunks = width / 8, row_bytes = width * 2;
  static constexpr int bytes(int rows) { return rows * row_bytes; }
  static __device__ __forceinline__ int swizzle(int row) { return chunks % 8 == 0 ? row % 8 : chunks % 4 == 0 ? row / 2 % 4 : row / 4 % 2; }
  static __device__ __forceinline__ unsigned offset(int row, int chunk) { return row * row_bytes + ((chunk ^ swizzle(row)) << 4); }
};

/// Operand of mma_m16n8k16 in a SharedTile, starting at a row that is a multiple of 16 and at an even chunk. A left operand is stored as
/// (rows, depth), or transposed as (depth, rows); a right one as (depth, columns), or transposed as (columns, depth). Everything that
/// depends only on the lane is computed once.
template <int width, bool is_left, bool is_transposed>
class SharedOperand {
 public:
  explicit __device__ __forceinline__ SharedOperand(unsigned tile, int row = 0, int chunk = 0)
      : base_(tile + (row + lane_row()) * SharedTile<width>::row_bytes),
        swizzle_((lane_chunk() ^ SharedTile<width>::swizzle(lane_row())) << 4),
        chunk_(chunk) {}

  /// Loads the fragment of 16 rows or columns, index i, and 16 of the depth, index k: for a left operand one fragment, for a right one
  /// those of the first 8 columns and of the other 8.
  template <class T>
  __device__ __forceinline__ void load(unsigned (&to)[4], int i, int k) const {
    constexpr bool depth_first = is_left == is_transposed;  // the tile's rows are steps of the depth
    const int row = depth_first ? k : i, column = depth_first ? i : k;
    const unsigned from = base_ + row * 16 * SharedTile<width>::row_bytes + ((chunk_ + 2 * column) << 4 ^ swizzle_);
    if constexpr (depth_first) ldmatrix_trans(to, from);
    else ldmatrix(to, from);
  }

 private:
  // Row (of 16) and chunk (of two) whose address the lane supplies: the order of the four matrices is that of a fragment's registers.
  static __device__ __forceinline__ int lane_row() {
    return is_transposed ? threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8 : threadIdx.x % 16;
  }
  static __device__ __forceinline__ int lane_chunk() { return is_transposed ? threadIdx.x / 8 % 2 : threadIdx.x % 32 / 16; }
  unsigned base_, swizzle_;
  int chunk_;
};
template <int width> using OperandA = SharedOperand<width, true, false>;
template <int width> using OperandAt = SharedOperand<width, true, true>;
template <int width> using OperandB = SharedOperand<width, false, false>;
template <int width> using OperandBt = SharedOperand<width, false, true>;

/// Left operand (rows, depth) of 16 bits in registers.
template <int rows, int depth>
struct RegisterOperand {
  unsigned values[rows / 16][depth / 16][4];

  /// Loads it from a tile in shared memory, or from accumulators, which are rounded.
  template <class T, class Operand>
  __device__ __forceinline__ void assign(const Operand& from) {
#pragma unroll
    for (int m = 0; m < rows / 16; ++m)
#pragma unroll
      for (int k = 0; k < depth / 16; ++k) from.template load<T>(values[m][k], m, k);
  }
  /// Writes it to a SharedTile, starting at a row and a chunk.
  template <int width>
  __device__ __forceinline__ void store(unsigned tile, int row, int chunk) const {
#pragma unroll
    for (int m = 0; m < rows / 16; ++m)
#pragma unroll
      for (int n = 0; n < depth / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned to =
              tile + SharedTile<width>::offset(row + m * 16 + MmaLanes::group() + half * 8, chunk + n) + MmaLanes::member() * 4;
          store_shared(to, values[m][n / 2][n % 2 * 2 + half]);
        }
  }
  template <class T>
  __device__ __forceinline__ void load(unsigned (&to)[4], int m, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = values[m][k][i];
  }
};

/// Product c += a b that is computed in steps of 16 of the depth.
template <int rows, int columns, class A, class B>
struct Product {
  FragmentTile<rows, columns>& c;
  const A& a;
  const B& b;
  unsigned a_fragments[rows / 16][4];

  static constexpr int column_pairs = columns / 16;

  __device__ __forceinline__ Product(FragmentTile<rows, columns>& c_, const A& a_, const B& b_) : c(c_), a(a_), b(b_) {}

  template <class T>
  __device__ __forceinline__ void load_a(int k) {
#pragma unroll
    for (int m = 0; m < rows / 16; ++m) a.template load<T>(a_fragments[m], m, k);
  }
  /// Multiplies 16 columns.
  template <class T>
  __device__ __forceinline__ void step(int n, int k) {
    unsigned b_fragments[4];
    b.template load<T>(b_fragments, n, k);
#pragma unroll
    for (int m = 0; m < rows / 16; ++m) {
      mma_m16n8k16<T>(c.values[m][2 * n], a_fragments[m], b_fragments[0], b_fragments[1]);
      mma_m16n8k16<T>(c.values[m][2 * n + 1], a_fragments[m], b_fragments[2], b_fragments[3]);
    }
  }
};

/// Computes products over `steps` * 16 of the depth, `unroll` steps at a time. Several products of the same shape go step by step together,
/// so that none waits for its own accumulators while the others could continue.
template <class T, int unroll, class First, class... Others>
__device__ __forceinline__ void mma_steps(int steps, First first, Others... others) {
#pragma unroll(unroll)
  for (int k = 0; k < steps; ++k) {
    first.template load_a<T>(k);
    (others.template load_a<T>(k), ...);
#pragma unroll
    for (int n = 0; n < First::column_pairs; ++n) {
      first.template step<T>(n, k);
      (others.template step<T>(n, k), ...);
    }
  }
}
/// The same for a depth that is known at compile time.
template <class T, int depth, class... Products>
__device__ __forceinline__ void mma(Products... products) {
  mma_steps<T, depth / 16>(depth / 16, products...);
}

}  // namespace tern::gpu
