#include "cuda/allocator.h"
#include "cuda/flash_attention.cuh"

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
namespace tern::kernels {

using namespace gpu;
using namespace gpu::flash;

namespace {

/// How a kernel cuts its work.
template <int width_, int warps_, int queries_, int strip_, int blocks_>
struct Cut {
  static constexpr int width = width_;      ///< of a head, filled up
  static constexpr int warps = warps_;      ///< of a block
  static constexpr int queries = queries_;  ///< of a tile
  static constexpr int strip = strip_;      ///< queries whose scores a warp has at a time
  static constexpr int blocks = blocks_;    ///< that a multiprocessor has registers for, at least
  static constexpr int keys = warps * 16, threads = warps * 32;
  static constexpr bool keeps_fragments = width <= 64;  ///< of keys and values, in registers
  static constexpr int key_bytes = Tile<width>::bytes(keys), query_bytes = Tile<width>::bytes(queries), score_bytes = Tile<queries>::bytes(keys);
  static constexpr int row_bytes = queries * 2 * static_cast<int>(sizeof(float));  ///< log_sums and products
  static constexpr int stage_bytes = 2 * query_bytes + row_bytes;
  static constexpr int bytes(int stages) { return 2 * key_bytes + score_bytes + stages * stage_bytes; }

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
__global__ void __launch_bounds__(block_size) multiply_results(const T* y, const T* g, float* products, int* turns, std::int64_t tiles, int lanes,
                                                               __grid_constant__ const Heads all) {
  const std::int64_t thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / lanes;
  if (thread < tiles) turns[thread] = 0;
  const bool is_there = row < std::int64_t(all.count()) * all.length;
  const std::int64_t at = is_there ? row * all.head_dim : 0;
  const float product = multiply_row(y + at, g + at, all.head_dim, lanes, all.aligned);
  const std::int64_t token = row / all.heads, sequence = token / all.length;
  const int head = static_cast<int>(row % all.heads);
  if (is_there && thread % lanes == 0) products[(sequence * all.heads + head) * all.length + token % all.length] = product;
}

__device__ __forceinline__ int read_turn(const int* turn) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];\n" : "=r"(value) : "l"(turn) : "memory");
  return value;
}
__device__ __forceinline__ void write_turn(int* turn, int value) { asm volatile("st.release.gpu.global.b32 [%0], %1;\n" ::"l"(turn), "r"(value) : "memory"); }

template <class T, class C>
__global__ void __launch_bounds__(C::threads, C::blocks) attend_grad(__grid_constant__ const Operands operands, __grid_constant__ const Heads all) {
  extern __shared__ uint4 shared[];
  constexpr int width = C::width, depth = width / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  // The keys that most queries see go first.
  const int key_block = blockIdx.x / all.count(), at = blockIdx.x % all.count(), sequence = at / all.heads, head = at % all.heads;
  const int first_key = key_block * C::keys, key0 = first_key + warp * 16, opened = all.opened(sequence);
  const std::int64_t part = all.row_size(), stride = 3 * part;
  const std::int64_t from = std::int64_t(sequence) * all.length * stride + head * all.head_dim, from_y = std::int64_t(sequence) * all.length * part + head * all.head_dim;
  const T *const q = static_cast<const T*>(operands.qkv) + from, *const k = q + part, *const v = k + part;
  const T *const y = static_cast<const T*>(operands.y) + from_y, *const g = static_cast<const T*>(operands.g) + from_y;
  T *const dq = static_cast<T*>(operands.dqkv) + from, *const dk = dq + part, *const dv = dk + part;
  const float* const log_sums = operands.log_sums + std::int64_t(at) * all.length;
  const float* const products = operands.products + std::int64_t(at) * all.length;

  const unsigned k_tile = shared_address(shared), v_tile = k_tile + C::key_bytes, score_tile = v_tile + C::key_bytes, stages = score_tile + C::score_bytes;
  const int tiles = (all.length + C::queries - 1) / C::queries, begin = all.causal && first_key >= opened ? first_key / C::queries : 0;
  const bool is_alone = all.length <= C::queries && all.length <= C::keys;  // then the products of y and g are computed here
  const auto load_stage = [&](int tile) {
    const unsigned to = stages + tile % 2 * C::stage_bytes;
    const int first = tile * C::queries;
    load_tile<T, width, C::queries, C::threads>(to, q, stride, first, all);
    load_tile<T, width, C::queries, C::threads>(to + C::query_bytes, g, part, first, all);
    // Zeros beyond the last query: there q and g are zero, too, and so is what they give.
    for (int i = threadIdx.x; i < 2 * C::queries; i += C::threads) {
      const int row = first + i % C::queries;
      const bool is_product = i >= C::queries;
      if (is_product && is_alone) break;
      const float* const place = is_product ? products : log_sums;
      copy_async_4(to + 2 * C::query_bytes + i * 4, row < all.length ? place + row : place, row < all.length);
    }
  };
  load_tile<T, width, C::keys, C::threads>(k_tile, k, stride, first_key, all);
  load_tile<T, width, C::keys, C::threads>(v_tile, v, stride, first_key, all);
  const int last_tile = tiles - 1;
  load_stage(last_tile);
  commit_copies();
  if (is_alone) {
    constexpr int lanes = width / 8 <= 4 ? 4 : width / 8 <= 8 ? 8 : 16;
    float* const to = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(shared) + (stages - k_tile) + 2 * C::query_bytes) + C::queries;
    for (int row = threadIdx.x / lanes; row < C::queries; row += C::threads / lanes) {
      const std::int64_t place = row < all.length ? row * part : 0;
      const float product = multiply_row(y + place, g + place, all.head_dim, lanes, all.aligned);
      if (threadIdx.x % lanes == 0) to[row] = row < all.length ? product : 0;
    }
  }

  const std::uint64_t base = all.drop_bound ? draws_base(all) : 0;
  float padding[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) padding[half] = padding2_of(all, sequence, key0 + group + half * 8);
  unsigned keys[C::keeps_fragments ? depth : 1][4], values[C::keeps_fragments ? depth : 1][4];
  float k_sums[width / 8][4] = {}, v_sums[width / 8][4] = {};
  const auto k_place = Places<width>::left(k_tile), v_place = Places<width>::left(v_tile);
  int finished = -1;  // the tile that the next block may add to

  for (int tile = last_tile; tile >= begin; --tile) {
    wait_copies<0>();
    __syncthreads();
    if (finished >= 0 && threadIdx.x == 0) write_turn(operands.turns + std::int64_t(at) * tiles + finished, key_block + 1);
    finished = -1;
    if constexpr (C::keeps_fragments) {
      if (tile == last_tile)
#pragma unroll
        for (int d = 0; d < depth; ++d) {
          load_matrices(keys[d], k_place(warp * 16, 2 * d));
          load_matrices(values[d], v_place(warp * 16, 2 * d));
        }
    }
    if (tile > begin) load_stage(tile - 1);
    commit_copies();

    const int first_query = tile * C::queries;
    const unsigned q_tile = stages + tile % 2 * C::stage_bytes, g_tile = q_tile + C::query_bytes;
    const float* const rows = reinterpret_cast<const float*>(reinterpret_cast<const unsigned char*>(shared) + (g_tile + C::query_bytes - k_tile));
    const auto q_right = Places<width>::right(q_tile), g_right = Places<width>::right(g_tile);
    const auto q_turned = Places<width>::left(q_tile), g_turned = Places<width>::left(g_tile);

#pragma unroll
    for (int strip = 0; strip < C::queries; strip += C::strip) {
      const int query0 = first_query + strip;
      unsigned gradients[C::strip / 16][4] = {};
      // Else nothing to see for this warp.
      if (key0 < all.length && query0 < all.length && !(all.causal && key0 >= opened && key0 >= query0 + C::strip)) {
        float s[C::strip / 8][4] = {}, ds[C::strip / 8][4] = {};
#pragma unroll
        for (int d = 0; d < depth; ++d) {
          unsigned a[4];
          if constexpr (!C::keeps_fragments) load_matrices(a, k_place(warp * 16, 2 * d));
          const unsigned(&left)[4] = C::keeps_fragments ? keys[C::keeps_fragments ? d : 0] : a;
#pragma unroll
          for (int n = 0; n < C::strip / 16; ++n) {
            unsigned b[4];
            load_matrices(b, q_right(strip + n * 16, 2 * d));
            multiply<T>(s[2 * n], left, b[0], b[1]);
            multiply<T>(s[2 * n + 1], left, b[2], b[3]);
          }
        }
#pragma unroll
        for (int d = 0; d < depth; ++d) {
          unsigned a[4];
          if constexpr (!C::keeps_fragments) load_matrices(a, v_place(warp * 16, 2 * d));
          const unsigned(&left)[4] = C::keeps_fragments ? values[C::keeps_fragments ? d : 0] : a;
#pragma unroll
          for (int n = 0; n < C::strip / 16; ++n) {
            unsigned b[4];
            load_matrices(b, g_right(strip + n * 16, 2 * d));
            multiply<T>(ds[2 * n], left, b[0], b[1]);
            multiply<T>(ds[2 * n + 1], left, b[2], b[3]);
          }
        }

        const bool is_masked = all.padding || key0 + 16 > all.length || (all.causal && key0 + 15 > query0);
        unsigned weights[C::strip / 16][4];
#pragma unroll
        for (int n = 0; n < C::strip / 16; ++n) {
          unsigned kept[2];  // of queries 2 pair and 2 pair + 1: the lower half's bits are keys, and those of the upper half 8 queries on
          if (all.drop_bound) {
            const unsigned drawn = draw_kept(all, base, (std::int64_t(at) * all.length + query0 + n * 16) * all.length + key0);
            kept[0] = __shfl_sync(whole_warp, drawn, pair * 8) >> group;
            kept[1] = __shfl_sync(whole_warp, drawn, pair * 8 + 4) >> group;
          }
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int column = n * 2 + j, place = strip + column * 8 + pair * 2;
            const float2 log_sum = *reinterpret_cast<const float2*>(rows + place), product = *reinterpret_cast<const float2*>(rows + C::queries + place);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int side = e % 2, half = e / 2;
              const float shift = side ? log_sum.y : log_sum.x;
              float p;
              if (is_masked) {
                const int key = key0 + group + half * 8;
                const bool is_visible = !all.causal || key < opened || key <= query0 + column * 8 + pair * 2 + side;
                p = is_visible ? exp2_fast(s[column][e] * all.scale2 + (padding[half] - shift)) : 0;
              } else {
                p = exp2_fast(s[column][e] * all.scale2 - shift);
              }
              float weight = p, gradient = ds[column][e];
              if (all.drop_bound) {
                const bool is_kept = kept[side] >> (half * 8 + j * 16) & 1;
                weight = is_kept ? p : 0;
                gradient = is_kept ? gradient * all.inverse_keep : 0;
              }
              s[column][e] = weight;
              ds[column][e] = p * (gradient - (side ? product.y : product.x));
            }
          }
          pack_left<T>(weights[n], s[2 * n], s[2 * n + 1]);
          pack_left<T>(gradients[n], ds[2 * n], ds[2 * n + 1]);
        }

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
      }
#pragma unroll
      for (int n = 0; n < C::strip / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned to = score_tile + Tile<C::queries>::place(warp * 16 + group + half * 8, strip / 8 + n) + pair * 4;
          asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to), "r"(gradients[n / 2][n % 2 * 2 + half]) : "memory");
        }
    }

    // The queries' gradients: what the blocks before have summed up, and the product of this one.
    const int last_block = (all.causal ? max(min(first_query + C::queries, all.length), opened) - 1 : all.length - 1) / C::keys;
    const int row = warp % C::row_tiles * 16, column = warp / C::row_tiles * C::columns;
    const int seen = all.causal ? max(min(first_query + C::queries, all.length), opened) : all.length;
    const int deep = min(C::warps, (seen - first_key + 15) / 16);
    float4* const passed = reinterpret_cast<float4*>(operands.sums) + (std::int64_t(at) * tiles + tile) * (C::queries * width / 4) + threadIdx.x;
    if (key_block > 0)
      while (read_turn(operands.turns + std::int64_t(at) * tiles + tile) != key_block) {
      }
#pragma unroll
    for (int p = 0; p < C::pieces; ++p) {
      float sums[C::piece / 8][4] = {};
      if (key_block > 0)
#pragma unroll
        for (int d = 0; d < C::piece / 8; ++d) {
          const float4 before = __ldcg(passed + (p * (C::piece / 8) + d) * C::threads);
          sums[d][0] = before.x, sums[d][1] = before.y, sums[d][2] = before.z, sums[d][3] = before.w;
        }
      if (p == 0) __syncthreads();  // all gradients of scores are there
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
      if (key_block < last_block) {
#pragma unroll
        for (int d = 0; d < C::piece / 8; ++d) __stcg(passed + (p * (C::piece / 8) + d) * C::threads, make_float4(sums[d][0], sums[d][1], sums[d][2], sums[d][3]));
        finished = tile;
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int query = first_query + row + group + half * 8;
          if (query < all.length)
#pragma unroll
            for (int d = 0; d < C::piece / 8; ++d) {
              const int place = column + p * C::piece + d * 8;
              if (place < all.head_dim)
                *reinterpret_cast<unsigned*>(dq + query * stride + place + pair * 2) = pack<T>(sums[d][half * 2] * all.scale, sums[d][half * 2 + 1] * all.scale);
            }
        }
      }
    }
  }
  if (finished >= 0) {
    __syncthreads();
    if (threadIdx.x == 0) write_turn(operands.turns + std::int64_t(at) * tiles + finished, key_block + 1);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = key0 + group + half * 8;
    if (key >= all.length) continue;
#pragma unroll
    for (int d = 0; d < width / 8; ++d)
      if (d * 8 < all.head_dim) {
        const std::int64_t place = key * stride + d * 8 + pair * 2;
        *reinterpret_cast<unsigned*>(dk + place) = pack<T>(k_sums[d][half * 2] * all.scale, k_sums[d][half * 2 + 1] * all.scale);
        *reinterpret_cast<unsigned*>(dv + place) = pack<T>(v_sums[d][half * 2] * all.inverse_keep, v_sums[d][half * 2 + 1] * all.inverse_keep);
      }
  }
}

template <class T, class C>
void launch_grad(const View& qkv, const View& y, const View& log_sums, const View& g, const View& dqkv, const Heads& all) {
  const std::int64_t heads = std::int64_t(all.batch) * all.heads, tiles = (all.length + C::queries - 1) / C::queries, blocks = (all.length + C::keys - 1) / C::keys;
  const bool is_alone = tiles == 1 && blocks == 1;
  const auto bytes_if = [](bool is_needed, std::int64_t count) { return is_needed ? static_cast<std::size_t>(count) * 4 : 0; };
  const Workspace products(bytes_if(!is_alone, heads * all.length), qkv.stream);
  const Workspace turns(bytes_if(blocks > 1, heads * tiles), qkv.stream);
  const Workspace sums(bytes_if(blocks > 1, heads * tiles * C::queries * C::width), qkv.stream);
  if (!is_alone) {
    int lanes = 1;
    while (lanes * 8 < all.head_dim) lanes *= 2;
    launch(multiply_results<T>, blocks_for(heads * all.length * lanes), block_size, 0, qkv.stream, y.as<const T>(), g.as<const T>(), products.as<float>(),
           turns.as<int>(), blocks > 1 ? heads * tiles : 0, lanes, all);
  }
  const Operands operands{qkv.data, y.data, g.data, log_sums.as<const float>(), products.as<const float>(), dqkv.data, sums.as<float>(), turns.as<int>()};
  launch_tiles(attend_grad<T, C>, blocks * heads, C::threads, C::bytes(tiles > 1 ? 2 : 1), qkv.stream, operands, all);
}

}  // namespace

void flash_attention_grad(Cuda, const View& qkv, const View& y, const View& log_sums, const View& g, const Attention& attention, const View& dqkv) {
  if (y.numel() == 0) return;
  Heads all = heads_of(qkv, attention);
  all.aligned = all.aligned && is_aligned(y.data, 16) && is_aligned(g.data, 16);
  dispatch(qkv.dtype, [&]<class T>() {
    dispatch_width(all.head_dim, [&]<int width>() {
      launch_grad<T, Cut<width, 4, 64, 32, 1>>(qkv, y, log_sums, g, dqkv, all);
    });
  });
}

}  // namespace tern::kernels
