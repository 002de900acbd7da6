#include "cuda/attention/attention.h"
#include "cuda/attention/single_tile_softmax.cuh"
#include "cuda/runtime/launch.h"
#include "tensor/ceil_div.h"
#include "tensor/context.h"

// Single-tile attention: float32 self attention of up to 64 tokens. A block takes one head of one sequence: its queries, keys and values,
// (T, D) with T and D up to 64, fit in shared memory, and each warp has the scores of 16 queries in registers. Only the projection is read
// from global memory, and only the result is written; with separate products and a softmax, the scores alone are written and read eight
// times in a training step. Keys that no query of a warp may see are skipped.
//
//     forward                                                    shared memory (T: padded to whole tiles)
//       cp.async Q, K; V                                           Q, K, V (T, D + 4)
//       S = Q K^T  ->  P = dropout(softmax(S)), in registers       bias (T), of padded keys
//       wait for V; y = P V                                        P (T, T + 4), for strict float32
//     backward
//       cp.async Q, K; V, dY                                       Q, dY (T, D + 4)
//       P as in forward; dP = dY V^T                               K (T, D + 4), in the end P (T, T + 4)
//       dS = P (dP - sum(P dP)); dQ = dS K                         V (T, D + 4), in the end dS (T, T + 4)
//       a warp has 16 keys now: dK = dS^T Q, dV = P^T dY           bias (T)
//
// Products are as accurate as the context's matmul precision, where tf32x3 counts as fp32: in TF32 on tensor cores, else by SIMT.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::single_tile;

namespace {

/// The vectors of four elements of rows of D that a thread copies to shared memory, and their positions there.
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

/// Starts to copy the rows of several sources, and sets the rows after them to zero.
template <int D, int count>
__device__ __forceinline__ void load_rows(const RowSource (&sources)[count], const SingleTileArgs& args) {
  CopyLayout<D> at;
  const float* from[count];
#pragma unroll
  for (int n = 0; n < count; ++n) from[n] = sources[n].data + at.row * sources[n].stride + at.column;
  const auto take = [&](auto&& copy) {
#pragma unroll 1
    for (; at.row < args.length; at.advance())
#pragma unroll
      for (int n = 0; n < count; ++n) {
        copy(sources[n].to + at.offset, from[n]);
        from[n] += at.step * sources[n].stride;
      }
  };
  if (args.aligned) {
    take([](float* to, const float* vector) { cp_async<16>(shared_address(to), vector); });
  } else {
    take([](float* to, const float* elements) {
      for (int k = 0; k < 4; ++k) to[k] = elements[k];
    });
  }
#pragma unroll 1
  for (; at.row < args.padded; at.advance())
#pragma unroll
    for (int n = 0; n < count; ++n) *reinterpret_cast<float4*>(sources[n].to + at.offset) = {0, 0, 0, 0};
}

/// Rounds the elements that this thread has loaded to TF32.
template <int D, class Lanes, int count>
__device__ __forceinline__ void round_rows(const RowSource (&sources)[count], const SingleTileArgs& args) {
  if constexpr (on_tensor_cores<Lanes>)
#pragma unroll 1
    for (CopyLayout<D> at; at.row < args.length; at.advance())
#pragma unroll
      for (int n = 0; n < count; ++n) {
        float* const to = sources[n].to + at.offset;
        const float4 x = read4(to);
        *reinterpret_cast<float4*>(to) = {add_half_tf32_ulp(x.x), add_half_tf32_ulp(x.y), add_half_tf32_ulp(x.z), add_half_tf32_ulp(x.w)};
      }
}

/// Loads each key's bias, which is added to its scores before scaling, to shared memory; null if there is none.
__device__ __forceinline__ const float* load_bias(const SingleTileArgs& args, int batch, float* to) {
  if (!args.padding) return nullptr;
  for (int key = threadIdx.x; key < args.padded; key += blockDim.x) {
    const float x = key < args.length ? args.padding[std::int64_t(batch) * args.length + key] : 0;
    to[key] = x > hidden_padding ? x / args.scale : -INFINITY;
  }
  return to;
}

template <int tiles>
constexpr int max_threads = ceil_div(tiles, 2) * 32;
template <int D, int tiles>
constexpr int min_blocks = D == 32 && tiles == few_tiles ? 8 : 1;

template <class Lanes, int D, int tiles>
__global__ void __launch_bounds__(max_threads<tiles>, min_blocks<D, tiles>)
    single_tile_attention(const float* qkv, float* y, __grid_constant__ const SingleTileArgs args) {
  extern __shared__ float4 shared[];
  const int size = args.padded * (D + 4), batch = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
  float *const q = reinterpret_cast<float*>(shared), *const k = q + size, *const v = k + size, *const weights = v + size + args.padded;
  const std::int64_t part = std::int64_t(args.heads) * D, from = std::int64_t(batch) * args.length * 3 * part + head * D;
  const RowSource early[] = {{qkv + from, 3 * part, q}, {qkv + from + part, 3 * part, k}}, late[] = {{qkv + from + 2 * part, 3 * part, v}};
  load_rows<D>(early, args);
  cp_async_commit();
  load_rows<D>(late, args);
  cp_async_commit();
  const float* const bias = load_bias(args, batch, v + size);
  SoftmaxTile<Lanes, tiles> tile(args, batch, threadIdx.x / 32);
  tile.draw(args, blockIdx.x);
  cp_async_wait<1>();
  round_rows<D, Lanes>(early, args);
  __syncthreads();
  matmul_ABt<D>(q, k, tile.first, args.padded, tile.limit, tile.scores);
  tile.softmax(args, bias);
  tile.drop();
  cp_async_wait<0>();
  round_rows<D, Lanes>(late, args);
  if constexpr (!on_tensor_cores<Lanes>) store_scores(tile.scores, tile.first, args.padded, tile.limit, weights, args.score_pitch);
  __syncthreads();
  const auto result = matmul_AB<D>(tile.scores, weights, args.score_pitch, v, tile.first, args.padded, tile.limit);
  write_rows<false>(result, tile.first, args.length, y + std::int64_t(batch) * args.length * part + head * D, part);
}

template <class Lanes, int D, int tiles>
__global__ void __launch_bounds__(max_threads<tiles>, min_blocks<D, tiles>)
    single_tile_attention_grad(const float* qkv, const float* dy, float* dqkv, __grid_constant__ const SingleTileArgs args) {
  extern __shared__ float4 shared[];
  // The scores' gradients reuse the memory of the values, and the probabilities, after dQ, that of the keys.
  const int size = args.padded * (D + 4), room = args.padded * max(D + 4, args.score_pitch), batch = blockIdx.x / args.heads,
            head = blockIdx.x % args.heads;
  float *const q = reinterpret_cast<float*>(shared), *const g = q + size, *const k = g + size, *const v = k + room;
  float *const weights = k, *const gradients = v;
  const std::int64_t part = std::int64_t(args.heads) * D, from = std::int64_t(batch) * args.length * 3 * part + head * D;
  const RowSource early[] = {{qkv + from, 3 * part, q}, {qkv + from + part, 3 * part, k}};
  const RowSource late[] = {{qkv + from + 2 * part, 3 * part, v}, {dy + std::int64_t(batch) * args.length * part + head * D, part, g}};
  load_rows<D>(early, args);
  cp_async_commit();
  load_rows<D>(late, args);
  cp_async_commit();
  const float* const bias = load_bias(args, batch, v + room);
  SoftmaxTile<Lanes, tiles> tile(args, batch, threadIdx.x / 32);
  const int first = tile.first, limit = tile.limit;
  tile.draw(args, blockIdx.x);
  cp_async_wait<1>();
  round_rows<D, Lanes>(early, args);
  __syncthreads();
  matmul_ABt<D>(q, k, first, args.padded, limit, tile.scores);
  tile.softmax(args, bias);
  cp_async_wait<0>();
  round_rows<D, Lanes>(late, args);
  __syncthreads();
  Scores<Lanes, tiles> ds;
  matmul_ABt<D>(g, v, first, args.padded, limit, ds);
  tile.differentiate(args, ds);
  __syncthreads();
  store_scores(ds, first, args.padded, limit, gradients, args.score_pitch);
  __syncwarp();
  float* const to = dqkv + from;
  write_rows<false>(matmul_AB<D>(ds, gradients, args.score_pitch, k, first, args.padded, limit), first, args.length, to, 3 * part);
  __syncthreads();
  store_scores(tile.scores, first, args.padded, limit, weights, args.score_pitch);
  __syncthreads();
  // From here on the warp has 16 keys, which only the queries from `begin` on may see.
  const int begin = first < tile.prefix_len ? 0 : first;
  Rows<D, Lanes> results[2] = {};
  matmul_AtB<D, Lanes, 2>({gradients, weights}, args.score_pitch, {q, g}, first, begin, args.padded, results);
  write_rows<true>(results[0], first, args.length, to + part, 3 * part);
  write_rows<true>(results[1], first, args.length, to + 2 * part, 3 * part);
}

int tiles_for(std::int64_t length) { return length <= few_tiles * tile_keys ? few_tiles : max_tiles; }

SingleTileArgs args_of(const View& qkv, const Attention& attention) {
  SingleTileArgs args(qkv, attention);
  args.padded = std::min(round_up(args.length, warp_rows), tiles_for(args.length) * tile_keys);
  args.score_pitch = args.padded + 4;
  return args;
}

struct Forward {
  template <class Lanes, int D, int tiles>
  static constexpr auto kernel = single_tile_attention<Lanes, D, tiles>;
  /// Elements of shared memory for each row, without its bias.
  static int elements(const SingleTileArgs& args, int head_dim) { return 3 * (head_dim + 4) + args.score_pitch; }
};
struct Backward {
  template <class Lanes, int D, int tiles>
  static constexpr auto kernel = single_tile_attention_grad<Lanes, D, tiles>;
  static int elements(const SingleTileArgs& args, int head_dim) {
    return 2 * (head_dim + 4) + 2 * std::max(head_dim + 4, args.score_pitch);
  }
};

template <class Pass, class Lanes, class... Arguments>
void launch_heads(const View& qkv, const SingleTileArgs& args, Arguments... arguments) {
  const std::int64_t blocks = qkv.shape[0] * args.heads;
  if (blocks == 0) return;
  const int head_dim = static_cast<int>(qkv.shape[4]), threads = static_cast<int>(blocks_for(args.padded, warp_rows)) * 32;
  const std::size_t bytes = sizeof(float) * args.padded * (Pass::elements(args, head_dim) + 1);
  const auto run = [&](auto kernel) { launch(kernel, blocks_for(blocks, 1), threads, bytes, qkv.stream, arguments..., args); };
  if (tiles_for(args.length) == few_tiles)
    head_dim == 32 ? run(Pass::template kernel<Lanes, 32, few_tiles>) : run(Pass::template kernel<Lanes, 64, few_tiles>);
  else head_dim == 32 ? run(Pass::template kernel<Lanes, 32, max_tiles>) : run(Pass::template kernel<Lanes, 64, max_tiles>);
}
template <class Pass, class... Arguments>
void launch_in_precision(const View& qkv, const SingleTileArgs& args, Arguments... arguments) {
  if (context().matmul_precision == MatmulPrecision::tf32) launch_heads<Pass, MmaLanes>(qkv, args, arguments...);
  else launch_heads<Pass, SimtLanes>(qkv, args, arguments...);
}

}  // namespace

void self_attention(Cuda, const View& qkv, const Attention& attention, const View& y) {
  launch_in_precision<Forward>(qkv, args_of(qkv, attention), qkv.as<const float>(), y.as<float>());
}

void self_attention_grad(Cuda, const View& qkv, const View& g, const Attention& attention, const View& dqkv) {
  SingleTileArgs args = args_of(qkv, attention);
  args.aligned = args.aligned && is_aligned(g.data, 16);
  launch_in_precision<Backward>(qkv, args, qkv.as<const float>(), g.as<const float>(), dqkv.as<float>());
}

}  // namespace tern::kernels

namespace tern::gpu {

bool has_single_tile_attention(const View& q) {
  return q.dtype == DType::f32 && q.shape[1] <= single_tile::max_tiles * single_tile::tile_keys && (q.shape[3] == 32 || q.shape[3] == 64);
}

}  // namespace tern::gpu
