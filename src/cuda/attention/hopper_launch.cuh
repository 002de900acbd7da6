#pragma once
#include <algorithm>

#include "cuda/attention/hopper.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/tensor_map.h"

// The host's half of flash attention on Hopper: tensor maps, the grid, and which kernel serves a call.
namespace tern::gpu::hopper {

/// Whether TMA can read (B, T, H, D): addresses and strides in multiples of 16 bytes, and no stride runs backwards.
inline bool has_tensor_map(const View& heads) {
  bool is_fit = rows_are_aligned(heads, 16) && heads.shape[3] % 8 == 0;
  for (int i = 0; i < 3; ++i) is_fit = is_fit && heads.shape[i] > 0 && (heads.shape[i] == 1 || heads.strides[i] > 0);
  return is_fit;
}

/// The map of (B, T, H, D), as D, H, T, B, for boxes of 64 columns and so many rows of one head.
inline CUtensorMap map_of(const View& view, int rows) {
  const auto stride = [&](int i) { return view.shape[i] == 1 ? std::int64_t(block_columns) : view.strides[i]; };
  const int box[] = {block_columns, 1, rows, 1};
  return tensor_map(
      TmaTensor{
          view.data, view.dtype, 4, {view.shape[3], view.shape[2], view.shape[1], view.shape[0]}, {1, stride(2), stride(1), stride(0)}},
      box);
}

/// Heads whose keys and values, of so many bytes each, take half of the L2 cache.
inline int heads_in_l2(std::int64_t bytes, const Args& args, Stream stream) {
  const std::int64_t room = attribute(cudaDevAttrL2CacheSize, stream.device) / 2;
  return static_cast<int>(std::clamp<std::int64_t>(room / std::max<std::int64_t>(bytes, 1), 1, args.all_heads()));
}

inline int blocks_of(std::int64_t items, Stream stream) {
  return static_cast<int>(std::min<std::int64_t>(items, attribute(cudaDevAttrMultiProcessorCount, stream.device)));
}

/// Calls f with whether scores get a padding, and whether probabilities are dropped, which implies the former.
template <class F>
void dispatch(const Args& args, F&& f) {
  if (args.dropout.drops) f.template operator()<true, true>();
  else if (args.padding) f.template operator()<true, false>();
  else f.template operator()<false, false>();
}
/// Likewise with the element type before them.
template <class F>
void dispatch(DType dtype, const Args& args, F&& f) {
  dispatch_halves(dtype,
                  [&]<class T>() { dispatch(args, [&]<bool general, bool drops>() { f.template operator()<T, general, drops>(); }); });
}

}  // namespace tern::gpu::hopper
