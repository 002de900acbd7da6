// Rung 8: the tensor cores multiply, in TF32: f32 with 10 bits of mantissa, summed in f32.
//
// One mma instruction of a warp is a product of 16 x 8 and 8 x 8. A warp has 64 x 64 of c, 4 x 8 such products at a step of 8, for which it
// reads 64 + 64 rows of 8 from shared memory: m n k (1 / 64 + 1 / 64) operands for all its threads. The tiles come as in rung 7; their rows
// are padded so that what a warp's lanes read at once lies in 32 different banks. Hopper's own instruction (wgmma) takes its operands from
// shared memory itself, where here a thread issues 20 loads and 32 roundings for 32 products: cuBLAS uses it.
#include "ladder.h"

namespace study::gpu {

namespace {

constexpr unsigned tile = 128, depth = 32, stages = 3;
constexpr unsigned warp_rows = 64, warp_columns = 64, warps_across = tile / warp_columns;
constexpr unsigned threads = tile / warp_rows * warps_across * 32;
constexpr unsigned rows = 16, columns = 8, step_k = 8;  // of an mma
constexpr unsigned down = warp_rows / rows, across = warp_columns / columns;

struct Stage {
  float a[tile][depth + 4];  // 36 g + t for g < 8, t < 4: 32 banks
  float b[depth][tile + 8];  // 136 t + g: likewise
};

/// Copies `bytes` (4 or 16) to shared memory, or as many zeros.
template <unsigned bytes>
__device__ void copy_async(float* to, const float* from, bool is_inside) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const unsigned count = is_inside ? bytes : 0;
  if constexpr (bytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(count) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(count) : "memory");
}
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until no more than `pending` of this thread's groups are on their way.
template <int pending>
__device__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// A thread's share of the copies of one operand: `count` vectors of `width` elements, `step` rows apart. Of a the rows are outputs and the
/// columns steps of k; of b it is the other way round.
template <unsigned width, unsigned tile_rows, unsigned tile_columns>
struct Share {
  static constexpr unsigned a_row = tile_columns / width, step = threads / a_row, count = tile_rows / step;
  unsigned row, column;
  const float* from;
  long stride;

  __device__ Share(const float* x, unsigned first_row, unsigned first_column, int row_length)
      : row(threadIdx.x / a_row),
        column(threadIdx.x % a_row * width),
        from(x + static_cast<long>(first_row + row) * row_length + first_column + column),
        stride(static_cast<long>(step) * row_length) {}
};

/// Rounded to TF32.
__device__ unsigned rounded(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

/// Four blocks of 8 rows x 4 words: lane 8 j + r says where row r of block j lies, and lane 4 g + t gets word t of row g of each.
__device__ void read_blocks(float (&words)[4], const float* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=f"(words[0]), "=f"(words[1]), "=f"(words[2]), "=f"(words[3])
               : "r"(address));
}

/// c (16, 8) += a (16, 8) b (8, 8). Of lane 4 g + t: a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]; b[t, g], b[t + 4, g];
/// c[g, 2 t], c[g, 2 t + 1], c[g + 8, 2 t], c[g + 8, 2 t + 1].
__device__ void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <bool aligned>
__global__ void __launch_bounds__(threads, 2) multiply(Product p) {
  extern __shared__ __align__(16) char memory[];
  Stage* const stage = reinterpret_cast<Stage*>(memory);
  constexpr unsigned width = aligned ? 4 : 1;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y * tile, column = blockIdx.x * tile;
  const unsigned g = lane / 4, t = lane % 4, y = warp / warps_across * warp_rows, x = warp % warps_across * warp_columns;
  const auto m = static_cast<unsigned>(p.m), n = static_cast<unsigned>(p.n), depths = static_cast<unsigned>(p.k);

  const Share<width, tile, depth> of_a(p.a, row, 0, p.k);
  const Share<width, depth, tile> of_b(p.b, 0, column, p.n);
  const auto fetch = [&](Stage& to, unsigned start) {
    const bool has_k = start + of_a.column < depths, has_column = column + of_b.column < n;
#pragma unroll
    for (unsigned i = 0; i < of_a.count; ++i) {
      const unsigned r = of_a.row + i * of_a.step;
      const bool is_inside = has_k && row + r < m;
      copy_async<4 * width>(&to.a[r][of_a.column], is_inside ? of_a.from + i * of_a.stride + start : p.a, is_inside);
    }
    const float* const from = of_b.from + static_cast<long>(start) * p.n;
#pragma unroll
    for (unsigned i = 0; i < of_b.count; ++i) {
      const unsigned k = of_b.row + i * of_b.step;
      const bool is_inside = has_column && start + k < depths;
      copy_async<4 * width>(&to.b[k][of_b.column], is_inside ? from + i * of_b.stride : p.b, is_inside);
    }
  };

  float sum[down][across][4] = {};
  const unsigned steps = (depths + depth - 1) / depth;
  for (unsigned s = 0; s + 1 < stages; ++s) {
    if (s < steps) fetch(stage[s], s * depth);
    commit();
  }
  unsigned at = 0, ahead = stages - 1;
  for (unsigned step = 0; step < steps; ++step) {
    wait<stages - 2>();
    // The tiles are here for all threads, and all are done with those that the next ones overwrite.
    __syncthreads();
    if (step + stages - 1 < steps) fetch(stage[ahead], (step + stages - 1) * depth);
    commit();
    const Stage& now = stage[at];
    // What the next step of 8 multiplies is read while this one is multiplied.
    float left[2][down][4], right[2][across][2];
    const auto read = [&](unsigned part) {
      const unsigned k = part * step_k;
#pragma unroll
      for (unsigned i = 0; i < down; ++i) read_blocks(left[part % 2][i], &now.a[y + i * rows + lane % 16][k + lane / 16 * 4]);
#pragma unroll
      for (unsigned j = 0; j < across; ++j) {
#pragma unroll
        for (unsigned e = 0; e < 2; ++e) right[part % 2][j][e] = now.b[k + t + e * 4][x + j * columns + g];
      }
    };
    read(0);
#pragma unroll
    for (unsigned part = 0; part < depth / step_k; ++part) {
      if (part + 1 < depth / step_k) read(part + 1);
      unsigned in_a[down][4], in_b[across][2];
#pragma unroll
      for (unsigned i = 0; i < down; ++i) {
#pragma unroll
        for (unsigned e = 0; e < 4; ++e) in_a[i][e] = rounded(left[part % 2][i][e]);
      }
#pragma unroll
      for (unsigned j = 0; j < across; ++j) {
#pragma unroll
        for (unsigned e = 0; e < 2; ++e) in_b[j][e] = rounded(right[part % 2][j][e]);
      }
#pragma unroll
      for (unsigned i = 0; i < down; ++i) {
#pragma unroll
        for (unsigned j = 0; j < across; ++j) multiply_add(sum[i][j], in_a[i], in_b[j]);
      }
    }
    at = at + 1 == stages ? 0 : at + 1;
    ahead = ahead + 1 == stages ? 0 : ahead + 1;
  }
#pragma unroll
  for (unsigned i = 0; i < down; ++i) {
#pragma unroll
    for (unsigned j = 0; j < across; ++j) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned r = row + y + i * rows + g + half * 8, c = column + x + j * columns + 2 * t;
        float* const to = p.c + static_cast<long>(r) * p.n + c;
        if (aligned && r < m && c < n) *reinterpret_cast<float2*>(to) = {sum[i][j][2 * half], sum[i][j][2 * half + 1]};
        for (unsigned e = 0; !aligned && e < 2; ++e)
          if (r < m && c + e < n) to[e] = sum[i][j][2 * half + e];
      }
    }
  }
}

}  // namespace

void tensor_cores(const Product& p, cudaStream_t stream) {
  const auto kernel = p.k % 4 == 0 && p.n % 4 == 0 ? multiply<true> : multiply<false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, stages * sizeof(Stage));
  kernel<<<dim3((p.n + tile - 1) / tile, (p.m + tile - 1) / tile), threads, stages * sizeof(Stage), stream>>>(p);
}

}  // namespace study::gpu
