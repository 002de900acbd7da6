#include "cuda/attention/attention.h"
#include "cuda/attention/attention_args.cuh"
#include "cuda/device/online_softmax.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "tensor/sizes.h"

// Decoding attention, one query per sequence, with split keys (Flash-Decoding). It is bound by reading keys and values, so tensor cores
// would not help.
//
// A block takes one split of the keys of one key head, for up to `members` query heads that share it (grouped queries). A worker is a few
// lanes, each with 16 bytes of a key's row; it takes every `workers`-th key with its own online softmax. The block combines its workers'
// softmaxes, in their order, and if there are several splits, the last block of a head to finish combines those, also in order: Note [Last
// block].
namespace tern::kernels {

using namespace gpu;
using namespace gpu::flash;

namespace {

constexpr int threads = 128;

struct DecodeParams {
  Args args;
  Heads q, k, v, y;
  const void* bias;              ///< bias of q's dtype; null: none
  std::int64_t bias_strides[3];  ///< strides of sequences, heads and keys
  float* partial;                ///< (sequences, heads, parts, D + 2): row_max, row_sum and y of each split
  unsigned* counters;
  int lanes, parts;
};

/// Online softmax of one query over a worker's keys: the running maximum, the sum of exponentials, and the lane's vectors of y before the
/// division.
template <int width>
struct KeySoftmax {
  float row_max = -INFINITY, row_sum = 0, y[width] = {};
};

template <class T, int vectors, int members>
__global__ void __launch_bounds__(threads) decode(__grid_constant__ const DecodeParams p) {
  constexpr int width = vec16_width<T> * vectors, batch = 4;
  __shared__ float ys[members][threads * width], row_maxima[members][threads], row_sums[members][threads];
  __shared__ bool is_last;
  const Args& args = p.args;
  const int group = args.group(), passes = ceil_div(group, members);
  const int part = static_cast<int>(blockIdx.x) % p.parts, set = static_cast<int>(blockIdx.x) / p.parts;
  const int pass = set % passes, kv_head = set / passes % args.kv_heads, index = set / passes / args.kv_heads;
  const int head0 = kv_head * group + pass * members, count = min(members, group - pass * members);
  const Sequence sequence(args, index);
  const int first = max(sequence.key_begin(0), part * decode_part), last = min(sequence.key_end(0), (part + 1) * decode_part);

  const int lanes = p.lanes, lane = threadIdx.x % lanes, worker = threadIdx.x / lanes, workers = threads / lanes;
  bool is_column[vectors];
  int column[vectors];
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    column[i] = (i * lanes + lane) * vec16_width<T>;
    is_column[i] = column[i] < args.head_dim;
  }
  const auto load = [&](const Heads& heads, int row, bool wanted, Packed<T, vec16_width<T>>(&to)[vectors]) {
    const T* const at = heads.at<T>(index, row, kv_head);
#pragma unroll
    for (int i = 0; i < vectors; ++i) to[i] = wanted && is_column[i] ? read_packed<vec16_width<T>>(at + column[i]) : uint4{};
  };
  const auto widen_row = [&](const Packed<T, vec16_width<T>>(&row)[vectors], float (&to)[width]) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      float values[vec16_width<T>];
      unpack<T>(row[i], values);
#pragma unroll
      for (int k = 0; k < vec16_width<T>; ++k) to[i * vec16_width<T> + k] = values[k];
    }
  };

  float query[members][width];
#pragma unroll
  for (int m = 0; m < members; ++m)
#pragma unroll
    for (int i = 0; i < vectors; ++i)
#pragma unroll
      for (int k = 0; k < vec16_width<T>; ++k)
        query[m][i * vec16_width<T> + k] = m < count && is_column[i] ? convert<float>(p.q.at<T>(index, 0, head0 + m)[column[i] + k]) : 0;

  KeySoftmax<width> softmaxes[members];
  for (int key0 = first; key0 < last; key0 += workers * batch) {  // all threads of a warp run the same number of iterations
    Packed<T, vec16_width<T>> keys[batch][vectors], values[batch][vectors];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      const int key = key0 + u * workers + worker;
      load(p.k, min(key, last - 1), key < last, keys[u]);
      load(p.v, min(key, last - 1), key < last, values[u]);
    }
    float scores[members][batch];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      const int key = key0 + u * workers + worker;
      float row[width];
      widen_row(keys[u], row);
      const float added = key < last ? padding_log2(args, sequence, index, key) : -INFINITY;
#pragma unroll
      for (int m = 0; m < members; ++m) {
        float score = 0;
#pragma unroll
        for (int k = 0; k < width; ++k) score += query[m][k] * row[k];
        score = lanes_all_reduce<PlusOp<float>>(score, lanes);
        float bias = 0;
        if (p.bias && key < last && m < count)
          bias = convert<float>(
              static_cast<const T*>(p.bias)[index * p.bias_strides[0] + (head0 + m) * p.bias_strides[1] + key * p.bias_strides[2]]);
        scores[m][u] = added == -INFINITY ? -INFINITY : score * args.scale_log2 + bias_log2(bias) + added;
      }
    }
#pragma unroll
    for (int m = 0; m < members; ++m) {
      KeySoftmax<width>& r = softmaxes[m];
      float batch_max = scores[m][0];
#pragma unroll
      for (int u = 1; u < batch; ++u) batch_max = fmaxf(batch_max, scores[m][u]);
      const auto [shift, rescale] = RaisedMax(r.row_max, batch_max);
      r.row_sum *= rescale;
#pragma unroll
      for (int k = 0; k < width; ++k) r.y[k] *= rescale;
#pragma unroll
      for (int u = 0; u < batch; ++u) r.row_sum += scores[m][u] = exp2_approx(scores[m][u] - shift);
    }
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      float row[width];
      widen_row(values[u], row);
#pragma unroll
      for (int m = 0; m < members; ++m)
#pragma unroll
        for (int k = 0; k < width; ++k) softmaxes[m].y[k] += scores[m][u] * row[k];
    }
  }

  // Workers' softmaxes to shared memory, each y in the order of its row.
#pragma unroll
  for (int m = 0; m < members; ++m) {
    if (lane == 0) {
      row_maxima[m][worker] = softmaxes[m].row_max;
      row_sums[m][worker] = softmaxes[m].row_sum;
    }
#pragma unroll
    for (int i = 0; i < vectors; ++i)
#pragma unroll
      for (int k = 0; k < vec16_width<T>; ++k) ys[m][worker * lanes * width + column[i] + k] = softmaxes[m].y[i * vec16_width<T> + k];
  }
  __syncthreads();
  const int head_dim = args.head_dim, row_size = head_dim + 2;
  const auto entry_of = [&](int m, int of_part) {
    return p.partial + ((std::int64_t(index) * args.heads + head0 + m) * p.parts + of_part) * row_size;
  };
  const auto write = [&](int m, int d, float y, float row_sum) {
    p.y.at<T>(index, 0, head0 + m)[d] = convert<T>(row_sum == 0 ? 0.0f : y / row_sum);
  };
  for (int at = threadIdx.x; at < count * head_dim; at += threads) {
    const int m = at / head_dim, d = at % head_dim;
    float row_max = -INFINITY, row_sum = 0, y = 0;
    for (int w = 0; w < workers; ++w) row_max = fmaxf(row_max, row_maxima[m][w]);
    for (int w = 0; w < workers; ++w) {
      const float factor = row_max == -INFINITY ? 0 : exp2_approx(row_maxima[m][w] - row_max);
      row_sum += factor * row_sums[m][w];
      y += factor * ys[m][w * lanes * width + d];
    }
    if (p.parts == 1) {
      write(m, d, y, row_sum);
      continue;
    }
    float* const entry = entry_of(m, part);
    entry[2 + d] = y;
    if (d == 0) {
      entry[0] = row_max;
      entry[1] = row_sum;
    }
  }
  if (p.parts == 1) return;
  if (!is_last_block(p.counters + set, static_cast<unsigned>(p.parts), is_last, [] { __syncthreads(); })) return;
  for (int at = threadIdx.x; at < count * head_dim; at += threads) {
    const int m = at / head_dim, d = at % head_dim;
    float row_max = -INFINITY, row_sum = 0, y = 0;
    for (int i = 0; i < p.parts; ++i) row_max = fmaxf(row_max, __ldcg(entry_of(m, i)));
    for (int i = 0; i < p.parts; ++i) {
      const float* const entry = entry_of(m, i);
      const float factor = row_max == -INFINITY ? 0 : exp2_approx(__ldcg(entry) - row_max);
      row_sum += factor * __ldcg(entry + 1);
      y += factor * __ldcg(entry + 2 + d);
    }
    write(m, d, y, row_sum);
  }
}

}  // namespace

void DecodeAttention::run(Cuda) const {
  if (y.numel() == 0) return;
  const Args args(q, k, attention);
  const auto with = [&]<class T, int vectors, int members>() {
    const int row_vectors = ceil_div(args.head_dim, vec16_width<T>);
    const int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ceil_div(row_vectors, vectors))));
    const int parts = ceil_div(args.keys, decode_part), passes = ceil_div(args.group(), members);
    const std::int64_t sets = std::int64_t(args.sequences) * args.kv_heads * passes;
    const Workspace partial(parts == 1 ? 0 : std::size_t(args.all_heads()) * std::size_t(parts) * (args.head_dim + 2) * sizeof(float),
                            y.stream);
    const auto bias_stride = [&](int dim) { return attention.bias.data ? attention.bias.strides[dim] : 0; };
    const DecodeParams p{.args = args,
                         .q = Heads(q),
                         .k = Heads(k),
                         .v = Heads(v),
                         .y = Heads(y),
                         .bias = attention.bias.data,
                         .bias_strides = {bias_stride(0), bias_stride(1), bias_stride(3)},
                         .partial = partial.as<float>(),
                         .counters = parts == 1 ? nullptr : completion_counters(y.stream, static_cast<std::size_t>(sets)),
                         .lanes = lanes,
                         .parts = parts};
    launch(decode<T, vectors, members>, blocks_for(sets * parts, 1), threads, 0, y.stream, p);
  };
  const auto by_members = [&]<class T, int vectors>() {
    if (args.group() == 1) with.template operator()<T, vectors, 1>();
    else with.template operator()<T, vectors, 4>();
  };
  switch (q.dtype) {
    case DType::bf16: return by_members.template operator()<bf16, 1>();
    case DType::f16: return by_members.template operator()<f16, 1>();
    default:
      if (args.head_dim <= 128) by_members.template operator()<float, 1>();
      else by_members.template operator()<float, 2>();
  }
}

}  // namespace tern::kernels

namespace tern::gpu {

bool has_decode_attention(const View& q, const View& k, const View& v) {
  return (q.dtype == DType::f32 || q.dtype == DType::bf16 || q.dtype == DType::f16) && q.shape[3] <= 256 && k.shape[1] > 0 &&
         k.numel() > 0 && has_vec16_rows(k) && has_vec16_rows(v);
}

}  // namespace tern::gpu
