#include "cuda/attention/flash.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/old_names.cuh"

// Flash attention, backward. A block has some keys of one head, a warp 16 of them, and walks over the queries in tiles. Scores are
// computed transposed, (keys, queries), so that their fragments are those of the left operands of the products that sum up the gradients
// of values and keys, in registers, over all queries. Those of the queries need the gradients of scores from all warps, through shared
// memory, and from all blocks of the head.
//
// Note [Turns]
// The sums of the queries' gradients pass from block to block, in global memory and in the order of the keys, so that they are the same in
// every run: a block adds to a tile of queries when those before it have, and the last one that sees the tile writes the result. Blocks of
// a head go over the queries from the last to the first, so that each follows the one before it; they do not wait for one another but for
// the moment in which they start together. A block waits only for blocks of lower numbers, which the device has started before.
//
// Note [Helpers]
// Four more warps bring the next tile of queries, wait for the block's turn and pass it on, so that the others wait for neither. They meet
// at named barriers, which alternate from tile to tile where one side could be there twice before the other. On Hopper the helpers give
// most of their registers to the others. A block that has all keys and queries of its head needs none.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::flash;

namespace {

/// How a kernel cuts its work.
template <int width_, int warps_, int queries_, int strip_, int helpers_, int blocks_>
struct Cut {
  static constexpr int width = width_;      ///< of a head, filled up
  static constexpr int warps = warps_;      ///< of a block
  static constexpr int queries = queries_;  ///< of a tile
  static constexpr int strip = strip_;      ///< queries whose scores a warp has at a time
  static constexpr int helpers = helpers_;  ///< threads that help, or 0
  static constexpr int blocks = blocks_;    ///< that a multiprocessor has registers for, at least
  static constexpr int keys = warps * 16, threads = warps * 32, everybody = threads + helpers;
  static constexpr bool keeps_fragments = width <= 64;  ///< of keys and values, in registers
  static constexpr int key_bytes = Tile<width>::bytes(keys), query_bytes = Tile<width>::bytes(queries),
                       score_bytes = Tile<queries>::bytes(keys);
  static constexpr int row_bytes = queries * 2 * static_cast<int>(sizeof(float));  ///< log_sums and products
  static constexpr int stage_bytes = 2 * query_bytes + row_bytes;
  static constexpr int bytes(int stages) { return 2 * key_bytes + stages * (score_bytes + stage_bytes); }

  // What helpers leave of a thread's share of the registers, which come in eights.
  static constexpr int helper_registers = 40, share = 65536 / (everybody * blocks) / 8 * 8;
  static constexpr int registers = std::min((share * everybody - helper_registers * helpers) / threads / 8 * 8, 240);

  // The queries' gradients, (queries, width): how the warps share them, in pieces that fit in registers.
  static constexpr int row_tiles = queries / 16, column_warps = warps / row_tiles, columns = width / column_warps;
  static constexpr int piece = columns <= 64 ? columns : columns / 2, pieces = columns / piece;
  static_assert(warps % row_tiles == 0 && width % (column_warps * 16) == 0 && piece % 16 == 0 && queries % strip == 0);
};

struct Operands {
  const void *qkv, *y, *g;
  const float *log_sums, *products;
  void* dqkv;
  float* sums;  ///< what blocks pass on: (heads, tiles of queries, pieces, piece / 8, threads, 4)
  int* turns;   ///< how many blocks have added to a tile, (heads, tiles of queries)
};

/// The sum of the products of two rows of a head, by `lanes` neighbouring threads, valid in all of them.
template <class T>
__device__ __forceinline__ float multiply_row(const T* a, const T* b, int size, int lanes, bool aligned) {
  float sum = 0;
  const int lane = threadIdx.x % lanes;
  for (int i = lane * 8; i < size; i += lanes * 8) {
    Vector<T, 8> x, y;
    if (aligned) {
      x = read_vector<8>(a + i);
      y = read_vector<8>(b + i);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) x.values[k] = a[i + k], y.values[k] = b[i + k];
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += convert<float>(x.values[k]) * convert<float>(y.values[k]);
  }
  for (int step = lanes / 2; step > 0; step /= 2) sum += shuffle_xor(sum, step);
  return sum;
}

/// products (B, H, T) = the sum of y g over each head; nobody has had a turn.
template <class T>
__global__ void __launch_bounds__(block_size) multiply_results(const T* y, const T* g, float* products, int* turns, std::int64_t tiles,
                                                               int lanes, __grid_constant__ const Heads all) {
  const std::int64_t thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / lanes;
  if (thread < tiles) turns[thread] = 0;
  const bool is_there = row < std::int64_t(all.count()) * all.length;
  const std::int64_t at = is_there ? row * all.head_dim : 0;
  const float product = multiply_row(y + at, g + at, all.head_dim, lanes, all.aligned);
  const std::int64_t token = row / all.heads, sequence = token / all.length;
  const int head = static_cast<int>(row % all.heads);
  if (is_there && thread % lanes == 0) products[(sequence * all.heads + head) * all.length + token % all.length] = product;
}

/// Waits until that many blocks have added, and sees what they did.
__device__ __forceinline__ void wait_turn(const int* turn, int blocks) {
  int value;
  do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];\n" : "=r"(value) : "l"(turn) : "memory");
  while (value != blocks);
}
/// Shows what this thread did, and what it knows that others did, to the next block.
__device__ __forceinline__ void pass_turn(int* turn, int blocks) {
  __threadfence();
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;\n" ::"l"(turn), "r"(blocks) : "memory");
}

/// Adds in global memory, without waiting.
__device__ __forceinline__ void add_4(float4* to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) atomicAdd(reinterpret_cast<float*>(to) + i, x[i]);
#endif
}

// Barriers among some warps of a block, by number. Who arrives does not wait; who waits sees what all did before.
enum Barrier { scores_ready = 1, turn_is_here = 2, tile_ready = 3, tile_done = 5 };  // of the last two, one for even and one for odd tiles
__device__ __forceinline__ void arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void wait(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

template <class T, bool drops, class C>
__global__ void __launch_bounds__(C::everybody, C::blocks)
    attend_grad(__grid_constant__ const Operands operands, __grid_constant__ const Heads all) {
  extern __shared__ uint4 shared[];
  constexpr int width = C::width, depth = width / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  // The keys that most queries see go first.
  const int key_block = blockIdx.x / all.count(), at = blockIdx.x % all.count(), sequence = at / all.heads, head = at % all.heads;
  const int first_key = key_block * C::keys, key0 = first_key + warp * 16, opened = all.opened(sequence);
  const std::int64_t part = all.row_size(), stride = 3 * part;
  const std::int64_t from = std::int64_t(sequence) * all.length * stride + head * all.head_dim,
                     from_y = std::int64_t(sequence) * all.length * part + head * all.head_dim;
  const T *const q = static_cast<const T*>(operands.qkv) + from, *const k = q + part, *const v = k + part;
  const T *const y = static_cast<const T*>(operands.y) + from_y, *const g = static_cast<const T*>(operands.g) + from_y;
  T *const dq = static_cast<T*>(operands.dqkv) + from, *const dk = dq + part, *const dv = dk + part;
  const float* const log_sums = operands.log_sums + std::int64_t(at) * all.length;
  const float* const products = operands.products + std::int64_t(at) * all.length;

  const unsigned k_tile = tile_address(shared), v_tile = k_tile + C::key_bytes, stages = v_tile + C::key_bytes;
  const int tiles = (all.length + C::queries - 1) / C::queries, begin = all.causal && first_key >= opened ? first_key / C::queries : 0;
  const bool is_alone = all.length <= C::queries && all.length <= C::keys;  // then the products of y and g are computed here
  int* const turns = operands.turns + std::int64_t(at) * tiles;
  const auto stage_of = [&](int tile) { return stages + tile % 2 * (C::stage_bytes + C::score_bytes); };
  // By threads numbered from `thread` on.
  const auto load_stage = [&]<int threads>(int tile, int thread) {
    const unsigned to = stage_of(tile);
    const int first = tile * C::queries;
    load_tile<T, width, C::queries, threads>(to, q, stride, first, all, thread);
    load_tile<T, width, C::queries, threads>(to + C::query_bytes, g, part, first, all, thread);
    // Zeros beyond the last query: there q and g are zero, too, and so is what they give.
    for (int i = thread; i < 2 * C::queries; i += threads) {
      const int row = first + i % C::queries;
      const bool is_product = i >= C::queries;
      if (is_product && is_alone) break;
      const float* const place = is_product ? products : log_sums;
      copy_async_4(to + 2 * C::query_bytes + i * 4, row < all.length ? place + row : place, row < all.length);
    }
    commit_copies();
  };
  const int last_tile = tiles - 1;

  if constexpr (C::helpers > 0) {
    if (warp >= C::warps) {  // Note [Helpers]
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      give_registers<C::helper_registers>();
#endif
      const int helper = threadIdx.x - C::threads;
      const bool is_first = helper<32, has_turns = gridDim.x> all.count();
      for (int tile = last_tile; tile >= begin; --tile) {
        if (tile > begin) {
          load_stage.template operator()<C::helpers>(tile - 1, helper);
          wait_copies<0>();
          arrive(tile_ready + (tile - 1) % 2, C::everybody);
        }
        if (is_first && key_block > 0) {
          if (lane == 0) wait_turn(turns + tile, key_block);
          __syncwarp();
          arrive(turn_is_here, C::threads + 32);
        }
        wait(tile_done + tile % 2, C::everybody);
        if (helper == 0 && has_turns) pass_turn(turns + tile, key_block + 1);
        __syncwarp();
      }
      return;
    }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    take_registers<C::registers>();
#endif
  }

  load_tile<T, width, C::keys, C::threads>(k_tile, k, stride, first_key, all);
  load_tile<T, width, C::keys, C::threads>(v_tile, v, stride, first_key, all);
  load_stage.template operator()<C::threads>(last_tile, threadIdx.x);
  if (is_alone) {
    constexpr int lanes = width / 8 <= 4 ? 4 : width / 8 <= 8 ? 8 : 16;
    float* const to =
        reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(shared) + (stage_of(0) - k_tile) + 2 * C::query_bytes) + C::queries;
    for (int row = threadIdx.x / lanes; row < C::queries; row += C::threads / lanes) {
      const std::int64_t place = row < all.length ? row * part : 0;
      const float product = multiply_row(y + place, g + place, all.head_dim, lanes, all.aligned);
      if (threadIdx.x % lanes == 0) to[row] = row < all.length ? product : 0;
    }
  }

  const std::uint64_t base = drops ? draws_base(all) : 0;
  float padding[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) padding[half] = padding2_of(all, sequence, key0 + group + half * 8);
  unsigned keys[C::keeps_fragments ? depth : 1][4], values[C::keeps_fragments ? depth : 1][4];
  float k_sums[width / 8][4] = {}, v_sums[width / 8][4] = {};
  const auto k_place = Places<width>::left(k_tile), v_place = Places<width>::left(v_tile);
  wait_copies<0>();
  wait(scores_ready, C::threads);
  if constexpr (C::keeps_fragments)
#pragma unroll
    for (int d = 0; d < depth; ++d) {
      load_matrices(keys[d], k_place(warp * 16, 2 * d));
      load_matrices(values[d], v_place(warp * 16, 2 * d));
    }

  for (int tile = last_tile; tile >= begin; --tile) {
    if (tile < last_tile) wait(tile_ready + tile % 2, C::everybody);
    const int first_query = tile * C::queries;
    const unsigned q_tile = stage_of(tile), g_tile = q_tile + C::query_bytes, score_tile = q_tile + C::stage_bytes;
    const float* const rows =
        reinterpret_cast<const float*>(reinterpret_cast<const unsigned char*>(shared) + (g_tile + C::query_bytes - k_tile));

    // A strip goes through three stages, and the next one's products are begun before the last stage, which needs not wait for them.
    float s[C::strip / 8][4], ds[C::strip / 8][4];  // (keys, queries)
    unsigned weights[C::strip / 16][4], gradients[C::strip / 16][4];
    const auto is_seen = [&](int strip) {
      const int query0 = first_query + strip;
      return key0 < all.length && query0 < all.length && !(all.causal && key0 >= opened && key0 >= query0 + C::strip);
    };
    const auto multiply_strip = [&](int strip) {
      const auto q_right = Places<width>::right(q_tile), g_right = Places<width>::right(g_tile);
#pragma unroll
      for (int n = 0; n < C::strip / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[n][e] = ds[n][e] = 0;
#pragma unroll
      for (int d = 0; d < depth; ++d) {
        unsigned a[2][4];
        if constexpr (C::keeps_fragments) {
#pragma unroll
          for (int e = 0; e < 4; ++e) a[0][e] = keys[d][e], a[1][e] = values[d][e];
        } else {
          load_matrices(a[0], k_place(warp * 16, 2 * d));
          load_matrices(a[1], v_place(warp * 16, 2 * d));
        }
#pragma unroll
        for (int n = 0; n < C::strip / 16; ++n) {
          unsigned b[4];
          load_matrices(b, q_right(strip + n * 16, 2 * d));
          multiply<T>(s[2 * n], a[0], b[0], b[1]);
          multiply<T>(s[2 * n + 1], a[0], b[2], b[3]);
          load_matrices(b, g_right(strip + n * 16, 2 * d));
          multiply<T>(ds[2 * n], a[1], b[0], b[1]);
          multiply<T>(ds[2 * n + 1], a[1], b[2], b[3]);
        }
      }
    };
    const auto differentiate_strip = [&](int strip) {
      const int query0 = first_query + strip;
      const bool is_masked = all.padding || key0 + 16 > all.length || (all.causal && key0 + 15 > query0);
#pragma unroll
      for (int n = 0; n < C::strip / 16; ++n) {
        unsigned kept[2];  // of queries 2 pair and 2 pair + 1: the lower half's bits are keys, and those of the upper half 8 queries on
        if constexpr (drops) {
          const unsigned drawn = draw_kept(all, base, (std::int64_t(at) * all.length + query0 + n * 16) * all.length + key0);
          kept[0] = __shfl_sync(whole_warp, drawn, pair * 8) >> group;
          kept[1] = __shfl_sync(whole_warp, drawn, pair * 8 + 4) >> group;
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = n * 2 + j, place = strip + column * 8 + pair * 2;
          const float2 log_sum = *reinterpret_cast<const float2*>(rows + place),
                       product = *reinterpret_cast<const float2*>(rows + C::queries + place);
          float p[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) p[e] = s[column][e] * all.scale2 - (e % 2 ? log_sum.y : log_sum.x);
          if (is_masked)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int key = key0 + group + e / 2 * 8;
              const bool is_visible = !all.causal || key < opened || key <= query0 + column * 8 + pair * 2 + e % 2;
              p[e] = is_visible ? p[e] + padding[e / 2] : -INFINITY;
            }
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            p[e] = exp2_fast(p[e]);
            float weight = p[e], gradient = ds[column][e];
            if constexpr (drops) {
              const bool is_kept = kept[e % 2] >> (e / 2 * 8 + j * 16) & 1;
              weight = is_kept ? p[e] : 0;
              gradient = is_kept ? gradient * all.inverse_keep : 0;
            }
            s[column][e] = weight;
            ds[column][e] = p[e] * (gradient - (e % 2 ? product.y : product.x));
          }
        }
        pack_left<T>(weights[n], s[2 * n], s[2 * n + 1]);
        pack_left<T>(gradients[n], ds[2 * n], ds[2 * n + 1]);
      }
    };
    const auto add_strip = [&](int strip) {
      const auto q_turned = Places<width>::left(q_tile), g_turned = Places<width>::left(g_tile);
#pragma unroll
      for (int n = 0; n < C::strip / 16; ++n)
#pragma unroll
        for (int d = 0; d < depth; ++d) {
          unsigned b[4];
          load_matrices_turned(b, g_turned(strip + n * 16, 2 * d));
          multiply<T>(v_sums[2 * d], weights[n], b[0], b[1]);
          multiply<T>(v_sums[2 * d + 1], weights[n], b[2], b[3]);
          load_matrices_turned(b, q_turned(strip + n * 16, 2 * d));
          multiply<T>(k_sums[2 * d], gradients[n], b[0], b[1]);
          multiply<T>(k_sums[2 * d + 1], gradients[n], b[2], b[3]);
        }
    };

    if (is_seen(0)) multiply_strip(0);
#pragma unroll 1
    for (int strip = 0; strip < C::queries; strip += C::strip) {
      const bool is_here = is_seen(strip);
      if (is_here) {
        differentiate_strip(strip);
      } else {
#pragma unroll
        for (int n = 0; n < C::strip / 16; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) gradients[n][e] = 0;
      }
#pragma unroll
      for (int n = 0; n < C::strip / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned to = score_tile + Tile<C::queries>::place(warp * 16 + group + half * 8, strip / 8 + n) + pair * 4;
          asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to), "r"(gradients[n / 2][n % 2 * 2 + half]) : "memory");
        }
      if (strip + C::strip < C::queries && is_seen(strip + C::strip)) multiply_strip(strip + C::strip);
      if (is_here) add_strip(strip);
    }

    // The queries' gradients: what the blocks before have summed up, and the product of this one.
    const int last_block = (all.causal ? max(min(first_query + C::queries, all.length), opened) - 1 : all.length - 1) / C::keys;
    const int row = warp % C::row_tiles * 16, column = warp / C::row_tiles * C::columns;
    const int seen = all.causal ? max(min(first_query + row + 16, all.length), opened) : all.length;  // keys that this warp's queries see
    const int deep = max(min(C::warps, (seen - first_key + 15) / 16), 0);
    float4* const passed =
        reinterpret_cast<float4*>(operands.sums) + (std::int64_t(at) * tiles + tile) * (C::queries * width / 4) + threadIdx.x;
    wait(scores_ready, C::threads);
#pragma unroll
    for (int p = 0; p < C::pieces; ++p) {
      float sums[C::piece / 8][4] = {};
      const auto left = Places<C::queries>::right(score_tile);
      const auto right = Places<width>::left(k_tile);
#pragma unroll 2
      for (int n = 0; n < deep; ++n) {
        unsigned a[4];
        load_matrices_turned(a, left(n * 16, row / 8));
#pragma unroll
        for (int d = 0; d < C::piece / 16; ++d) {
          unsigned b[4];
          load_matrices_turned(b, right(n * 16, (column + p * C::piece) / 8 + 2 * d));
          multiply<T>(sums[2 * d], a, b[0], b[1]);
          multiply<T>(sums[2 * d + 1], a, b[2], b[3]);
        }
      }
      if (p == 0 && key_block > 0) wait(turn_is_here, C::threads + 32);
      if (key_block < last_block) {
#pragma unroll
        for (int d = 0; d < C::piece / 8; ++d) {
          float4* const to = passed + (p * (C::piece / 8) + d) * C::threads;
          if (key_block > 0) add_4(to, sums[d]);
          else __stcg(to, make_float4(sums[d][0], sums[d][1], sums[d][2], sums[d][3]));
        }
      } else {
        if (key_block > 0)
#pragma unroll
          for (int d = 0; d < C::piece / 8; ++d) {
            const float4 before = __ldcg(passed + (p * (C::piece / 8) + d) * C::threads);
            sums[d][0] += before.x, sums[d][1] += before.y, sums[d][2] += before.z, sums[d][3] += before.w;
          }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int query = first_query + row + group + half * 8;
          if (query < all.length)
#pragma unroll
            for (int d = 0; d < C::piece / 8; ++d) {
              const int place = column + p * C::piece + d * 8;
              if (place < all.head_dim)
                *reinterpret_cast<unsigned*>(dq + query * stride + place + pair * 2) =
                    pack_pair<T>(sums[d][half * 2] * all.scale, sums[d][half * 2 + 1] * all.scale);
            }
        }
      }
    }
    if constexpr (C::helpers > 0) arrive(tile_done + tile % 2, C::everybody);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = key0 + group + half * 8;
    if (key >= all.length) continue;
#pragma unroll
    for (int d = 0; d < width / 8; ++d)
      if (d * 8 < all.head_dim) {
        const std::int64_t place = key * stride + d * 8 + pair * 2;
        *reinterpret_cast<unsigned*>(dk + place) = pack_pair<T>(k_sums[d][half * 2] * all.scale, k_sums[d][half * 2 + 1] * all.scale);
        *reinterpret_cast<unsigned*>(dv + place) =
            pack_pair<T>(v_sums[d][half * 2] * all.inverse_keep, v_sums[d][half * 2 + 1] * all.inverse_keep);
      }
  }
}

template <class T, bool drops, class C>
void launch_grad(const View& qkv, const View& y, const View& log_sums, const View& g, const View& dqkv, const Heads& all) {
  const std::int64_t heads = std::int64_t(all.batch) * all.heads, tiles = (all.length + C::queries - 1) / C::queries,
                     blocks = (all.length + C::keys - 1) / C::keys;
  const bool is_alone = tiles == 1 && blocks == 1;
  const auto bytes_if = [](bool is_needed, std::int64_t count) { return is_needed ? static_cast<std::size_t>(count) * 4 : 0; };
  const Workspace products(bytes_if(!is_alone, heads * all.length), qkv.stream);
  const Workspace turns(bytes_if(blocks > 1, heads * tiles), qkv.stream);
  const Workspace sums(bytes_if(blocks > 1, heads * tiles * C::queries * C::width), qkv.stream);
  if (!is_alone) {
    int lanes = 1;
    while (lanes * 8 < all.head_dim) lanes *= 2;
    launch(multiply_results<T>, blocks_for(heads * all.length * lanes), block_size, 0, qkv.stream, y.as<const T>(), g.as<const T>(),
           products.as<float>(), turns.as<int>(), blocks > 1 ? heads * tiles : 0, lanes, all);
  }
  const Operands operands{qkv.data,  y.data,           g.data,         log_sums.as<const float>(), products.as<const float>(),
                          dqkv.data, sums.as<float>(), turns.as<int>()};
  launch_tiles(attend_grad<T, drops, C>, blocks * heads, C::everybody, C::bytes(tiles > 1 ? 2 : 1), qkv.stream, operands, all);
}

}  // namespace

void flash_attention_grad(Cuda, const View& qkv, const View& y, const View& log_sums, const View& g, const Attention& attention,
                          const View& dqkv) {
  if (y.numel() == 0) return;
  Heads all = heads_of(qkv, attention);
  all.aligned = all.aligned && is_aligned(y.data, 16) && is_aligned(g.data, 16);
  dispatch(qkv.dtype, all, [&]<class T, bool drops>() {
    dispatch_width(all.head_dim, [&]<int width>() {
      if constexpr (width <= 32) {
        if (all.length <= 64) return launch_grad<T, drops, Cut<width, 4, 64, 16, 0, 4>>(qkv, y, log_sums, g, dqkv, all);
      }
      launch_grad<T, drops, Cut<width, 8, width <= 64 ? 128 : 64, 32, 128, 1>>(qkv, y, log_sums, g, dqkv, all);
    });
  });
}

}  // namespace tern::kernels
