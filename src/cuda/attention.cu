#include <cmath>

#include "cuda/convert.cuh"
#include "cuda/launch.h"
#include "cuda/warp.cuh"
#include "ops/kernels/attention.h"

// Self attention of short heads. A block takes one head of one sequence: its queries, keys, values, scores and probabilities, all
// (T, D) or (T, T) with T and D up to 64, fit in shared memory, so that of global memory only the projection is read and the result
// written. As separate products and a softmax, the scores alone are written and read eight times in a training step.
//
// Each product is cut into units of 4 x 4 elements, which a thread sums in registers from vectors of four: eight reads of 16 bytes for
// 64 multiplications. Where a product's rows are read along their length, a unit's four rows lie a quarter of T apart, so that
// neighbouring threads read neighbouring rows; a row's stride of 4 mod 32 words then keeps them in different banks. T is filled up with
// zeros to a multiple of 4.
namespace tern::kernels {

using namespace gpu;

namespace {

constexpr int longest = 64;
constexpr int row_lanes = 16;  ///< threads of a row of scores, four columns each

/// What is the same for all blocks.
struct Heads {
  int length, heads, padded;  ///< padded: length up to a multiple of 4
  int score_pitch;            ///< between rows of scores in shared memory
  float scale;
  const float* padding;
  const std::int64_t* prefix;
  bool causal;
  std::uint32_t drop_bound;  ///< an element falls away where its word >> 8 is below
  float inverse_keep;
  PhiloxState draws;
  bool aligned;  ///< what is read begins at a multiple of four elements
};

/// Which head a block has.
struct Head {
  int batch, head;
  __device__ explicit Head(const Heads& all) : batch(blockIdx.x / all.heads), head(blockIdx.x % all.heads) {}
};

__device__ __forceinline__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ void store4(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

/// Brings rows of D elements, `stride` apart, to shared memory, times `factor`; zeros below them.
template <int D, class T>
__device__ void load_rows(const T* from, std::int64_t stride, const Heads& all, float factor, float* to) {
  for (int i = threadIdx.x; i < all.padded * (D / 4); i += blockDim.x) {
    const int row = i / (D / 4), column = i % (D / 4) * 4;
    float4 x = {0, 0, 0, 0};
    if (row < all.length) {
      const T* const place = from + row * stride + column;
      Vector<T, 4> in;
      if (all.aligned) {
        in = read_vector<4>(place);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) in.values[k] = place[k];
      }
      x = {convert<float>(in.values[0]) * factor, convert<float>(in.values[1]) * factor, convert<float>(in.values[2]) * factor,
           convert<float>(in.values[3]) * factor};
    }
    store4(to + row * (D + 4) + column, x);
  }
}

__device__ __forceinline__ void add_product(float& sum, float4 a, float4 b) { sum += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__device__ __forceinline__ void add_scaled(float4& sum, float factor, float4 x) {
  sum.x += factor * x.x;
  sum.y += factor * x.y;
  sum.z += factor * x.z;
  sum.w += factor * x.w;
}

/// A unit of c = a b^T, (T, T) from rows of D.
template <int D>
__device__ void multiply_rows(const float* a, const float* b, const Heads& all, int unit, float* c) {
  const int side = all.padded / 4, row = unit / side, column = unit % side;
  float sums[4][4] = {};
#pragma unroll 4
  for (int d = 0; d < D; d += 4) {
    float4 x[4], y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = load4(a + (row + i * side) * (D + 4) + d);
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = load4(b + (column + i * side) * (D + 4) + d);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) add_product(sums[i][j], x[i], y[j]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) c[(row + i * side) * all.score_pitch + column + j * side] = sums[i][j];
}

/// Four elements of a row of y, where the row exists.
template <class T>
__device__ __forceinline__ void write4(T* to, float4 x, float factor) {
  Vector<T, 4> out;
  out.values[0] = convert<T>(x.x * factor);
  out.values[1] = convert<T>(x.y * factor);
  out.values[2] = convert<T>(x.z * factor);
  out.values[3] = convert<T>(x.w * factor);
  *reinterpret_cast<Vector<T, 4>*>(to) = out;
}

/// A unit of y = factor * p x, (T, D) from scores (T, T).
template <int D, class T>
__device__ void multiply_scores(const float* p, const float* x, const Heads& all, int unit, float factor, T* y, std::int64_t stride) {
  const int side = all.padded / 4, row = unit / (D / 4), column = unit % (D / 4) * 4;
  float4 sums[4] = {};
  for (int s = 0; s < all.padded; s += 4) {
    float4 weights[4], values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = load4(p + (row + i * side) * all.score_pitch + s);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = load4(x + (s + i) * (D + 4) + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      add_scaled(sums[i], weights[i].x, values[0]);
      add_scaled(sums[i], weights[i].y, values[1]);
      add_scaled(sums[i], weights[i].z, values[2]);
      add_scaled(sums[i], weights[i].w, values[3]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + i * side < all.length) write4(y + (row + i * side) * stride + column, sums[i], factor);
}

/// A unit of y = p^T x.
template <int D, class T>
__device__ void multiply_transposed(const float* p, const float* x, const Heads& all, int unit, T* y, std::int64_t stride) {
  const int row = unit / (D / 4) * 4, column = unit % (D / 4) * 4;
  float4 sums[4] = {};
#pragma unroll 4
  for (int t = 0; t < all.length; ++t) {
    const float4 weights = load4(p + t * all.score_pitch + row), values = load4(x + t * (D + 4) + column);
    add_scaled(sums[0], weights.x, values);
    add_scaled(sums[1], weights.y, values);
    add_scaled(sums[2], weights.z, values);
    add_scaled(sums[3], weights.w, values);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row + i < all.length) write4(y + (row + i) * stride + column, sums[i], 1);
}

/// Which of four elements from `first` on are kept, as bits. They may begin within a block of draws.
__device__ unsigned draw_kept(const PhiloxState& draws, std::uint64_t base, std::int64_t first, std::uint32_t bound) {
  const std::uint64_t block = draws.offset + base + static_cast<std::uint64_t>(first >> 2);
  const int skip = static_cast<int>(first & 3);
  const auto kept_of = [&](std::uint64_t at) {
    const PhiloxBlock these = philox(draws.seed, at);
    unsigned kept = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) kept |= unsigned(these.words[k] >> 8 >= bound) << k;
    return kept;
  };
  unsigned kept = kept_of(block);
  if (skip != 0) kept = (kept | kept_of(block + 1) << 4) >> skip & 15;
  return kept;
}

template <int count, class F>
__device__ __forceinline__ void combine_rows(float (&values)[count], F&& combine) {
#pragma unroll
  for (unsigned step = row_lanes / 2; step > 0; step /= 2)
#pragma unroll
    for (int r = 0; r < count; ++r) values[r] = combine(values[r], shuffle_xor(values[r], step));
}

/// A thread's share of the scores: four columns of every row of its own. The rows go through each stage together, so that one need not
/// wait for another.
template <int threads>
struct Share {
  static constexpr int rows_at_once = threads / row_lanes, count = threads == 128 ? 6 : longest / rows_at_once;
  int first, column;
  unsigned kept = ~0u;  ///< four bits for each row
  float values[count][4];

  /// Draws what is kept; needs no scores.
  __device__ explicit Share(const Heads& all) : first(threadIdx.x / row_lanes), column(threadIdx.x % row_lanes * 4) {
    if (all.drop_bound == 0) return;
    kept = 0;
    const std::uint64_t base = all.draws.base ? *all.draws.base : 0;
#pragma unroll
    for (int r = 0; r < count; ++r)
      if (is_inside(all, r))
        kept |= draw_kept(all.draws, base, (std::int64_t(blockIdx.x) * all.length + row(r)) * all.length + column, all.drop_bound) << 4 * r;
  }

  __device__ int row(int r) const { return first + r * rows_at_once; }
  __device__ bool is_inside(const Heads& all, int r) const { return row(r) < all.padded && column < all.padded; }
  __device__ float dropped(const Heads& all, float x, int r, int k) const { return kept >> (4 * r + k) & 1 ? x * all.inverse_keep : 0; }

  /// The softmax of the rows.
  __device__ void take_softmax(const Heads& all, const Head& at, const float* scores) {
    float most[count], totals[count];
    const std::int64_t opened = all.prefix ? all.prefix[at.batch] : 0;
    float padding[4] = {};
    if (all.padding)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (column + k < all.length) padding[k] = all.padding[std::int64_t(at.batch) * all.length + column + k];
#pragma unroll
    for (int r = 0; r < count; ++r) {
      float4 in = {0, 0, 0, 0};
      if (is_inside(all, r)) in = load4(scores + row(r) * all.score_pitch + column);
      const float read[4] = {in.x, in.y, in.z, in.w};
      most[r] = -INFINITY;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int key = column + k;
        const bool is_visible = row(r) < all.length && key < all.length && (!all.causal || key <= row(r) || key < opened) && padding[k] > hidden_padding;
        values[r][k] = is_visible ? read[k] + padding[k] : -INFINITY;
        most[r] = fmaxf(most[r], values[r][k]);
      }
    }
    combine_rows(most, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int r = 0; r < count; ++r) {
      totals[r] = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        values[r][k] = values[r][k] == -INFINITY ? 0 : __expf(values[r][k] - most[r]);
        totals[r] += values[r][k];
      }
    }
    combine_rows(totals, [](float a, float b) { return a + b; });
#pragma unroll
    for (int r = 0; r < count; ++r) {
      const float factor = totals[r] > 0 ? 1 / totals[r] : 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) values[r][k] *= factor;
    }
  }

  /// The probabilities that are kept, to shared memory.
  __device__ void write_kept(const Heads& all, float* to) const {
#pragma unroll
    for (int r = 0; r < count; ++r)
      if (is_inside(all, r))
        store4(to + row(r) * all.score_pitch + column, {dropped(all, values[r][0], r, 0), dropped(all, values[r][1], r, 1),
                                                        dropped(all, values[r][2], r, 2), dropped(all, values[r][3], r, 3)});
  }

  /// The gradients of the scores in the place of those of the kept probabilities.
  __device__ void differentiate(const Heads& all, float* gradients) const {
    float own[count][4], weighted[count];
#pragma unroll
    for (int r = 0; r < count; ++r) {
      float4 in = {0, 0, 0, 0};
      if (is_inside(all, r)) in = load4(gradients + row(r) * all.score_pitch + column);
      const float read[4] = {in.x, in.y, in.z, in.w};
      weighted[r] = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        own[r][k] = dropped(all, read[k], r, k);
        weighted[r] += own[r][k] * values[r][k];
      }
    }
    combine_rows(weighted, [](float a, float b) { return a + b; });
#pragma unroll
    for (int r = 0; r < count; ++r)
      if (is_inside(all, r))
        store4(gradients + row(r) * all.score_pitch + column,
               {values[r][0] * (own[r][0] - weighted[r]), values[r][1] * (own[r][1] - weighted[r]), values[r][2] * (own[r][2] - weighted[r]),
                values[r][3] * (own[r][3] - weighted[r])});
  }
};

template <class T, int D, int threads>
__global__ void __launch_bounds__(threads) attend(const T* qkv, T* y, __grid_constant__ const Heads all) {
  extern __shared__ float4 shared[];
  const int size = all.padded * (D + 4);
  float *const q = reinterpret_cast<float*>(shared), *const k = q + size, *const v = k + size, *const scores = v + size;
  const Head at(all);
  const std::int64_t part = std::int64_t(all.heads) * D, from = std::int64_t(at.batch) * all.length * 3 * part + at.head * D;
  Share<threads> share(all);
  load_rows<D>(qkv + from, 3 * part, all, all.scale, q);
  load_rows<D>(qkv + from + part, 3 * part, all, 1, k);
  load_rows<D>(qkv + from + 2 * part, 3 * part, all, 1, v);
  __syncthreads();
  const int side = all.padded / 4;
  for (int unit = threadIdx.x; unit < side * side; unit += threads) multiply_rows<D>(q, k, all, unit, scores);
  __syncthreads();
  share.take_softmax(all, at, scores);
  share.write_kept(all, scores);
  __syncthreads();
  T* const to = y + std::int64_t(at.batch) * all.length * part + at.head * D;
  for (int unit = threadIdx.x; unit < side * (D / 4); unit += threads) multiply_scores<D>(scores, v, all, unit, 1, to, part);
}

template <class T, int D, int threads>
__global__ void __launch_bounds__(threads) attend_grad(const T* qkv, const T* dy, T* dqkv, __grid_constant__ const Heads all) {
  extern __shared__ float4 shared[];
  const int size = all.padded * (D + 4);
  float *const q = reinterpret_cast<float*>(shared), *const k = q + size, *const v = k + size, *const g = v + size;
  float *const weights = g + size, *const scores = weights + all.padded * all.score_pitch;
  const Head at(all);
  const std::int64_t part = std::int64_t(all.heads) * D, from = std::int64_t(at.batch) * all.length * 3 * part + at.head * D;
  Share<threads> share(all);
  load_rows<D>(qkv + from, 3 * part, all, all.scale, q);
  load_rows<D>(qkv + from + part, 3 * part, all, 1, k);
  load_rows<D>(qkv + from + 2 * part, 3 * part, all, 1, v);
  load_rows<D>(dy + std::int64_t(at.batch) * all.length * part + at.head * D, part, all, 1, g);
  __syncthreads();
  // The scores, and the gradients of the dropped probabilities, g v^T.
  const int side = all.padded / 4, square = side * side, strip = side * (D / 4);
  for (int unit = threadIdx.x; unit < 2 * square; unit += threads) {
    if (unit < square) multiply_rows<D>(q, k, all, unit, weights);
    else multiply_rows<D>(g, v, all, unit - square, scores);
  }
  __syncthreads();
  // The dropped probabilities, and the gradients of the scores.
  share.take_softmax(all, at, weights);
  share.write_kept(all, weights);
  share.differentiate(all, scores);
  __syncthreads();
  T* const to = dqkv + from;
  for (int unit = threadIdx.x; unit < 3 * strip; unit += threads) {
    if (unit < strip) multiply_scores<D>(scores, k, all, unit, all.scale, to, 3 * part);
    else if (unit < 2 * strip) multiply_transposed<D>(scores, q, all, unit - strip, to + part, 3 * part);
    else multiply_transposed<D>(weights, g, all, unit - 2 * strip, to + 2 * part, 3 * part);
  }
}

Heads heads_of(const View& qkv, const Attention& attention) {
  Heads all{};
  all.length = static_cast<int>(qkv.shape[1]);
  all.heads = static_cast<int>(qkv.shape[3]);
  all.padded = (all.length + 3) / 4 * 4;
  all.score_pitch = all.padded + 4;
  all.scale = static_cast<float>(attention.scale);
  all.padding = attention.mask.padding.as<const float>();
  all.prefix = attention.mask.prefix.as<const std::int64_t>();
  all.causal = attention.mask.causal;
  all.drop_bound = static_cast<std::uint32_t>(std::ceil(attention.dropout * 0x1p24));
  all.inverse_keep = static_cast<float>(1 / (1 - attention.dropout));
  all.draws = attention.draws;
  return all;
}

template <class T>
struct Forward {
  template <int D, int threads>
  static constexpr auto kernel = attend<T, D, threads>;
};
template <class T>
struct Backward {
  template <int D, int threads>
  static constexpr auto kernel = attend_grad<T, D, threads>;
};

/// Launches a kernel with `matrices` of (T, D) and `squares` of (T, T) in shared memory.
template <class Kernels, class... Arguments>
void launch_heads(const View& qkv, const Heads& all, int matrices, int squares, Arguments... arguments) {
  const std::int64_t blocks = qkv.shape[0] * all.heads;
  if (blocks == 0) return;
  const int head_dim = static_cast<int>(qkv.shape[4]);
  const std::size_t bytes = sizeof(float) * all.padded * (matrices * (head_dim + 4) + squares * all.score_pitch);
  const auto with = [&](auto kernel, int threads) {
    if (bytes > std::size_t(48) << 10)
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "cudaFuncSetAttribute");
    launch(kernel, blocks_for(blocks, 1), threads, bytes, qkv.stream, arguments..., all);
  };
  const bool is_short = all.padded <= 44;  // up to 121 units of scores
  if (head_dim == 32) is_short ? with(Kernels::template kernel<32, 128>, 128) : with(Kernels::template kernel<32, 256>, 256);
  else is_short ? with(Kernels::template kernel<64, 128>, 128) : with(Kernels::template kernel<64, 256>, 256);
}

}  // namespace

bool has_self_attention(Cuda, DType dtype, std::int64_t length, std::int64_t head_dim) {
  return dtype == DType::f32 && length > 0 && length <= longest && (head_dim == 32 || head_dim == 64);
}

void self_attention(Cuda, const View& qkv, const Attention& attention, const View& y) {
  Heads all = heads_of(qkv, attention);
  all.aligned = is_aligned(qkv.data, 4 * size_of(qkv.dtype));
  launch_heads<Forward<float>>(qkv, all, 3, 1, qkv.as<const float>(), y.as<float>());
}

void self_attention_grad(Cuda, const View& qkv, const View& g, const Attention& attention, const View& dqkv) {
  Heads all = heads_of(qkv, attention);
  all.aligned = is_aligned(qkv.data, 4 * size_of(qkv.dtype)) && is_aligned(g.data, 4 * size_of(g.dtype));
  launch_heads<Backward<float>>(qkv, all, 4, 2, qkv.as<const float>(), g.as<const float>(), dqkv.as<float>());
}

}  // namespace tern::kernels
