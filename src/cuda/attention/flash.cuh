#pragma once
#include "cuda/attention/attention_args.cuh"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/runtime/launch.h"

// Flash attention, shared by both passes: padding and dropout of scores, the copy of a tile to shared memory, and the dispatch to kernels.
namespace tern::gpu::flash {

/// The padding of a key as it is added to scores times scale_log2; -inf: the key is hidden.
__device__ __forceinline__ float padding_log2(const AttentionArgs& args, int sequence, int key) {
  if (key >= args.length) return -INFINITY;
  if (!args.padding) return 0;
  const float x = args.padding[std::int64_t(sequence) * args.length + key];
  return x > kernels::hidden_padding ? x * log2_e : -INFINITY;
}

/// Which of 16 x 16 probabilities dropout keeps, those from element `first` of all on in rows `length` apart; `position` is the dropout's.
/// A thread gets its rows whole: bit k of the lower half is column k of row `lane / 4`, the upper half is 8 rows below. Each lane draws one
/// block of four words for either row; where rows do not begin with a block, a fifth block follows.
static __device__ unsigned kept_16x16(const AttentionArgs& args, std::uint64_t position, std::int64_t first) {
  const DropoutMask& dropout = args.dropout;
  const unsigned lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  const std::uint64_t upper = static_cast<std::uint64_t>(first + std::int64_t(group) * args.length),
                      lower = upper + 8 * std::uint64_t(args.length);
  unsigned kept = dropout.kept_of_block(position + (upper >> 2) + member) << 4 * member |
                  dropout.kept_of_block(position + (lower >> 2) + member) << (16 + 4 * member);
  kept |= shuffle_xor(kept, 1);
  kept |= shuffle_xor(kept, 2);
  if (args.length % 4 != 0) {
    const unsigned fifth = dropout.kept_of_block(position + ((member % 2 == 0 ? upper : lower) >> 2) + 4);
    const unsigned after_upper = __shfl_sync(whole_warp, fifth, lane & ~3u), after_lower = __shfl_sync(whole_warp, fifth, lane & ~3u | 1u);
    kept = ((kept & 0xffff | after_upper << 16) >> (upper & 3) & 0xffff) | (kept >> 16 | after_lower << 16) >> (lower & 3) << 16;
  }
  return kept;
}

/// Begins to copy `rows` rows of a head, from row `first` on, to a SharedTile; zeros where there are none. `from` is the head's first
/// element, `stride` lies between its rows. By `threads` threads, of which this one is number `thread`.
template <class T, int width, int rows, int threads>
__device__ __forceinline__ void load_tile(unsigned to, const T* from, std::int64_t stride, int first, const AttentionArgs& args,
                                          int thread = threadIdx.x) {
  using Tile = SharedTile<width>;
  constexpr int pieces = rows * Tile::chunks;
  // If the threads take whole rows, eight at a time, a thread's chunk and the chunk's place in a row are the same in all steps.
  constexpr bool is_regular = threads % (8 * Tile::chunks) == 0 && pieces % threads == 0;
  const auto copy = [&](unsigned target, const T* source, bool is_there) {
    if (args.aligned) {
      cp_async<16>(target, is_there ? source : from, is_there);
    } else {
      unsigned words[4] = {};
      if (is_there)
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = unsigned(source[2 * k].bits) | unsigned(source[2 * k + 1].bits) << 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(target), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  };
  if constexpr (is_regular) {
    constexpr int step = threads / Tile::chunks;
    const int row = thread / Tile::chunks, chunk = thread % Tile::chunks;
    const T* const source = from + (first + row) * stride + chunk * 8;
    const unsigned target = to + Tile::offset(row, chunk);
    const int rows_left = chunk * 8 < args.head_dim ? args.length - first - row : 0;
#pragma unroll
    for (int i = 0; i < pieces / threads; ++i) copy(target + i * step * Tile::row_bytes, source + i * step * stride, i * step < rows_left);
  } else {
#pragma unroll
    for (int i = 0; i < (pieces + threads - 1) / threads; ++i) {
      const int piece = thread + i * threads;
      if (pieces % threads != 0 && piece >= pieces) break;
      const int row = piece / Tile::chunks, chunk = piece % Tile::chunks;
      copy(to + Tile::offset(row, chunk), from + (first + row) * stride + chunk * 8,
           first + row < args.length && chunk * 8 < args.head_dim);
    }
  }
}

/// Calls f with the element type, and with whether there is dropout, whose registers nobody else should pay for.
template <class F>
void dispatch(DType dtype, const AttentionArgs& args, F&& f) {
  const bool drops = args.dropout.drops;
  if (dtype == DType::f16) drops ? f.template operator()<f16, true>() : f.template operator()<f16, false>();
  else drops ? f.template operator()<bf16, true>() : f.template operator()<bf16, false>();
}

/// Calls f with the head's width in shared memory, a number of elements that kernels are compiled for.
template <class F>
void dispatch_width(int head_dim, F&& f) {
  if (head_dim <= 16) f.template operator()<16>();
  else if (head_dim <= 32) f.template operator()<32>();
  else if (head_dim <= 64) f.template operator()<64>();
  else if (head_dim <= 96) f.template operator()<96>();
  else f.template operator()<128>();
}

}  // namespace tern::gpu::flash
