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
  float keep;
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

/// The words of four elements from `first` on, which may begin within a block.
__device__ void draw(const PhiloxState& draws, std::int64_t first, std::uint32_t (&words)[4]) {
  const std::uint64_t block = draws.offset + (draws.base ? *draws.base : 0) + static_cast<std::uint64_t>(first >> 2);
  const PhiloxBlock these = philox(draws.seed, block);
  const int skip = static_cast<int>(first & 3);
#pragma unroll
  for (int k = 0; k < 4; ++k) words[k] = these.words[k];
  if (skip == 0) return;
  const PhiloxBlock next = philox(draws.seed, block + 1);
  for (int i = 0; i < skip; ++i) {
    words[0] = words[1];
    words[1] = words[2];
    words[2] = words[3];
    words[3] = i == 0 ? next.words[0] : i == 1 ? next.words[1] : next.words[2];
  }
}

template <class F>
__device__ __forceinline__ float combine_row(float value, F&& combine) {
#pragma unroll
  for (unsigned step = row_lanes / 2; step > 0; step /= 2) value = combine(value, shuffle_xor(value, step));
  return value;
}

/// Four columns of a row of scores, in the registers of one of the row's threads.
struct Quarter {
  int row, column;
  float probabilities[4];
  bool kept[4];

  /// The softmax of the row, of which this thread reads four scores. To be called by all threads of a warp.
  __device__ Quarter(const Heads& all, const Head& at, const float* scores, int row_, int column_) : row(row_), column(column_) {
    float values[4];
    float most = -INFINITY;
    const bool is_inside = row < all.length && column < all.padded;
    const std::int64_t opened = all.prefix ? all.prefix[at.batch] : 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int key = column + k;
      bool is_visible = is_inside && key < all.length && (!all.causal || key <= row || key < opened);
      const float padding = is_visible && all.padding ? all.padding[std::int64_t(at.batch) * all.length + key] : 0;
      is_visible = is_visible && padding > hidden_padding;
      values[k] = is_visible ? scores[row * all.score_pitch + key] + padding : -INFINITY;
      most = fmaxf(most, values[k]);
    }
    most = combine_row(most, [](float a, float b) { return fmaxf(a, b); });
    float total = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      probabilities[k] = values[k] == -INFINITY ? 0 : expf(values[k] - most);
      total += probabilities[k];
    }
    total = combine_row(total, [](float a, float b) { return a + b; });
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (total > 0) probabilities[k] /= total;
      kept[k] = true;
    }
    if (all.drop_bound == 0 || !is_inside) return;
    std::uint32_t words[4];
    draw(all.draws, (std::int64_t(blockIdx.x) * all.length + row) * all.length + column, words);
#pragma unroll
    for (int k = 0; k < 4; ++k) kept[k] = words[k] >> 8 >= all.drop_bound;
  }

  __device__ float dropped(const Heads& all, float x, int k) const { return kept[k] ? x / all.keep : 0; }
};

/// Calls f(row, column) for each thread's share of the scores; whole warps together.
template <class F>
__device__ void for_each_quarter(const Heads& all, F&& f) {
  const int rows_at_once = blockDim.x / row_lanes;
  for (int first = 0; first < all.padded; first += rows_at_once) f(first + static_cast<int>(threadIdx.x) / row_lanes, threadIdx.x % row_lanes * 4);
}

template <class T, int D, int threads>
__global__ void __launch_bounds__(threads) attend(const T* qkv, T* y, __grid_constant__ const Heads all) {
  extern __shared__ float4 shared[];
  const int size = all.padded * (D + 4);
  float *const q = reinterpret_cast<float*>(shared), *const k = q + size, *const v = k + size, *const scores = v + size;
  const Head at(all);
  const std::int64_t part = std::int64_t(all.heads) * D, from = std::int64_t(at.batch) * all.length * 3 * part + at.head * D;
  load_rows<D>(qkv + from, 3 * part, all, all.scale, q);
  load_rows<D>(qkv + from + part, 3 * part, all, 1, k);
  load_rows<D>(qkv + from + 2 * part, 3 * part, all, 1, v);
  __syncthreads();
  const int side = all.padded / 4;
  for (int unit = threadIdx.x; unit < side * side; unit += threads) multiply_rows<D>(q, k, all, unit, scores);
  __syncthreads();
  for_each_quarter(all, [&](int row, int column) {
    const Quarter p(all, at, scores, row, column);
    if (row < all.padded && column < all.padded)
      store4(scores + row * all.score_pitch + column, {p.dropped(all, p.probabilities[0], 0), p.dropped(all, p.probabilities[1], 1),
                                                       p.dropped(all, p.probabilities[2], 2), p.dropped(all, p.probabilities[3], 3)});
  });
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
  for_each_quarter(all, [&](int row, int column) {
    const Quarter p(all, at, weights, row, column);
    const bool is_inside = row < all.padded && column < all.padded;
    float gradients[4], weighted = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      gradients[i] = is_inside ? p.dropped(all, scores[row * all.score_pitch + column + i], i) : 0;
      weighted += gradients[i] * p.probabilities[i];
    }
    weighted = combine_row(weighted, [](float a, float b) { return a + b; });
    if (!is_inside) return;
    float kept[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      kept[i] = p.dropped(all, p.probabilities[i], i);
      gradients[i] = p.probabilities[i] * (gradients[i] - weighted);
    }
    store4(weights + row * all.score_pitch + column, {kept[0], kept[1], kept[2], kept[3]});
    store4(scores + row * all.score_pitch + column, {gradients[0], gradients[1], gradients[2], gradients[3]});
  });
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
  all.keep = static_cast<float>(1 - attention.dropout);
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

template <class F>
void dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::f16: return f.template operator()<f16>();
    default: return f.template operator()<bf16>();
  }
}

}  // namespace

bool has_self_attention(Cuda, DType dtype, std::int64_t length, std::int64_t head_dim) {
  return dtype != DType::f64 && length > 0 && length <= longest && (head_dim == 32 || head_dim == 64);
}

void self_attention(Cuda, const View& qkv, const Attention& attention, const View& y) {
  Heads all = heads_of(qkv, attention);
  all.aligned = is_aligned(qkv.data, 4 * size_of(qkv.dtype));
  dispatch(y.dtype, [&]<class T>() { launch_heads<Forward<T>>(qkv, all, 3, 1, qkv.as<const T>(), y.as<T>()); });
}

void self_attention_grad(Cuda, const View& qkv, const View& g, const Attention& attention, const View& dqkv) {
  Heads all = heads_of(qkv, attention);
  all.aligned = is_aligned(qkv.data, 4 * size_of(qkv.dtype)) && is_aligned(g.data, 4 * size_of(g.dtype));
  dispatch(qkv.dtype, [&]<class T>() { launch_heads<Backward<T>>(qkv, all, 4, 2, qkv.as<const T>(), g.as<const T>(), dqkv.as<T>()); });
}

}  // namespace tern::kernels
