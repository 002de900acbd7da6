#pragma once
#include <algorithm>
#include <initializer_list>

#include "cuda/attention/attention.h"
#include "cuda/attention/attention_args.cuh"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/runtime/launch.h"
#include "tensor/sizes.h"

// Flash attention by mma.sync and cp.async, common to both passes: the choice of a kernel for a call, the bias, copies of tiles to shared
// memory and of rows from registers.
//
// Note [Flavours of flash kernels]: each feature costs registers and instructions, also in calls without it. So each kernel has three
// flavours: causal masks only; all masks and padding; also dropout and bias. Where calls are rare, the last flavour serves all of them.
namespace tern::gpu::ampere {

using namespace flash;

enum class Flavour { plain, masked, whole };

/// Bias of scores: (B, H, T, S) with any strides.
struct Bias {
  const void* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, query_stride = 0, key_stride = 0;

  Bias() = default;
  explicit Bias(const View& view) : data(view.data) {
    if (data) batch_stride = view.strides[0], head_stride = view.strides[1], query_stride = view.strides[2], key_stride = view.strides[3];
  }
  /// Address of the bias of a query and a key. `head` counts the heads of all sequences.
  template <class T>
  __device__ __forceinline__ const T* place_of(const Args& args, int head, int query, int key) const {
    return static_cast<const T*>(data) + head / args.heads * batch_stride + head % args.heads * head_stride + query * query_stride +
           key * key_stride;
  }
  /// The bias times log2(e), for scores in base 2: of a query and a key, or of those `queries` and `keys` after the ones at `place`.
  template <class T>
  __device__ __forceinline__ float at(const Args& args, int head, int query, int key) const {
    return bias_log2(convert<float>(*place_of<T>(args, head, query, key)));
  }
  template <class T>
  __device__ __forceinline__ float at(const T* place, int queries, int keys) const {
    return bias_log2(convert<float>(place[queries * query_stride + keys * key_stride]));
  }
};

template <Flavour flavour>
__device__ __forceinline__ Sequence sequence_of(const Args& args, int index) {
  if constexpr (flavour == Flavour::plain) return Sequence::plain(args, index);
  else return Sequence(args, index);
}

/// Starts to copy `rows` rows of a head, from row `first` on, to a SharedTile, with zeros after the last row. `from` is the head's first
/// row of `count`, `stride` apart. By `threads` threads, of which this one is number `thread`.
template <class T, int width, int rows, int threads>
__device__ __forceinline__ void load_tile(unsigned to, const T* from, std::int64_t stride, int first, int count, int head_dim,
                                          bool is_aligned, int thread = threadIdx.x) {
  using Tile = SharedTile<width>;
  constexpr int pieces = rows * Tile::chunks;
  // If the threads cover whole rows, eight at a time, a thread's chunk and its position in the row are the same in all steps.
  constexpr bool is_regular = threads % (8 * Tile::chunks) == 0 && pieces % threads == 0;
  const auto copy = [&](unsigned target, const T* source, bool is_there) {
    if (is_aligned) {
      cp_async<16>(target, is_there ? source : from, is_there);
    } else {
      unsigned words[4] = {};
      if (is_there)
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = unsigned(source[2 * k].bits) | unsigned(source[2 * k + 1].bits) << 16;
      store_shared(target, uint4{words[0], words[1], words[2], words[3]});
    }
  };
  if constexpr (is_regular) {
    constexpr int step = threads / Tile::chunks;
    const int row = thread / Tile::chunks, chunk = thread % Tile::chunks;
    const T* const source = from + (first + row) * stride + chunk * 8;
    const unsigned target = to + Tile::offset(row, chunk);
    const int rows_left = chunk * 8 < head_dim ? count - first - row : 0;
#pragma unroll
    for (int i = 0; i < pieces / threads; ++i) copy(target + i * step * Tile::row_bytes, source + i * step * stride, i * step < rows_left);
  } else {
#pragma unroll
    for (int i = 0; i < ceil_div(pieces, threads); ++i) {
      const int piece = thread + i * threads;
      if (pieces % threads != 0 && piece >= pieces) break;
      const int row = piece / Tile::chunks, chunk = piece % Tile::chunks;
      copy(to + Tile::offset(row, chunk), from + (first + row) * stride + chunk * 8, first + row < count && chunk * 8 < head_dim);
    }
  }
}

/// Writes factor times row r of a tile, as FragmentTile::store_row does; element by element unless `in_pairs`.
template <class T, class Fragments>
__device__ __forceinline__ void store_row(const Fragments& tile, int r, float factor, T* to, int first, int size, bool in_pairs) {
  if (in_pairs) return tile.template store_row<T>(r, factor, to, first, size);
#pragma unroll
  for (int c = 0; c < Fragments::lane_columns; ++c)
    if (const int column = first + Fragments::column_of(c); column < size) to[column] = convert<T>(tile.at(r, c) * factor);
}

// Host functions.

inline bool rows_are_aligned(std::initializer_list<const View*> heads, int bytes) {
  return std::ranges::all_of(heads, [&](const View* one) { return gpu::rows_are_aligned(*one, bytes); });
}

/// Calls f with the element type and the flavour of kernel for the call; `is_rare`: one flavour serves all calls.
template <bool is_rare, class F>
void dispatch(DType dtype, const Args& args, const kernels::Attention& attention, F&& f) {
  dispatch_halves(dtype, [&]<class T>() {
    if constexpr (!is_rare) {
      if (!args.dropout.drops && !attention.bias.data) {
        const bool is_masked = args.padding || args.prefix || args.key_lengths || args.query_starts || args.window > 0 || !(args.scale > 0);
        return is_masked ? f.template operator()<T, Flavour::masked>() : f.template operator()<T, Flavour::plain>();
      }
    }
    f.template operator()<T, Flavour::whole>();
  });
}

}  // namespace tern::gpu::ampere
