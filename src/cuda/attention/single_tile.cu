#include <cuda_pipeline.h>

#include <cmath>

#include "cuda/attention/single_tile.cuh"
#include "cuda/attention/single_tile_scores.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/attention.h"

// Self attention of short heads. A block takes one head of one sequence: its queries, keys and values, (T, D) with T and D up to 64, fit in
// shared memory, and each warp has the scores of 16 queries in registers. Of global memory only the projection is read and the result
// written; as separate products and a softmax, the scores alone are written and read eight times in a training step. Keys that no query of
// a warp may see are left out.
//
// Float32 is multiplied as the context says, MatmulPrecision::tf32x3 as fp32. The 16-bit types go to the tensor cores in TF32, which takes
// them as they are and probabilities with 11 bits.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::short_heads;

namespace {

constexpr int longest = all_tiles * tile_keys;

/// The vectors of four elements of rows of D that a thread brings to shared memory, and where they lie there.
template <int D>
struct Share {
  int row = threadIdx.x / (D / 4), step = blockDim.x / (D / 4), column = threadIdx.x % (D / 4) * 4, place = row * (D + 4) + column;

  __device__ void advance() {
    row += step;
    place += step * (D + 4);
  }
};

/// Rows of D elements in global memory, and where they go in shared memory.
template <class T>
struct Source {
  const T* data;
  std::int64_t stride;
  float* to;
};

/// Begins to bring the rows of several sources, and sets those below them to zero. Four elements go where four floats have room:
/// finish_rows makes them such.
template <int D, class T, int count>
__device__ __forceinline__ void load_rows(const Source<T> (&sources)[count], const Heads& all) {
  Share<D> at;
  const T* from[count];
#pragma unroll
  for (int n = 0; n < count; ++n) from[n] = sources[n].data + at.row * sources[n].stride + at.column;
  const auto take = [&](auto&& copy) {
#pragma unroll 1
    for (; at.row < all.length; at.advance())
#pragma unroll
      for (int n = 0; n < count; ++n) {
        copy(sources[n].to + at.place, from[n]);
        from[n] += at.step * sources[n].stride;
      }
  };
  if (all.aligned) {
    take([](float* place, const T* vector) { __pipeline_memcpy_async(place, vector, 4 * sizeof(T)); });
  } else {
    take([](float* place, const T* elements) {
      for (int k = 0; k < 4; ++k) reinterpret_cast<T*>(place)[k] = elements[k];
    });
  }
#pragma unroll 1
  for (; at.row < all.padded; at.advance())
#pragma unroll
    for (int n = 0; n < count; ++n) store4(sources[n].to + at.place, {0, 0, 0, 0});
}

/// Makes what this thread has loaded float32, or rounds it to what tensor cores take.
template <int D, class T, MatmulPrecision precision, int count>
__device__ __forceinline__ void finish_rows(const Source<T> (&sources)[count], const Heads& all) {
  if constexpr (!std::is_same_v<T, float> || precision == MatmulPrecision::tf32)
#pragma unroll 1
    for (Share<D> at; at.row < all.length; at.advance())
#pragma unroll
      for (int n = 0; n < count; ++n) {
        float* const place = sources[n].to + at.place;
        const Vector<T, 4> in = read_vector<4>(reinterpret_cast<const T*>(place));
        float out[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if constexpr (std::is_same_v<T, float>) out[k] = to_tf32(in.values[k]);
          else out[k] = convert<float>(in.values[k]);
        }
        store4(place, {out[0], out[1], out[2], out[3]});
      }
}

/// What is added to each key's scores before they are scaled, to shared memory; null where nothing is.
__device__ __forceinline__ const float* load_bias(const Heads& all, int batch, float* to) {
  if (!all.padding) return nullptr;
  for (int key = threadIdx.x; key < all.padded; key += blockDim.x) {
    const float x = key < all.length ? all.padding[std::int64_t(batch) * all.length + key] : 0;
    to[key] = x > hidden_padding ? x / all.scale : -INFINITY;
  }
  return to;
}

template <int tiles>
constexpr int most_threads = (tiles + 1) / 2 * 32;
template <int D, int tiles>
constexpr int blocks_at_once = D == 32 && tiles == few_tiles ? 8 : 1;

template <class T, MatmulPrecision precision, int D, int tiles>
__global__ void __launch_bounds__(most_threads<tiles>, blocks_at_once<D, tiles>)
    attend(const T* qkv, T* y, __grid_constant__ const Heads all) {
  extern __shared__ float4 shared[];
  const int size = all.padded * (D + 4), batch = blockIdx.x / all.heads, head = blockIdx.x % all.heads;
  float *const q = reinterpret_cast<float*>(shared), *const k = q + size, *const v = k + size, *const weights = v + size + all.padded;
  const std::int64_t part = std::int64_t(all.heads) * D, from = std::int64_t(batch) * all.length * 3 * part + head * D;
  const Source<T> early[] = {{qkv + from, 3 * part, q}, {qkv + from + part, 3 * part, k}}, late[] = {{qkv + from + 2 * part, 3 * part, v}};
  load_rows<D>(early, all);
  __pipeline_commit();
  load_rows<D>(late, all);
  __pipeline_commit();
  const float* const bias = load_bias(all, batch, v + size);
  Scores<precision, tiles> scores(all, batch, threadIdx.x / 32);
  scores.draw(all, blockIdx.x);
  __pipeline_wait_prior(1);
  finish_rows<D, T, precision>(early, all);
  __syncthreads();
  multiply_rows<D>(q, k, scores.first, all.padded, scores.limit, scores.lane, scores.values);
  scores.take_softmax(all, bias);
  scores.drop();
  __pipeline_wait_prior(0);
  finish_rows<D, T, precision>(late, all);
  if constexpr (!scores.lane.on_tensor_cores)
    store_scores(scores.values, scores.first, all.padded, scores.limit, scores.lane, weights, all.score_pitch);
  __syncthreads();
  const auto result = multiply_scores<D>(scores.values, weights, all.score_pitch, v, scores.first, all.padded, scores.limit, scores.lane);
  write_rows<false>(result, scores.first, all.length, scores.lane, y + std::int64_t(batch) * all.length * part + head * D, part);
}

template <class T, MatmulPrecision precision, int D, int tiles>
__global__ void __launch_bounds__(most_threads<tiles>, blocks_at_once<D, tiles>)
    attend_grad(const T* qkv, const T* dy, T* dqkv, __grid_constant__ const Heads all) {
  extern __shared__ float4 shared[];
  // When the gradients of the scores are known, the values are done with, and with the queries' gradients the keys: the scores' gradients
  // and the probabilities take their places.
  const int size = all.padded * (D + 4), room = all.padded * max(D + 4, all.score_pitch), batch = blockIdx.x / all.heads,
            head = blockIdx.x % all.heads;
  float *const q = reinterpret_cast<float*>(shared), *const g = q + size, *const k = g + size, *const v = k + room;
  float *const weights = k, *const gradients = v;
  const std::int64_t part = std::int64_t(all.heads) * D, from = std::int64_t(batch) * all.length * 3 * part + head * D;
  const Source<T> early[] = {{qkv + from, 3 * part, q}, {qkv + from + part, 3 * part, k}};
  const Source<T> late[] = {{qkv + from + 2 * part, 3 * part, v}, {dy + std::int64_t(batch) * all.length * part + head * D, part, g}};
  load_rows<D>(early, all);
  __pipeline_commit();
  load_rows<D>(late, all);
  __pipeline_commit();
  const float* const bias = load_bias(all, batch, v + room);
  Scores<precision, tiles> scores(all, batch, threadIdx.x / 32);
  const auto lane = scores.lane;
  const int first = scores.first, limit = scores.limit;
  scores.draw(all, blockIdx.x);
  __pipeline_wait_prior(1);
  finish_rows<D, T, precision>(early, all);
  __syncthreads();
  multiply_rows<D>(q, k, first, all.padded, limit, lane, scores.values);
  scores.take_softmax(all, bias);
  __pipeline_wait_prior(0);
  finish_rows<D, T, precision>(late, all);
  __syncthreads();
  float own[tiles][4];
  multiply_rows<D>(g, v, first, all.padded, limit, lane, own);
  scores.differentiate(all, own);
  __syncthreads();
  store_scores(own, first, all.padded, limit, lane, gradients, all.score_pitch);
  __syncwarp();
  T* const to = dqkv + from;
  write_rows<false>(multiply_scores<D>(own, gradients, all.score_pitch, k, first, all.padded, limit, lane), first, all.length, lane, to,
                    3 * part);
  __syncthreads();
  store_scores(scores.values, first, all.padded, limit, lane, weights, all.score_pitch);
  __syncthreads();
  // Now the warp has 16 keys, which only the queries from `begin` on may see.
  const int begin = first < scores.opened ? 0 : first;
  Rows<D> results[2];
  multiply_transposed<D, precision, 2>({gradients, weights}, all.score_pitch, {q, g}, first, begin, all.padded, lane, results);
  write_rows<true>(results[0], first, all.length, lane, to + part, 3 * part);
  write_rows<true>(results[1], first, all.length, lane, to + 2 * part, 3 * part);
}

int tiles_for(std::int64_t length) { return length <= few_tiles * tile_keys ? few_tiles : all_tiles; }

Heads heads_of(const View& qkv, const Attention& attention) {
  Heads all{};
  all.length = static_cast<int>(qkv.shape[1]);
  all.heads = static_cast<int>(qkv.shape[3]);
  all.padded = std::min((all.length + stripe_rows - 1) / stripe_rows * stripe_rows, tiles_for(all.length) * tile_keys);
  all.score_pitch = all.padded + 4;
  all.scale = static_cast<float>(attention.scale);
  all.padding = attention.mask.padding.as<const float>();
  all.prefix = attention.mask.prefix.as<const std::int64_t>();
  all.causal = attention.mask.causal;
  // As where dropout compares unit_float with the probability.
  all.drops = attention.dropout > 0;
  all.last_dropped = static_cast<std::uint32_t>(static_cast<std::uint64_t>(std::ceil(attention.dropout * 0x1p24)) * 256 - 1);
  all.keep = static_cast<float>(1 - attention.dropout);
  all.inverse_keep = static_cast<float>(1 / (1 - attention.dropout));
  all.draws = attention.draws;
  return all;
}

struct Forward {
  template <class T, MatmulPrecision precision, int D, int tiles>
  static constexpr auto kernel = attend<T, precision, D, tiles>;
  /// Elements of shared memory for each row, but for what is added to its scores.
  static int elements(const Heads& all, int head_dim) { return 3 * (head_dim + 4) + all.score_pitch; }
};
struct Backward {
  template <class T, MatmulPrecision precision, int D, int tiles>
  static constexpr auto kernel = attend_grad<T, precision, D, tiles>;
  static int elements(const Heads& all, int head_dim) { return 2 * (head_dim + 4) + 2 * std::max(head_dim + 4, all.score_pitch); }
};

template <class Kernels, class T, MatmulPrecision precision, class... Arguments>
void launch_heads(const View& qkv, const Heads& all, Arguments... arguments) {
  const std::int64_t blocks = qkv.shape[0] * all.heads;
  if (blocks == 0) return;
  const int head_dim = static_cast<int>(qkv.shape[4]), threads = static_cast<int>(blocks_for(all.padded, stripe_rows)) * 32;
  const std::size_t bytes = sizeof(float) * all.padded * (Kernels::elements(all, head_dim) + 1);
  const auto with = [&](auto kernel) {
    if (bytes > std::size_t(48) << 10)
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "cudaFuncSetAttribute");
    launch(kernel, blocks_for(blocks, 1), threads, bytes, qkv.stream, arguments..., all);
  };
  if (tiles_for(all.length) == few_tiles)
    head_dim == 32 ? with(Kernels::template kernel<T, precision, 32, few_tiles>)
                   : with(Kernels::template kernel<T, precision, 64, few_tiles>);
  else
    head_dim == 32 ? with(Kernels::template kernel<T, precision, 32, all_tiles>)
                   : with(Kernels::template kernel<T, precision, 64, all_tiles>);
}

template <class F>
void dispatch(DType dtype, F&& f) {
  const bool takes_tf32 = context().matmul_precision == MatmulPrecision::tf32;
  switch (dtype) {
    case DType::f32:
      return takes_tf32 ? f.template operator()<float, MatmulPrecision::tf32>() : f.template operator()<float, MatmulPrecision::fp32>();
    case DType::f16: return f.template operator()<f16, MatmulPrecision::tf32>();
    default: return f.template operator()<bf16, MatmulPrecision::tf32>();
  }
}

}  // namespace

bool has_self_attention(Cuda, DType dtype, std::int64_t length, std::int64_t head_dim) {
  return dtype == DType::f32 && length > 0 && length <= longest && (head_dim == 32 || head_dim == 64);
}

void self_attention(Cuda, const View& qkv, const Attention& attention, const View& y) {
  Heads all = heads_of(qkv, attention);
  all.aligned = is_aligned(qkv.data, 4 * size_of(qkv.dtype));
  dispatch(y.dtype,
           [&]<class T, MatmulPrecision precision>() { launch_heads<Forward, T, precision>(qkv, all, qkv.as<const T>(), y.as<T>()); });
}

void self_attention_grad(Cuda, const View& qkv, const View& g, const Attention& attention, const View& dqkv) {
  Heads all = heads_of(qkv, attention);
  all.aligned = is_aligned(qkv.data, 4 * size_of(qkv.dtype)) && is_aligned(g.data, 4 * size_of(g.dtype));
  dispatch(qkv.dtype, [&]<class T, MatmulPrecision precision>() {
    launch_heads<Backward, T, precision>(qkv, all, qkv.as<const T>(), g.as<const T>(), dqkv.as<T>());
  });
}

}  // namespace tern::kernels
