#include "cuda/attention/hopper.cuh"

// Two kernels that run before attention in float32: the first finds the largest magnitude and the largest norm of a row for each head, the
// second writes the parts of the scaled numbers. A row is read by 16 or 32 lanes, four numbers each.
namespace tern::gpu::hopper {

namespace {

constexpr int chunk_rows = 128;  ///< rows that a block reads

struct SplitTensor {
  Heads from;
  f16* to;
  int rows, heads, group;  ///< group: heads that share a scale
};
struct SplitParams {
  SplitTensor tensors[4];
  int batch, head_dim, lanes, parts, maxima_heads;
};

/// Calls f(row, elements of the thread, whether they exist) for the block's rows, by whole groups of lanes.
template <class F>
__device__ __forceinline__ void for_each_row(const SplitParams& p, const SplitTensor& tensor, int batch, int head, int first, F&& f) {
  const int column = static_cast<int>(threadIdx.x) % p.lanes * 4;
  const int last = min(first + chunk_rows, tensor.rows);
#pragma unroll 4
  for (int row0 = first; row0 < last; row0 += static_cast<int>(blockDim.x) / p.lanes) {
    const int row = row0 + static_cast<int>(threadIdx.x) / p.lanes;
    const bool is_there = row < last && column < p.head_dim;
    float4 x = {};
    if (is_there) x = *reinterpret_cast<const float4*>(tensor.from.at<const float>(batch, row, head) + column);
    f(row, column, x, is_there);
  }
}

/// Finds the tensor, batch row, head and first row of a block. Returns false if there are none.
__device__ __forceinline__ bool place(const SplitTensor& tensor, int batches, int& batch, int& head, int& first) {
  const int chunks = (tensor.rows + chunk_rows - 1) / chunk_rows;
  const int index = static_cast<int>(blockIdx.x) / chunks;
  first = static_cast<int>(blockIdx.x) % chunks * chunk_rows;
  batch = index / tensor.heads;
  head = index % tensor.heads;
  return batch < batches;
}

__global__ void __launch_bounds__(256) hopper_f32_maxima(__grid_constant__ const SplitParams p, unsigned* maxima) {
  const SplitTensor& tensor = p.tensors[blockIdx.y];
  int batch, head, first;
  if (!place(tensor, p.batch, batch, head, first)) return;
  unsigned most = 0;  // bits of magnitudes are ordered as the magnitudes, with NaN above all
  float longest = 0;
  for_each_row(p, tensor, batch, head, first, [&](int, int, const float4& x, bool) {
    const auto magnitude = [](float value) { return __float_as_uint(value) & 0x7fffffffu; };
    most = max(max(most, max(magnitude(x.x), magnitude(x.y))), max(magnitude(x.z), magnitude(x.w)));
    longest = fmaxf(longest, lanes_all_reduce<PlusOp<float>>(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w, p.lanes));
  });
  most = __reduce_max_sync(whole_warp, most);
  longest = __uint_as_float(__reduce_max_sync(whole_warp, __float_as_uint(longest)));
  if (threadIdx.x % 32 != 0) return;
  // Bound of the norm, also if squares leave the range.
  const bool is_exact = longest > 1e-30f && longest < 1e30f;
  const float length = is_exact ? sqrtf(longest) * 1.0001f : __uint_as_float(most) * sqrtf(static_cast<float>(p.head_dim));
  const int index = batch * (tensor.heads / tensor.group) + head / tensor.group, value = static_cast<int>(blockIdx.y);
  atomicMax(maxima + value * p.maxima_heads + index, most);
  if (value >= Maxima::v) atomicMax(maxima + (value - Maxima::v + Maxima::v_length) * p.maxima_heads + index, __float_as_uint(length));
}

__global__ void __launch_bounds__(256) hopper_f32_split(__grid_constant__ const SplitParams p, const float* maxima) {
  const SplitTensor& tensor = p.tensors[blockIdx.y];
  int batch, head, first;
  if (!place(tensor, p.batch, batch, head, first)) return;
  const int index = batch * (tensor.heads / tensor.group) + head / tensor.group;
  const float scale = power_of_two(Maxima{maxima, p.maxima_heads}.exponent(static_cast<Maxima::Value>(blockIdx.y), index));
  for_each_row(p, tensor, batch, head, first, [&](int row, int column, const float4& x, bool is_there) {
    if (!is_there) return;
    uint2 hi, lo;
    split_pair(x.x * scale, x.y * scale, hi.x, lo.x);
    split_pair(x.z * scale, x.w * scale, hi.y, lo.y);
    const auto to = [&](int part) {
      const std::int64_t at = ((std::int64_t(batch) * p.parts + part) * tensor.rows + row) * tensor.heads + head;
      return reinterpret_cast<uint2*>(tensor.to + at * p.head_dim + column);
    };
    *to(0) = hi;
    if (p.parts == 2) *to(1) = lo;
  });
}

}  // namespace

SplitHeads::SplitHeads(std::span<const View> heads, int parts)
    : kv_heads_(static_cast<int>(heads[1].shape[0] * heads[1].shape[2])),
      maxima_(static_cast<std::size_t>(kv_heads_) * Maxima::values * sizeof(float), heads[0].stream) {
  const Stream stream = heads[0].stream;
  SplitParams p{};
  p.batch = static_cast<int>(heads[0].shape[0]);
  p.head_dim = static_cast<int>(heads[0].shape[3]);
  p.lanes = p.head_dim <= 64 ? 16 : 32;
  p.parts = parts;
  p.maxima_heads = kv_heads_;
  std::int64_t blocks = 0;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const View& x = heads[i];
    data_[i].emplace(static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[2] * x.shape[3] * parts * 2), stream);
    View& view = views_[i];
    view = x;
    view.data = data_[i]->as();
    view.dtype = DType::f16;
    view.shape[0] *= parts;
    view.strides = {x.shape[1] * x.shape[2] * x.shape[3], x.shape[2] * x.shape[3], x.shape[3], 1};
    p.tensors[i] = {Heads(x), data_[i]->as<f16>(), static_cast<int>(x.shape[1]), static_cast<int>(x.shape[2]),
                    static_cast<int>(x.shape[2] / heads[1].shape[2])};
    blocks = std::max(blocks, (x.shape[1] + chunk_rows - 1) / chunk_rows * x.shape[0] * x.shape[2]);
  }
  if (blocks > 0x7fffffff) fail("attention", "expected at most 2^31 - 1 pieces of 128 rows");
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(heads.size()));
  check(cudaMemsetAsync(maxima_.as(), 0, static_cast<std::size_t>(kv_heads_) * Maxima::values * sizeof(float), handle(stream)),
        "cudaMemsetAsync");
  launch(hopper_f32_maxima, grid, 256, 0, stream, p, maxima_.as<unsigned>());
  launch(hopper_f32_split, grid, 256, 0, stream, p, maxima_.as<const float>());
}

}  // namespace tern::gpu::hopper
