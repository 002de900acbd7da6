#include "cuda/attention/hopper_backward.cuh"
#include "tensor/context.h"

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

// Flash attention on Hopper, backward, in float32: Note [Two parts]. A block has 64 keys of one key head, and loops over the tiles of 64
// queries that see them like the 16-bit kernel, whose producer warpgroup it shares; hopper_backward.cu has the formulas. Each of three
// warpgroups computes one gradient, because the sums of one take d / 2 registers and promotion needs as many again:
//
//     producer wg      32 registers    K, V; Q, dY, rows -> full[i]; the semaphore of dQ
//     V warpgroup     184 registers    full[i] -> S; P -> p_full[i]; dV += P dY -> empty[i]
//     K warpgroup     184 registers    full[i] -> dP; p_full[i] -> dS -> p_empty[i], ds_full[i]; dK += dS Q -> empty[i]
//     dQ warpgroup    112 registers    ds_full[i] -> dQ = dS^T K -> ds_empty[i]; turn[i] -> add to the sums in global memory -> added[i]
//
//     shared memory   | K, V (64, d) | ring of Q, dY (64, d) | dS (64, 64) | P (64, 64), f32 | ring of log_sums, delta |
//     d 64, 2 parts      32 KiB         3 x 32 KiB              2 x 16 KiB    2 x 16 KiB        3 x 512                  193.5 KiB
//     d 128, 2 parts     64 KiB         2 x 64 KiB              16 KiB        16 KiB            2 x 512                  225 KiB
//
//     registers       S or dP 32, then 32 for the parts of P or dS; dV or dK d / 2; their product of a tile d / 2:  160 at d = 128
//
// While one warpgroup computes exponentials, differences or additions, the tensor cores multiply for the others: each is one tile behind
// the previous one. P is passed from thread to thread, because both have the same elements; its sign is dropout's mask.
//
// Cycles of a tile at d = 128: products 3840; shared memory: reads of operands 2900, P and dS 500, TMA 512.

template <int width_, int stages_, int p_slots_, int ds_slots_, int parts_>
struct F32BackwardConfig {
  static constexpr int width = width_;                            ///< size of a head, padded: 64 or 128
  static constexpr int stages = stages_;                          ///< pipeline stages of queries
  static constexpr int p_slots = p_slots_, ds_slots = ds_slots_;  ///< 1 or 2
  static constexpr int parts = parts_;
  static constexpr bool promotes = parts == 2;
  static constexpr int keys = 64, queries = 64, groups = 1, threads = 4 * warpgroup;
  using KTile = Tile<width, keys, parts>;
  using QTile = Tile<width, queries, parts>;
  using DsTile = Tile<queries, keys, parts>;
  static constexpr int row_values = 2 * queries;  ///< log_sums and delta of a tile
  static constexpr int stage_bytes = 2 * QTile::bytes, rows_pitch = row_values * 4, loaded_bytes = stage_bytes + rows_pitch;
  static constexpr int p_bytes = keys * queries * 4;
  static constexpr int p_begin = 2 * KTile::bytes + stages * stage_bytes + ds_slots * DsTile::bytes;
  static constexpr int rows_begin = p_begin + p_slots * p_bytes;
  static constexpr std::size_t shared_bytes = rows_begin + stages * rows_pitch + swizzle_span;
  static constexpr int pieces = QTile::blocks;  ///< pieces of dQ, 64 columns each
  static constexpr int consumer_registers = 184, producer_registers = 32, dq_registers = 112;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class C>
struct F32BackwardBarriers : BackwardBarriers<C::stages, C::keys> {
  MBarrier p_full[2], p_empty[2];
};

/// V or K warpgroup: 64 keys, of which it accumulates one gradient.
template <class C, bool general, bool drops>
struct F32BackwardConsumer : BackwardScores<C, general, drops> {
  using Base = BackwardScores<C, general, drops>;
  using KTile = typename C::KTile;
  using QTile = typename C::QTile;
  using Terms = Products<C::parts>;
  using Base::p, Base::memory, Base::read, Base::s, Base::padding, Base::kept;

  F32BackwardBarriers<C>& barriers;
  Slots<C::p_slots> p_slots;
  Slots<C::ds_slots> ds_slots;
  float sums[C::width / 2];
  unsigned operand[C::parts][4][4];

  __device__ __forceinline__ F32BackwardConsumer(const BackwardParams& p_, const BackwardMemory<C>& memory_,
                                                 F32BackwardBarriers<C>& barriers_)
      : Base(p_, memory_, barriers_), barriers(barriers_) {}

  /// s (keys, queries) = keys_tile queries_tile^T: S or dP.
  __device__ __forceinline__ void multiply(unsigned keys_tile, unsigned queries_tile) {
    const std::uint64_t a = wgmma_descriptor(keys_tile, 0), b = wgmma_descriptor(queries_tile, 0);
    warpgroup_arrive();
#pragma unroll
    for (int n = 0; n < Terms::count; ++n) {
      const std::uint64_t left = a + KTile::part_step(Terms::left(n)), right = b + QTile::part_step(Terms::right(n));
      if (n == 0) wgmma_k16_first<f16, false, false>(s, left, right);
#pragma unroll
      for (int i = n == 0; i < C::width / 16; ++i)
        wgmma_k16<f16, false, false>(s, left + KTile::column_step(i), right + QTile::column_step(i), true);
    }
    warpgroup_commit_batch();
    Base::template wait_for<0>(s);
  }
  /// sums += operand queries_tile, 64 columns at a time.
  __device__ __forceinline__ void accumulate(unsigned queries_tile) {
    const std::uint64_t b = wgmma_descriptor(queries_tile, QTile::block_bytes);
    float products[C::pieces][32];
#pragma unroll
    for (int part = 0; part < C::parts; ++part) warpgroup_fence_operand(operand[part]);
    warpgroup_arrive();
#pragma unroll
    for (int piece = 0; piece < C::pieces; ++piece) {
#pragma unroll
      for (int n = 0; n < Terms::count; ++n) {
        const std::uint64_t right = b + piece * (QTile::block_bytes >> 4) + QTile::part_step(Terms::right(n));
        if (n == 0) wgmma_k16_first<f16, true>(products[piece], operand[Terms::left(0)][0], right);
#pragma unroll
        for (int i = n == 0; i < 4; ++i)
          wgmma_k16<f16, true>(products[piece], operand[Terms::left(n)][i], right + QTile::row_step(i), true);
      }
      warpgroup_commit_batch();
    }
    const auto add = [&](int piece) {
#pragma unroll
      for (int i = 0; i < 32; ++i) sums[piece * 32 + i] += products[piece][i];
    };
    if constexpr (C::pieces == 2) {
      Base::template wait_for<1>(products[0]);
      add(0);
    }
    Base::template wait_for<0>(products[C::pieces - 1]);
    add(C::pieces - 1);
  }
  /// Sets two elements of the operand.
  __device__ __forceinline__ void set_operand(int at, float x, float y) {
    unsigned& hi = operand[0][at / 8][at % 8 / 2];
    if constexpr (C::parts == 2) split_pair(x, y, hi, operand[1][at / 8][at % 8 / 2]);
    else hi = pack_pair<f16>(x, y);
  }
  __device__ __forceinline__ unsigned p_place() const {
    return memory.base + C::p_begin + p_slots.index() * C::p_bytes + threadIdx.x % warpgroup * 16;
  }

  /// Computes P from S: for the K warpgroup, and as the operand.
  __device__ __forceinline__ void pass_p() {
    barriers.p_empty[p_slots.index()].wait(p_slots.phase() ^ 1);
    const unsigned to = p_place();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = Base::is_kept(n * 4 + e) ? s[n * 4 + e] : -s[n * 4 + e];
      store_shared(to + n * warpgroup * 16, make_float4(x[0], x[1], x[2], x[3]));
    }
    barriers.p_full[p_slots.index()].arrive_warp();
    ++p_slots.used;
    warpgroup_fence_operand(s);
#pragma unroll
    for (int at = 0; at < 32; at += 2) set_operand(at, Base::is_kept(at) ? s[at] : 0, Base::is_kept(at + 1) ? s[at + 1] : 0);
  }
  /// Computes dS from dP: for the dQ warpgroup, and as the operand. dP and delta are multiplied by these powers of two.
  __device__ __forceinline__ void pass_ds(int stage, float dp_factor, float delta_factor) {
    barriers.p_full[p_slots.index()].wait(p_slots.phase());
    const unsigned from = p_place(), deltas = memory.rows(stage) + C::queries * 4 + threadIdx.x % 4 * 8;
    const float kept_factor = drops ? dp_factor * p.args.inverse_keep : dp_factor;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float4 pair = load_shared<float4>(from + n * warpgroup * 16);
      const float probabilities[4] = {pair.x, pair.y, pair.z, pair.w};
      const float2 delta = load_shared<float2>(deltas + n * 32);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float probability = probabilities[e];
        const float dp = drops && probability < 0 ? 0 : s[n * 4 + e] * kept_factor;
        s[n * 4 + e] = (drops ? fabsf(probability) : probability) * (dp - (e % 2 ? delta.y : delta.x) * delta_factor);
      }
    }
    barriers.p_empty[p_slots.index()].arrive_warp();
    ++p_slots.used;
    warpgroup_fence_operand(s);
#pragma unroll
    for (int at = 0; at < 32; at += 2) set_operand(at, s[at], s[at + 1]);
    barriers.ds_empty[ds_slots.index()].wait(ds_slots.phase() ^ 1);
    const unsigned tile = memory.ds(ds_slots.index());
#pragma unroll
    for (int part = 0; part < C::parts; ++part)
#pragma unroll
      for (int i = 0; i < 4; ++i) stmatrix(Base::fragment_row(tile + part * C::DsTile::part_bytes, 0, i), operand[part][i]);
    fence_proxy_async();
    barriers.ds_full[ds_slots.index()].arrive_warp();
    ++ds_slots.used;
  }

  __device__ __forceinline__ int exponent(Maxima::Value value) const { return p.maxima.exponent(value, head()); }
  /// Key head, counted over all batch rows.
  __device__ __forceinline__ int head() const { return barriers.block.sequence.batch * p.args.kv_heads + barriers.block.kv_head; }
  /// Calls f(stage) for each tile, then writes the sums times a factor.
  template <class F>
  __device__ __forceinline__ void walk(const Heads& gradient, float factor, F&& f) {
    int count = barriers.block.tiles.count * p.args.group();
    const bool is_seen = count > 0;
#pragma unroll
    for (int i = 0; i < C::width / 2; ++i) sums[i] = 0;
#pragma unroll 1
    for (; count > 0; --count) {
      barriers.full[read.index].wait(read.phase);
      f(read.index);
      barriers.empty[read.index].arrive_warp();
      read.advance();
    }
    float* rows[2];
    Base::rows_of(gradient, rows);
    barriers.kv_empty.arrive_warp();
    if (is_seen) store_rows<float>(sums, {factor, factor}, rows, 0, p.args.head_dim);
    else store_zeros<float>(rows, p.args.head_dim);
  }
  __device__ __forceinline__ void sum_dv() {
    const float scale = p.args.scale_log2 * power_of_two(-exponent(Maxima::q) - exponent(Maxima::k));
    if constexpr (general)
#pragma unroll
      for (int r = 0; r < 2; ++r) padding[r] = padding_log2(p.args, barriers.block.sequence, barriers.block.index, Base::key_of(r));
    walk(p.dv, p.args.inverse_keep * power_of_two(-f16_exponent - exponent(Maxima::dy)), [&](int stage) {
      multiply(memory.k(), memory.q(stage));
      Base::exponentiate(stage, scale, f16_exponent);
      pass_p();
      accumulate(memory.dy(stage));
    });
  }
  __device__ __forceinline__ void sum_dk() {
    const int ds_exponent = p.maxima.ds_exponent(head(), p.args.inverse_keep);
    const float dp_factor = power_of_two(ds_exponent - exponent(Maxima::v) - exponent(Maxima::dy)),
                delta_factor = power_of_two(ds_exponent);
    walk(p.dk, p.args.scale * power_of_two(-f16_exponent - ds_exponent - exponent(Maxima::q)), [&](int stage) {
      multiply(memory.v(), memory.dy(stage));
      pass_ds(stage, dp_factor, delta_factor);
      accumulate(memory.q(stage));
    });
  }
};

/// Factor of a block's dQ: the scale, without the powers of two.
template <class C>
__device__ __forceinline__ float dq_factor(const BackwardParams& p, const F32BackwardBarriers<C>& barriers) {
  const int head = barriers.block.sequence.batch * p.args.kv_heads + barriers.block.kv_head;
  return p.args.scale * power_of_two(-f16_exponent - p.maxima.ds_exponent(head, p.args.inverse_keep) - p.maxima.exponent(Maxima::k, head));
}

#endif

template <class C, bool general, bool drops>
__global__ void __launch_bounds__(C::threads, 1) hopper_f32_attention_backward(__grid_constant__ const BackwardParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 memory[];
  __shared__ F32BackwardBarriers<C> barriers;
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.q);
    tma_prefetch_map(p.k);
    tma_prefetch_map(p.v);
    tma_prefetch_map(p.dy);
    init_barriers<C>(barriers, 8);
    for (int i = 0; i < 2; ++i) {
      barriers.p_full[i].init(4 * warp_arrivals);
      barriers.p_empty[i].init(4 * warp_arrivals);
    }
    fence_barrier_init();
  }
  run_warpgroups<float, C>(
      p, memory, barriers, [&] { return dq_factor<C>(p, barriers); },
      [&](const BackwardMemory<C>& tiles) {
        if (threadIdx.x < 3 * warpgroup) {
          warpgroup_reg_alloc<C::consumer_registers>();
          F32BackwardConsumer<C, general, drops> consumer(p, tiles, barriers);
          for_each_item<C>(p, barriers, [&](int) { consumer.sum_dv(); });
        } else {
          warpgroup_reg_alloc<C::consumer_registers>();
          F32BackwardConsumer<C, general, drops> consumer(p, tiles, barriers);
          for_each_item<C>(p, barriers, [&](int) { consumer.sum_dk(); });
        }
      });
#endif
}

void hopper_f32_attention_grad(const AttentionGradCall& call) {
  const Args args(call.q, call.k, call.attention);
  const auto with = [&]<int parts>() {
    const View heads[] = {call.q, call.k, call.v, call.g};
    const SplitHeads split(heads, parts);
    dispatch(args, [&]<bool general, bool drops>() {
      const auto run = [&]<class C>() {
        launch_backward<float, C>(hopper_f32_attention_backward<C, general, drops>, args, split.views(), call, split.maxima());
      };
      if (args.head_dim <= 64) run.template operator()<F32BackwardConfig<64, 3, 2, 2, parts>>();
      else run.template operator()<F32BackwardConfig<128, 2, 1, 1, parts>>();
    });
  };
  if (context().kernels.matmul_precision == MatmulPrecision::tf32) with.template operator()<1>();
  else with.template operator()<2>();
}

}  // namespace tern::gpu::hopper
