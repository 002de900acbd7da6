#include "cuda/attention/flash.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/runtime/allocator.h"

// Flash attention, backward. A block has some keys of one head and walks over the queries in tiles, from the last to the first. With S, P
// and dP transposed, (keys, queries), and delta = the sum of y dy over a query's head:
//
//     S = K Q^T,  P = 2^(S - log_sums),  dP = V dY^T,  dS = P (dP - delta)        dV += P dY,  dK += dS Q,  dQ += dS^T K
//
//     consumer warps, 16 keys each                                   producer warpgroup
//     ------------------------------------------------------------   -----------------------------------------------------------
//     wait stage_full                                                cp.async Q, dY, log_sums, delta of tile i - 1, other stage
//     each query sub-tile: S, dP, dS -> shared; dV, dK -> registers  arrive stage_full
//     wait dS_ready (consumers among themselves)                     wait for the semaphore of dQ's tile i
//     dQ of this block = dS^T K of all warps                         arrive dq_turn
//     wait dq_turn; add to dQ's sums in global memory
//     arrive stage_empty                                             wait stage_empty; give the semaphore to the next block
//
//     shared memory    K, V (keys, d)  |  stage 0: Q, dY (queries, d), log_sums, delta, dS (keys, queries)  |  stage 1: the same
//
// The fragments of P and dS are those of left operands of the products that sum up dV and dK, in registers, over all queries. dQ needs dS
// from all warps, through shared memory, and sums from all blocks of the head:
//
// Note [dQ semaphore]
// The sums of dQ pass from block to block, in global memory and in the order of the keys, so that they are the same in every run (see Note
// [Ordered sums]): a block adds to a tile of queries when those before it have, and the last one that sees the tile writes the result.
// Blocks of a head go over the queries from the last to the first, so that each follows the one before it; they do not wait for one another
// but for the moment in which they start together.
//
// Note [Producer warpgroup]
// Four more warps bring the next tile of queries, wait for the semaphore and pass it on, so that the others wait for neither. They meet at
// named barriers, which alternate from tile to tile where one side could be there twice before the other. On Hopper the producers give most
// of their registers to the consumers. A block that has all keys and queries of its head needs none, and computes delta itself.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::flash;

namespace {

template <int width_, int warps_, int queries_, int sub_queries_, int producers_, int min_blocks_>
struct BackwardConfig {
  static constexpr int width = width_;              ///< of a head, filled up
  static constexpr int warps = warps_;              ///< of consumers
  static constexpr int queries = queries_;          ///< of a tile
  static constexpr int sub_queries = sub_queries_;  ///< of a sub-tile: the scores that a warp has at a time
  static constexpr int producers = producers_;      ///< threads, or 0
  static constexpr int min_blocks = min_blocks_;    ///< that a multiprocessor has registers for
  static constexpr int keys = warps * 16, consumers = warps * 32, threads = consumers + producers;
  static constexpr bool has_whole_head = producers == 0;  ///< each block has all keys and queries of its head, in one tile
  static constexpr bool caches_fragments = width <= 64;   ///< of keys and values, in registers
  static constexpr int key_bytes = SharedTile<width>::bytes(keys), query_bytes = SharedTile<width>::bytes(queries),
                       score_bytes = SharedTile<queries>::bytes(keys);
  static constexpr int row_bytes = queries * 2 * static_cast<int>(sizeof(float));  ///< log_sums and delta
  static constexpr int stage_bytes = 2 * query_bytes + row_bytes + score_bytes;
  static constexpr int bytes(int stages) { return 2 * key_bytes + stages * stage_bytes; }

  // Registers come in eights; consumers take what producers leave of their share.
  static constexpr int producer_registers = 40, share = 65536 / (threads * min_blocks) / 8 * 8;
  static constexpr int consumer_registers = std::min((share * threads - producer_registers * producers) / consumers / 8 * 8, 240);

  // dQ (queries, width): how the warps share it, in pieces that fit in registers.
  static constexpr int row_tiles = queries / 16, column_warps = warps / row_tiles, columns = width / column_warps;
  static constexpr int piece = columns <= 64 ? columns : columns / 2, pieces = columns / piece;
  static_assert(warps % row_tiles == 0 && width % (column_warps * 16) == 0 && piece % 16 == 0 && queries % sub_queries == 0);
};

struct BackwardOperands {
  const void *qkv, *y, *dy;
  const float *log_sums, *delta;  ///< (B, H, T)
  void* dqkv;
  float* dq_sums;   ///< passed from block to block: (heads, tiles of queries, pieces, piece / 8, consumers, 4)
  int* semaphores;  ///< how many blocks have added to a tile, (heads, tiles of queries)
};

/// Named barriers of a block, by number. Of the last two there is one for even and one for odd tiles.
enum Barrier { ds_ready = 1, dq_turn = 2, stage_full = 3, stage_empty = 5 };

/// The sum of the products of two rows of a head, by `lanes` neighbouring threads, valid in all of them.
template <class T>
__device__ __forceinline__ float dot_row(const T* a, const T* b, int size, int lanes, bool aligned) {
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
  return lanes_all_reduce<PlusOp<float>>(sum, lanes);
}

/// delta (B, H, T) = the sum of y dy over each head; and the semaphores are zero.
template <class T>
__global__ void __launch_bounds__(block_size)
    flash_attention_delta(const T* y, const T* dy, float* delta, int* semaphores, std::int64_t tiles, int lanes,
                          __grid_constant__ const AttentionArgs args) {
  const std::int64_t thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / lanes;
  if (thread < tiles) semaphores[thread] = 0;
  const bool is_there = row < std::int64_t(args.batch_heads()) * args.length;
  const std::int64_t at = is_there ? row * args.head_dim : 0;
  const float sum = dot_row(y + at, dy + at, args.head_dim, lanes, args.aligned);
  const std::int64_t token = row / args.heads, sequence = token / args.length;
  const int head = static_cast<int>(row % args.heads);
  if (is_there && thread % lanes == 0) delta[(sequence * args.heads + head) * args.length + token % args.length] = sum;
}

/// A block's part of the work, and its shared memory: what producers and consumers both know.
template <class T, class C>
struct Block {
  static constexpr int width = C::width;
  const AttentionArgs& args;
  // The keys that most queries see go first.
  int key_block, batch_head, sequence, first_key, prefix_len;
  int tiles, begin;  ///< of queries; those from `begin` on see a key of the block
  std::int64_t part, stride;
  const T *q, *k, *v, *y, *dy;
  T *dq, *dk, *dv;
  const float *log_sums, *delta;
  int* semaphores;
  unsigned char* shared;
  unsigned k_tile, v_tile, stages;
  bool is_alone;  ///< has all keys and queries of its head

  __device__ __forceinline__ Block(const BackwardOperands& operands, const AttentionArgs& args_, void* shared_)
      : args(args_), shared(static_cast<unsigned char*>(shared_)) {
    key_block = C::has_whole_head ? 0 : blockIdx.x / args.batch_heads(), batch_head = blockIdx.x % args.batch_heads();
    sequence = batch_head / args.heads, first_key = key_block * C::keys, prefix_len = args.prefix_len(sequence);
    part = args.row_size(), stride = 3 * part;
    const int head = batch_head % args.heads;
    const std::int64_t from = std::int64_t(sequence) * args.length * stride + head * args.head_dim,
                       from_y = std::int64_t(sequence) * args.length * part + head * args.head_dim;
    q = static_cast<const T*>(operands.qkv) + from, k = q + part, v = k + part;
    y = static_cast<const T*>(operands.y) + from_y, dy = static_cast<const T*>(operands.dy) + from_y;
    dq = static_cast<T*>(operands.dqkv) + from, dk = dq + part, dv = dk + part;
    log_sums = operands.log_sums + std::int64_t(batch_head) * args.length;
    delta = operands.delta + std::int64_t(batch_head) * args.length;
    k_tile = shared_address(shared), v_tile = k_tile + C::key_bytes, stages = v_tile + C::key_bytes;
    tiles = (args.length + C::queries - 1) / C::queries;
    begin = args.causal && first_key >= prefix_len ? first_key / C::queries : 0;
    is_alone = C::has_whole_head || (args.length <= C::queries && args.length <= C::keys);
    semaphores = operands.semaphores + std::int64_t(batch_head) * tiles;
  }

  __device__ __forceinline__ unsigned q_tile(int tile) const { return stages + tile % 2 * C::stage_bytes; }
  __device__ __forceinline__ unsigned dy_tile(int tile) const { return q_tile(tile) + C::query_bytes; }
  __device__ __forceinline__ unsigned rows(int tile) const { return q_tile(tile) + 2 * C::query_bytes; }  ///< log_sums, then delta
  __device__ __forceinline__ unsigned ds_tile(int tile) const { return rows(tile) + C::row_bytes; }
  __device__ __forceinline__ float* pointer(unsigned address) const { return reinterpret_cast<float*>(shared + (address - k_tile)); }

  /// By threads numbered from `thread` on.
  template <int threads>
  __device__ __forceinline__ void load_stage(int tile, int thread) const {
    const int first = tile * C::queries;
    load_tile<T, width, C::queries, threads>(q_tile(tile), q, stride, first, args, thread);
    load_tile<T, width, C::queries, threads>(dy_tile(tile), dy, part, first, args, thread);
    // Zeros beyond the last query: there q and dy are zero, too, and so is what they give.
    for (int i = thread; i < 2 * C::queries; i += threads) {
      const int row = first + i % C::queries;
      const bool is_delta = i >= C::queries;
      if (is_delta && is_alone) break;
      const float* const source = is_delta ? delta : log_sums;
      cp_async<4>(rows(tile) + i * 4, row < args.length ? source + row : source, row < args.length);
    }
    cp_async_commit();
  }

  /// delta of the only tile, to its stage.
  __device__ __forceinline__ void compute_delta() const {
    constexpr int lanes = width / 8 <= 4 ? 4 : width / 8 <= 8 ? 8 : 16;
    float* const to = pointer(rows(0)) + C::queries;
    for (int row = threadIdx.x / lanes; row < C::queries; row += C::consumers / lanes) {
      const std::int64_t at = row < args.length ? row * part : 0;
      const float sum = dot_row(y + at, dy + at, args.head_dim, lanes, args.aligned);
      if (threadIdx.x % lanes == 0) to[row] = row < args.length ? sum : 0;
    }
  }

  /// All that a thread of the producer warpgroup does.
  __device__ __forceinline__ void produce() const {
    const int producer = threadIdx.x - C::consumers;
    const bool is_first_warp = producer<32, has_turns = gridDim.x> args.batch_heads();
    for (int tile = tiles - 1; tile >= begin; --tile) {
      if (tile > begin) {
        load_stage<C::producers>(tile - 1, producer);
        cp_async_wait<0>();
        named_barrier_arrive(stage_full + (tile - 1) % 2, C::threads);
      }
      if (is_first_warp && key_block > 0) {
        if (threadIdx.x % 32 == 0) semaphore_wait(semaphores + tile, key_block);
        __syncwarp();
        named_barrier_arrive(dq_turn, C::consumers + 32);
      }
      named_barrier_sync(stage_empty + tile % 2, C::threads);
      if (producer == 0 && has_turns) semaphore_release(semaphores + tile, key_block + 1);
      __syncwarp();
    }
  }
};

/// A consumer warp: 16 keys, whose gradients it sums up in registers, against one sub-tile of queries at a time.
template <class T, bool drops, class C>
struct Consumer {
  static constexpr int width = C::width, sub_queries = C::sub_queries;
  using Scores = FragmentTile<16, sub_queries>;  // (keys, queries)
  using Keys = std::conditional_t<C::caches_fragments, RegisterOperand<16, width>, OperandA<width>>;

  const Block<T, C>& block;
  const AttentionArgs& args;
  int warp, key0;
  std::uint64_t dropout_position;
  float padding[Scores::lane_rows];
  Scores s, dp;
  RegisterOperand<16, sub_queries> p_operand, ds_operand;
  FragmentTile<16, width> dk_sums = {}, dv_sums = {};

  __device__ __forceinline__ explicit Consumer(const Block<T, C>& block_)
      : block(block_), args(block_.args), warp(threadIdx.x / 32), key0(block_.first_key + warp * 16) {
    dropout_position = drops ? args.dropout.position() : 0;
#pragma unroll
    for (int r = 0; r < Scores::lane_rows; ++r) padding[r] = padding_log2(args, block.sequence, key0 + Scores::row_of(r));
  }

  /// The warp's rows of K or V: in registers where they have room.
  static __device__ __forceinline__ Keys operand(const OperandA<width>& rows) {
    if constexpr (C::caches_fragments) {
      Keys cached;
      cached.template assign<T>(rows);
      return cached;
    } else {
      return rows;
    }
  }

  /// Whether any of a sub-tile's queries sees any of the warp's keys.
  __device__ __forceinline__ bool is_visible(int query0) const {
    return key0 < args.length && query0 < args.length && !(args.causal && key0 >= block.prefix_len && key0 >= query0 + sub_queries);
  }

  /// From S and dP of the queries from query0 on, P with dropout and dS, as operands. `rows` has the queries' log_sums, and delta after
  /// those of a tile.
  __device__ __forceinline__ void differentiate(int query0, const float* rows) {
    const bool is_masked = args.padding || key0 + 16 > args.length || (args.causal && key0 + 15 > query0);
    const int group = MmaLanes::group(), member = MmaLanes::member(), prefix_len = block.prefix_len;
#pragma unroll
    for (int n = 0; n < sub_queries / 16; ++n) {
      unsigned kept[2];  // of queries 2 member and 2 member + 1: the lower half's bits are keys, and those of the upper half 8 queries on
      if constexpr (drops) {
        const std::int64_t first = (std::int64_t(block.batch_head) * args.length + query0 + n * 16) * args.length + key0;
        const unsigned drawn = kept_16x16(args, dropout_position, first);
        kept[0] = __shfl_sync(whole_warp, drawn, member * 8) >> group;
        kept[1] = __shfl_sync(whole_warp, drawn, member * 8 + 4) >> group;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = n * 2 + j, first_query = column * 8 + member * 2;
        const float2 log_sum = *reinterpret_cast<const float2*>(rows + first_query),
                     delta = *reinterpret_cast<const float2*>(rows + C::queries + first_query);
        float p[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) p[e] = s.values[0][column][e] * args.scale_log2 - (e % 2 ? log_sum.y : log_sum.x);
        if (is_masked)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = key0 + group + e / 2 * 8;
            const bool is_seen = !args.causal || key < prefix_len || key <= query0 + first_query + e % 2;
            const float padded = p[e] + padding[e / 2];
            p[e] = is_seen ? padded : -INFINITY;
          }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          p[e] = exp2_approx(p[e]);
          float weight = p[e], gradient = dp.values[0][column][e];
          if constexpr (drops) {
            const bool is_kept = kept[e % 2] >> (e / 2 * 8 + j * 16) & 1;
            weight = is_kept ? p[e] : 0;
            gradient = is_kept ? gradient * args.inverse_keep : 0;
          }
          s.values[0][column][e] = weight;
          dp.values[0][column][e] = p[e] * (gradient - (e % 2 ? delta.y : delta.x));
        }
      }
      s.template load<T>(p_operand.values[0][n], 0, n);
      dp.template load<T>(ds_operand.values[0][n], 0, n);
    }
  }

  /// dQ of a tile: this block's product, added to what the blocks before have summed up.
  __device__ __forceinline__ void add_dq(int tile, float4* sums) const {
    const int first_query = tile * C::queries, key_block = block.key_block;
    const int last_query_end = min(first_query + C::queries, args.length);
    const int last_block = (args.causal ? max(last_query_end, block.prefix_len) - 1 : args.length - 1) / C::keys;
    const int row = warp % C::row_tiles * 16, column = warp / C::row_tiles * C::columns;
    // Keys that this warp's queries see.
    const int seen = args.causal ? max(min(first_query + row + 16, args.length), block.prefix_len) : args.length;
    const int depth_tiles = max(min(C::warps, (seen - block.first_key + 15) / 16), 0);
    sums += (std::int64_t(block.batch_head) * block.tiles + tile) * (C::queries * width / 4) + threadIdx.x;
#pragma unroll
    for (int p = 0; p < C::pieces; ++p) {
      const int first_column = column + p * C::piece;
      FragmentTile<16, C::piece> dq = {};
      mma_steps<T, 2>(depth_tiles, Product(dq, OperandAt<C::queries>(block.ds_tile(tile), 0, row / 8),
                                           OperandB<width>(block.k_tile, 0, first_column / 8)));
      if (p == 0 && key_block > 0) named_barrier_sync(dq_turn, C::consumers + 32);
      if (!C::has_whole_head && key_block < last_block) {
#pragma unroll
        for (int d = 0; d < C::piece / 8; ++d) {
          float4* const to = sums + (p * (C::piece / 8) + d) * C::consumers;
          const float (&x)[4] = dq.values[0][d];
          if (key_block > 0) red_add(to, x);
          else __stcg(to, make_float4(x[0], x[1], x[2], x[3]));
        }
      } else {
        if (key_block > 0)
#pragma unroll
          for (int d = 0; d < C::piece / 8; ++d) {
            const float4 before = __ldcg(sums + (p * (C::piece / 8) + d) * C::consumers);
            float (&x)[4] = dq.values[0][d];
            x[0] += before.x, x[1] += before.y, x[2] += before.z, x[3] += before.w;
          }
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (const int query = first_query + row + dq.row_of(r); query < args.length)
            dq.template store_row<T>(r, args.scale, block.dq + query * block.stride, first_column, args.head_dim);
      }
    }
  }

  __device__ __forceinline__ void write_dk_dv() const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (const int key = key0 + Scores::row_of(r); key < args.length) {
        dk_sums.template store_row<T>(r, args.scale, block.dk + key * block.stride, 0, args.head_dim);
        dv_sums.template store_row<T>(r, args.inverse_keep, block.dv + key * block.stride, 0, args.head_dim);
      }
  }
};

template <class T, bool drops, class C>
__global__ void __launch_bounds__(C::threads, C::min_blocks)
    flash_attention_backward(__grid_constant__ const BackwardOperands operands, __grid_constant__ const AttentionArgs args) {
  extern __shared__ uint4 shared[];
  constexpr int width = C::width;
  const Block<T, C> block(operands, args, shared);
  if constexpr (C::producers > 0) {
    if (threadIdx.x >= C::consumers) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      warpgroup_reg_dealloc<C::producer_registers>();
#endif
      return block.produce();
    }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    warpgroup_reg_alloc<C::consumer_registers>();
#endif
  }

  const int last_tile = block.tiles - 1;
  load_tile<T, width, C::keys, C::consumers>(block.k_tile, block.k, block.stride, block.first_key, args);
  load_tile<T, width, C::keys, C::consumers>(block.v_tile, block.v, block.stride, block.first_key, args);
  block.template load_stage<C::consumers>(last_tile, threadIdx.x);
  if (block.is_alone) block.compute_delta();
  Consumer<T, drops, C> warp(block);
  cp_async_wait<0>();
  named_barrier_sync(ds_ready, C::consumers);
  const auto keys = warp.operand(OperandA<width>(block.k_tile, warp.warp * 16));
  const auto values = warp.operand(OperandA<width>(block.v_tile, warp.warp * 16));

  for (int tile = last_tile; tile >= block.begin; --tile) {
    if (tile < last_tile) named_barrier_sync(stage_full + tile % 2, C::threads);
    const int first_query = tile * C::queries;
    const unsigned q_tile = block.q_tile(tile), dy_tile = block.dy_tile(tile);
    const auto multiply_scores = [&](int sub) {  // S = K Q^T, dP = V dY^T
      warp.s = {}, warp.dp = {};
      mma<T, width>(Product(warp.s, keys, OperandBt<width>(q_tile, sub)), Product(warp.dp, values, OperandBt<width>(dy_tile, sub)));
    };

    // The next sub-tile's scores are begun before the sums of dK and dV, which need not wait for them.
    if (warp.is_visible(first_query)) multiply_scores(0);
#pragma unroll 1
    for (int sub = 0; sub < C::queries; sub += C::sub_queries) {
      const bool is_visible = warp.is_visible(first_query + sub);
      if (is_visible) warp.differentiate(first_query + sub, block.pointer(block.rows(tile)) + sub);
      else warp.ds_operand = {};
      warp.ds_operand.template store<C::queries>(block.ds_tile(tile), warp.warp * 16, sub / 8);
      if (const int next = sub + C::sub_queries; next < C::queries && warp.is_visible(first_query + next)) multiply_scores(next);
      if (is_visible)
        mma<T, C::sub_queries>(Product(warp.dv_sums, warp.p_operand, OperandB<width>(dy_tile, sub)),
                               Product(warp.dk_sums, warp.ds_operand, OperandB<width>(q_tile, sub)));
    }

    named_barrier_sync(ds_ready, C::consumers);
    warp.add_dq(tile, reinterpret_cast<float4*>(operands.dq_sums));
    if constexpr (C::producers > 0) named_barrier_arrive(stage_empty + tile % 2, C::threads);
  }
  warp.write_dk_dv();
}

template <class T, bool drops, class C>
void launch_backward(const View& qkv, const View& y, const View& log_sums, const View& dy, const View& dqkv, const AttentionArgs& args) {
  const std::int64_t heads = std::int64_t(args.batch) * args.heads, tiles = (args.length + C::queries - 1) / C::queries,
                     blocks = (args.length + C::keys - 1) / C::keys;
  const bool is_alone = tiles == 1 && blocks == 1;
  const auto bytes_if = [](bool is_needed, std::int64_t count) { return is_needed ? static_cast<std::size_t>(count) * 4 : 0; };
  const Workspace delta(bytes_if(!is_alone, heads * args.length), qkv.stream);
  const Workspace semaphores(bytes_if(blocks > 1, heads * tiles), qkv.stream);
  const Workspace sums(bytes_if(blocks > 1, heads * tiles * C::queries * C::width), qkv.stream);
  if (!is_alone) {
    int lanes = 1;
    while (lanes * 8 < args.head_dim) lanes *= 2;
    launch(flash_attention_delta<T>, blocks_for(heads * args.length * lanes), block_size, 0, qkv.stream, y.as<const T>(), dy.as<const T>(),
           delta.as<float>(), semaphores.as<int>(), blocks > 1 ? heads * tiles : 0, lanes, args);
  }
  const BackwardOperands operands{
      qkv.data, y.data, dy.data, log_sums.as<const float>(), delta.as<const float>(), dqkv.data, sums.as<float>(), semaphores.as<int>()};
  launch(flash_attention_backward<T, drops, C>, blocks_for(blocks * heads, 1), C::threads, C::bytes(tiles > 1 ? 2 : 1), qkv.stream,
         operands, args);
}

}  // namespace

void projection_attention_grad(Cuda, const View& qkv, const View& y, const View& log_sums, const View& g, const Attention& attention,
                               const View& dqkv) {
  if (y.numel() == 0) return;
  AttentionArgs args(qkv, attention);
  args.aligned = args.aligned && is_aligned(y.data, 16) && is_aligned(g.data, 16);
  dispatch(qkv.dtype, args, [&]<class T, bool drops>() {
    dispatch_width(args.head_dim, [&]<int width>() {
      if constexpr (width <= 32) {
        if (args.length <= 64) return launch_backward<T, drops, BackwardConfig<width, 4, 64, 16, 0, 4>>(qkv, y, log_sums, g, dqkv, args);
      }
      launch_backward<T, drops, BackwardConfig<width, 8, width <= 64 ? 128 : 64, 32, 128, 1>>(qkv, y, log_sums, g, dqkv, args);
    });
  });
}

}  // namespace tern::kernels
