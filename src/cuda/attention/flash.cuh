#pragma once
#include <algorithm>
#include <cmath>

#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/attention.h"

// What both passes of flash attention stand on: tiles of 16-bit elements in shared memory, the matrix units' fragments, the mask and the
// draws of dropout. Fragments are those of mma.m16n8k16: with group = lane / 4 and pair = lane % 4, a thread holds of a sum (16, 8) the
// columns 2 pair and 2 pair + 1 of the rows group and group + 8, in this order.
namespace tern::gpu::flash {

/// What is the same for all blocks of a launch.
struct Heads {
  int length, batch, heads, head_dim;
  float scale, scale2;  ///< of the scores; scale2 for powers of two
  const float* padding;
  const std::int64_t* prefix;
  bool causal;
  std::uint32_t drop_bound;  ///< an element falls away where its word >> 8 is below
  float inverse_keep;
  PhiloxState draws;
  bool aligned;  ///< what is read begins at a multiple of 16 bytes

  __device__ int count() const { return batch * heads; }
  __device__ std::int64_t row_size() const { return std::int64_t(heads) * head_dim; }  ///< elements of a token's queries, or keys
  /// How many keys all queries of a sequence see.
  __device__ int opened(int sequence) const {
    return prefix ? static_cast<int>(min(max(prefix[sequence], std::int64_t(0)), std::int64_t(length))) : 0;
  }
};

inline constexpr float log2_e = 1.44269504088896340736f;

inline Heads heads_of(const View& qkv, const kernels::Attention& attention) {
  Heads all{};
  all.batch = static_cast<int>(qkv.shape[0]);
  all.length = static_cast<int>(qkv.shape[1]);
  all.heads = static_cast<int>(qkv.shape[3]);
  all.head_dim = static_cast<int>(qkv.shape[4]);
  all.scale = static_cast<float>(attention.scale);
  all.scale2 = all.scale * log2_e;
  all.padding = attention.mask.padding.as<const float>();
  all.prefix = attention.mask.prefix.as<const std::int64_t>();
  all.causal = attention.mask.causal;
  all.drop_bound = static_cast<std::uint32_t>(std::ceil(attention.dropout * 0x1p24));
  all.inverse_keep = static_cast<float>(1 / (1 - attention.dropout));
  all.draws = attention.draws;
  all.aligned = is_aligned(qkv.data, 16);
  return all;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The padding of a key as it is added to scores times scale2; -inf: the key is hidden.
__device__ __forceinline__ float padding2_of(const Heads& all, int sequence, int key) {
  if (key >= all.length) return -INFINITY;
  if (!all.padding) return 0;
  const float padding = all.padding[std::int64_t(sequence) * all.length + key];
  return padding > kernels::hidden_padding ? padding * log2_e : -INFINITY;
}

// Tiles

__device__ __forceinline__ unsigned tile_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

/// Rows of `width` elements in shared memory. Eight rows of one chunk of 16 bytes, as the matrix units' loads take them, lie in different
/// banks: the chunks of a row change places with the row.
template <int width>
struct Tile {
  static constexpr int chunks = width / 8, row_bytes = width * 2;
  static constexpr int bytes(int rows) { return rows * row_bytes; }
  static __device__ __forceinline__ int swizzle(int row) { return chunks % 8 == 0 ? row % 8 : chunks % 4 == 0 ? row / 2 % 4 : row / 4 % 2; }
  static __device__ __forceinline__ unsigned place(int row, int chunk) { return row * row_bytes + ((chunk ^ swizzle(row)) << 4); }
};

__device__ __forceinline__ void copy_async_16(unsigned to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_async_4(unsigned to, const void* from, bool is_there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(is_there ? 4 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int groups>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(groups) : "memory");
}

/// Begins to bring `rows` rows of a head, from row `first` on, to a tile; zeros where there are none. `from` is the head's first element,
/// `stride` lies between its rows. By `threads` threads, of which this one is number `thread`.
template <class T, int width, int rows, int threads>
__device__ __forceinline__ void load_tile(unsigned to, const T* from, std::int64_t stride, int first, const Heads& all,
                                          int thread = threadIdx.x) {
  using Shape = Tile<width>;
  constexpr int pieces = rows * Shape::chunks;
  // Where the threads take whole rows, eight at a time, a thread's chunk and its place in a row are the same in all steps.
  constexpr bool is_regular = threads % (8 * Shape::chunks) == 0 && pieces % threads == 0;
  const auto copy = [&](unsigned target, const T* place, bool is_there) {
    if (all.aligned) {
      copy_async_16(target, is_there ? place : from, is_there);
    } else {
      unsigned words[4] = {};
      if (is_there)
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = unsigned(place[2 * k].bits) | unsigned(place[2 * k + 1].bits) << 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(target), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  };
  if constexpr (is_regular) {
    constexpr int step = threads / Shape::chunks;
    const int row = thread / Shape::chunks, chunk = thread % Shape::chunks;
    const T* const place = from + (first + row) * stride + chunk * 8;
    const unsigned target = to + Shape::place(row, chunk);
    const int rows_left = chunk * 8 < all.head_dim ? all.length - first - row : 0;
#pragma unroll
    for (int i = 0; i < pieces / threads; ++i) copy(target + i * step * Shape::row_bytes, place + i * step * stride, i * step < rows_left);
  } else {
#pragma unroll
    for (int i = 0; i < (pieces + threads - 1) / threads; ++i) {
      const int piece = thread + i * threads;
      if (pieces % threads != 0 && piece >= pieces) break;
      const int row = piece / Shape::chunks, chunk = piece % Shape::chunks;
      copy(to + Shape::place(row, chunk), from + (first + row) * stride + chunk * 8, first + row < all.length && chunk * 8 < all.head_dim);
    }
  }
}

// Fragments

/// Four matrices of 8 x 8 elements, of which each lane gives the address of one row.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}
__device__ __forceinline__ void load_matrices_turned(unsigned (&to)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}

/// Where a lane loads 16 x 16 elements of a tile from, at a row that is a multiple of 16 and a chunk that is one of 2. What depends on the
/// lane alone is computed once.
template <int width>
class Places {
 public:
  /// For a left operand (16 rows, 16 deep), or turned for a right one (16 deep, 16 columns): b of the first 8 columns, then of the others.
  static __device__ Places left(unsigned tile) { return Places(tile, threadIdx.x % 16, threadIdx.x % 32 / 16); }
  /// For a right operand whose columns are the tile's rows (16 columns, 16 deep), or turned for a left one (16 deep, 16 rows).
  static __device__ Places right(unsigned tile) { return Places(tile, threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8, threadIdx.x / 8 % 2); }
  __device__ __forceinline__ unsigned operator()(int row, int chunk) const {
    return base_ + row * Tile<width>::row_bytes + (chunk << 4 ^ column_);
  }

 private:
  __device__ Places(unsigned tile, int row, int chunk)
      : base_(tile + row * Tile<width>::row_bytes), column_((chunk ^ Tile<width>::swizzle(row)) << 4) {}
  unsigned base_, column_;
};

/// sum (16, 8) += a (16, 16) b (16, 8)
template <class T>
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, bf16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Sums of 16 rows and 16 columns as a left operand of the next product.
template <class T>
__device__ __forceinline__ void pack_left(unsigned (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack_pair<T>(left[0], left[1]);
  a[1] = pack_pair<T>(left[2], left[3]);
  a[2] = pack_pair<T>(right[0], right[1]);
  a[3] = pack_pair<T>(right[2], right[3]);
}

// Dropout

/// Which of 16 x 16 probabilities are kept, those from element `first` of all on in rows `length` apart. A thread gets its rows whole: bit
/// k of the lower half is column k of row `group`, the upper half is row `group` + 8. Each lane draws one block of four words for either
/// row; where rows do not begin with a block, a fifth block follows.
static __device__ unsigned draw_kept(const Heads& all, std::uint64_t base, std::int64_t first) {
  const unsigned lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  const auto kept_of = [&](std::uint64_t block) {
    const PhiloxBlock drawn = philox(all.draws.seed, base + block);
    unsigned kept = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) kept |= unsigned(drawn.words[k] >> 8 >= all.drop_bound) << k;
    return kept;
  };
  const std::uint64_t upper = static_cast<std::uint64_t>(first + std::int64_t(group) * all.length),
                      lower = upper + 8 * std::uint64_t(all.length);
  unsigned kept = kept_of((upper >> 2) + pair) << 4 * pair | kept_of((lower >> 2) + pair) << (16 + 4 * pair);
  kept |= shuffle_xor(kept, 1);
  kept |= shuffle_xor(kept, 2);
  if (all.length % 4 != 0) {
    const unsigned fifth = kept_of(((pair % 2 == 0 ? upper : lower) >> 2) + 4);
    const unsigned after_upper = __shfl_sync(whole_warp, fifth, lane & ~3u), after_lower = __shfl_sync(whole_warp, fifth, lane & ~3u | 1u);
    kept = ((kept & 0xffff | after_upper << 16) >> (upper & 3) & 0xffff) | (kept >> 16 | after_lower << 16) >> (lower & 3) << 16;
  }
  return kept;
}

/// The position that draws begin at.
__device__ __forceinline__ std::uint64_t draws_base(const Heads& all) { return all.draws.offset + (all.draws.base ? *all.draws.base : 0); }

/// Calls f with the element type, and with whether there is dropout, whose registers nobody else should pay for.
template <class F>
void dispatch(DType dtype, const Heads& all, F&& f) {
  const bool drops = all.drop_bound > 0;
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

/// Lets a kernel have that much shared memory, and launches it.
template <class... Parameters, class... Arguments>
void launch_tiles(void (*kernel)(Parameters...), std::int64_t blocks, int threads, std::size_t bytes, Stream stream,
                  Arguments&&... arguments) {
  use(stream);
  if (bytes > std::size_t(48) << 10)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "cudaFuncSetAttribute");
  launch(kernel, blocks_for(blocks, 1), threads, bytes, stream, std::forward<Arguments>(arguments)...);
}

}  // namespace tern::gpu::flash
