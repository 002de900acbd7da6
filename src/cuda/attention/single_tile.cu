#include <cmath>

#include "cuda/attention/single_tile_softmax.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/attention.h"
#include "tensor/context.h"

// Single-tile attention: float32 self attention of up to 64 tokens. A block takes one head of one sequence: its queries, keys and values,
// (T, D) with T and D up to 64, fit in shared memory, and each warp has the scores of 16 queries in registers. Of global memory only the
// projection is read and the result written; as separate products and a softmax, the scores alone are written and read eight times in a
// training step. Keys that no query of a warp may see are left out.
//
//     forward                                              shared memory, in floats
//       Q, K -> shared; S = Q K^T, in registers            Q, K, V (T, D + 4)  |  bias (T)  |  P (T, T + 4), read in strict float32
//       P = dropout(softmax(S))
//       V -> shared, meanwhile; y = P V
//     backward
//       Q, K -> shared; P as forward                       Q, dY (T, D + 4)  |  K, then dS, then P  ..
//       V, dY -> shared, meanwhile; dP = dY V^T
//       dS = P (dP - sum(P dP));  dQ = dS K
//       a warp has 16 keys now: dK = dS^T Q, dV = P^T dY
//
// Products are float32 as the context says, MatmulPrecision::tf32x3 as fp32: in TF32 by tensor cores, else by SIMT.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::single_tile;

namespace {

constexpr int max_length = max_tiles * tile_keys;

/// The vectors of four elements of rows of D that a thread copies to shared memory, and their places there.
template <int D>
struct CopyLayout {
  int row = threadIdx.x / (D / 4), step = blockDim.x / (D / 4), column = threadIdx.x % (D / 4) * 4, offset = row * (D + 4) + column;

  __device__ void advance() {
    row += step;
    offset += step * (D + 4);
  }
};

/// Rows of D elements in global memory, and their tile in shared memory.
struct RowSource {
  const float* data;
  std::int64_t stride;
  float* to;
};

/// Begins to copy the rows of several sources, and sets those below them to zero.
template <int D, int count>
__device__ __forceinline__ void load_rows(const RowSource (&sources)[count], const SingleTileParams& params) {
  CopyLayout<D> at;
  const float* from[count];
#pragma unroll
  for (int n = 0; n < count; ++n) from[n] = sources[n].data + at.row * sources[n].stride + at.column;
  const auto take = [&](auto&& copy) {
#pragma unroll 1
    for (; at.row < params.length; at.advance())
#pragma unroll
      for (int n = 0; n < count; ++n) {
        copy(sources[n].to + at.offset, from[n]);
        from[n] += at.step * sources[n].stride;
      }
  };
  if (params.aligned) {
    take([](float* to, const float* vector) { cp_async<16>(shared_address(to), vector); });
  } else {
    take([](float* to, const float* elements) {
      for (int k = 0; k < 4; ++k) to[k] = elements[k];
    });
  }
#pragma unroll 1
  for (; at.row < params.padded; at.advance())
#pragma unroll
    for (int n = 0; n < count; ++n) *reinterpret_cast<float4*>(sources[n].to + at.offset) = {0, 0, 0, 0};
}

/// Rounds what this thread has loaded to what tensor cores take.
template <int D, class Lanes, int count>
__device__ __forceinline__ void round_rows(const RowSource (&sources)[count], const SingleTileParams& params) {
  if constexpr (on_tensor_cores<Lanes>)
#pragma unroll 1
    for (CopyLayout<D> at; at.row < params.length; at.advance())
#pragma unroll
      for (int n = 0; n < count; ++n) {
        float* const to = sources[n].to + at.offset;
        const float4 x = read4(to);
        *reinterpret_cast<float4*>(to) = {add_half_tf32_ulp(x.x), add_half_tf32_ulp(x.y), add_half_tf32_ulp(x.z), add_half_tf32_ulp(x.w)};
      }
}

/// Each key's bias, added to its scores before they are scaled, to shared memory; null where there is none.
__device__ __forceinline__ const float* load_bias(const SingleTileParams& params, int batch, float* to) {
  if (!params.padding) return nullptr;
  for (int key = threadIdx.x; key < params.padded; key += blockDim.x) {
    const float x = key < params.length ? params.padding[std::int64_t(batch) * params.length + key] : 0;
    to[key] = x > hidden_padding ? x / params.scale : -INFINITY;
  }
  return to;
}

template <int tiles>
constexpr int max_threads = (tiles + 1) / 2 * 32;
template <int D, int tiles>
constexpr int min_blocks = D == 32 && tiles == few_tiles ? 8 : 1;

template <class Lanes, int D, int tiles>
__global__ void __launch_bounds__(max_threads<tiles>, min_blocks<D, tiles>)
    single_tile_attention(const float* qkv, float* y, __grid_constant__ const SingleTileParams params) {
  extern __shared__ float4 shared[];
  const int size = params.padded * (D + 4), batch = blockIdx.x / params.heads, head = blockIdx.x % params.heads;
  float *const q = reinterpret_cast<float*>(shared), *const k = q + size, *const v = k + size, *const weights = v + size + params.padded;
  const std::int64_t part = std::int64_t(params.heads) * D, from = std::int64_t(batch) * params.length * 3 * part + head * D;
  const RowSource early[] = {{qkv + from, 3 * part, q}, {qkv + from + part, 3 * part, k}}, late[] = {{qkv + from + 2 * part, 3 * part, v}};
  load_rows<D>(early, params);
  cp_async_commit();
  load_rows<D>(late, params);
  cp_async_commit();
  const float* const bias = load_bias(params, batch, v + size);
  SoftmaxTile<Lanes, tiles> tile(params, batch, threadIdx.x / 32);
  tile.draw(params, blockIdx.x);
  cp_async_wait<1>();
  round_rows<D, Lanes>(early, params);
  __syncthreads();
  matmul_ABt<D>(q, k, tile.first, params.padded, tile.limit, tile.scores);
  tile.softmax(params, bias);
  tile.drop();
  cp_async_wait<0>();
  round_rows<D, Lanes>(late, params);
  if constexpr (!on_tensor_cores<Lanes>) store_scores(tile.scores, tile.first, params.padded, tile.limit, weights, params.score_pitch);
  __syncthreads();
  const auto result = matmul_AB<D>(tile.scores, weights, params.score_pitch, v, tile.first, params.padded, tile.limit);
  write_rows<false>(result, tile.first, params.length, y + std::int64_t(batch) * params.length * part + head * D, part);
}

template <class Lanes, int D, int tiles>
__global__ void __launch_bounds__(max_threads<tiles>, min_blocks<D, tiles>)
    single_tile_attention_grad(const float* qkv, const float* dy, float* dqkv, __grid_constant__ const SingleTileParams params) {
  extern __shared__ float4 shared[];
  // The scores' gradients take the place of the values once those are done with, and the probabilities, after dQ, that of the keys.
  const int size = params.padded * (D + 4), room = params.padded * max(D + 4, params.score_pitch), batch = blockIdx.x / params.heads,
            head = blockIdx.x % params.heads;
  float *const q = reinterpret_cast<float*>(shared), *const g = q + size, *const k = g + size, *const v = k + room;
  float *const weights = k, *const gradients = v;
  const std::int64_t part = std::int64_t(params.heads) * D, from = std::int64_t(batch) * params.length * 3 * part + head * D;
  const RowSource early[] = {{qkv + from, 3 * part, q}, {qkv + from + part, 3 * part, k}};
  const RowSource late[] = {{qkv + from + 2 * part, 3 * part, v}, {dy + std::int64_t(batch) * params.length * part + head * D, part, g}};
  load_rows<D>(early, params);
  cp_async_commit();
  load_rows<D>(late, params);
  cp_async_commit();
  const float* const bias = load_bias(params, batch, v + room);
  SoftmaxTile<Lanes, tiles> tile(params, batch, threadIdx.x / 32);
  const int first = tile.first, limit = tile.limit;
  tile.draw(params, blockIdx.x);
  cp_async_wait<1>();
  round_rows<D, Lanes>(early, params);
  __syncthreads();
  matmul_ABt<D>(q, k, first, params.padded, limit, tile.scores);
  tile.softmax(params, bias);
  cp_async_wait<0>();
  round_rows<D, Lanes>(late, params);
  __syncthreads();
  Scores<Lanes, tiles> ds;
  matmul_ABt<D>(g, v, first, params.padded, limit, ds);
  tile.differentiate(params, ds);
  __syncthreads();
  store_scores(ds, first, params.padded, limit, gradients, params.score_pitch);
  __syncwarp();
  float* const to = dqkv + from;
  write_rows<false>(matmul_AB<D>(ds, gradients, params.score_pitch, k, first, params.padded, limit), first, params.length, to, 3 * part);
  __syncthreads();
  store_scores(tile.scores, first, params.padded, limit, weights, params.score_pitch);
  __syncthreads();
  // Now the warp has 16 keys, which only the queries from `begin` on may see.
  const int begin = first < tile.prefix_len ? 0 : first;
  Rows<D, Lanes> results[2] = {};
  matmul_AtB<D, Lanes, 2>({gradients, weights}, params.score_pitch, {q, g}, first, begin, params.padded, results);
  write_rows<true>(results[0], first, params.length, to + part, 3 * part);
  write_rows<true>(results[1], first, params.length, to + 2 * part, 3 * part);
}

int tiles_for(std::int64_t length) { return length <= few_tiles * tile_keys ? few_tiles : max_tiles; }

SingleTileParams params_of(const View& qkv, const Attention& attention) {
  SingleTileParams params{};
  params.length = static_cast<int>(qkv.shape[1]);
  params.heads = static_cast<int>(qkv.shape[3]);
  params.padded = std::min((params.length + warp_rows - 1) / warp_rows * warp_rows, tiles_for(params.length) * tile_keys);
  params.score_pitch = params.padded + 4;
  params.scale = static_cast<float>(attention.scale);
  params.padding = attention.mask.padding.as<const float>();
  params.prefix = attention.mask.prefix.as<const std::int64_t>();
  params.causal = attention.mask.causal;
  params.dropout = DropoutMask(attention.dropout, attention.draws);
  params.keep = static_cast<float>(1 - attention.dropout);
  params.inverse_keep = static_cast<float>(1 / (1 - attention.dropout));
  params.aligned = is_aligned(qkv.data, 16);
  return params;
}

struct Forward {
  template <class Lanes, int D, int tiles>
  static constexpr auto kernel = single_tile_attention<Lanes, D, tiles>;
  /// Elements of shared memory for each row, but for its bias.
  static int elements(const SingleTileParams& params, int head_dim) { return 3 * (head_dim + 4) + params.score_pitch; }
};
struct Backward {
  template <class Lanes, int D, int tiles>
  static constexpr auto kernel = single_tile_attention_grad<Lanes, D, tiles>;
  static int elements(const SingleTileParams& params, int head_dim) {
    return 2 * (head_dim + 4) + 2 * std::max(head_dim + 4, params.score_pitch);
  }
};

template <class Pass, class Lanes, class... Arguments>
void launch_heads(const View& qkv, const SingleTileParams& params, Arguments... arguments) {
  const std::int64_t blocks = qkv.shape[0] * params.heads;
  if (blocks == 0) return;
  const int head_dim = static_cast<int>(qkv.shape[4]), threads = static_cast<int>(blocks_for(params.padded, warp_rows)) * 32;
  const std::size_t bytes = sizeof(float) * params.padded * (Pass::elements(params, head_dim) + 1);
  const auto run = [&](auto kernel) { launch(kernel, blocks_for(blocks, 1), threads, bytes, qkv.stream, arguments..., params); };
  if (tiles_for(params.length) == few_tiles)
    head_dim == 32 ? run(Pass::template kernel<Lanes, 32, few_tiles>) : run(Pass::template kernel<Lanes, 64, few_tiles>);
  else head_dim == 32 ? run(Pass::template kernel<Lanes, 32, max_tiles>) : run(Pass::template kernel<Lanes, 64, max_tiles>);
}
template <class Pass, class... Arguments>
void launch_in_precision(const View& qkv, const SingleTileParams& params, Arguments... arguments) {
  if (context().matmul_precision == MatmulPrecision::tf32) launch_heads<Pass, MmaLanes>(qkv, params, arguments...);
  else launch_heads<Pass, SimtLanes>(qkv, params, arguments...);
}

}  // namespace

bool has_self_attention(Cuda, DType dtype, std::int64_t length, std::int64_t head_dim) {
  return dtype == DType::f32 && length > 0 && length <= max_length && (head_dim == 32 || head_dim == 64);
}

void self_attention(Cuda, const View& qkv, const Attention& attention, const View& y) {
  launch_in_precision<Forward>(qkv, params_of(qkv, attention), qkv.as<const float>(), y.as<float>());
}

void self_attention_grad(Cuda, const View& qkv, const View& g, const Attention& attention, const View& dqkv) {
  SingleTileParams params = params_of(qkv, attention);
  params.aligned = params.aligned && is_aligned(g.data, 16);
  launch_in_precision<Backward>(qkv, params, qkv.as<const float>(), g.as<const float>(), dqkv.as<float>());
}

}  // namespace tern::kernels
