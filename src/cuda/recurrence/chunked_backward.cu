#include "cuda/recurrence/recurrence.cuh"

// Linear recurrence on a GPU, backward: recurrence.cuh has the plan. With S and dS at a chunk's start and end, z the gradient of what X
// multiplies, beta (v - P k S), and F_ij = R_ij dy_i u_j, A_ij = R_ij q_i k_j for j <= i:
//
//     du = A^T dy + (E k) dS           z  = X^T du                        E: decay from a token to the chunk's end
//     dq = P (dy S^T) + F k            dk = E (u dS^T) + F^T q + (G + G^T) k - beta P (z S^T)        G_ij = -beta_i R_ij z_i u_j, j < i
//     dv = beta z, or du               dbeta_i = z_i v_i - P_i k_i (z S^T)_i - sum over j < i of z_i u_j R_ij k_i k_j
//
// The logarithm of a decay at token t has as gradient the sum of all terms in which t lies between a token that writes and one that reads:
// terms of A and M, q dq, those of S; k dk, those that reach dS; and S dS. It is a suffix sum over the chunk's tokens, of what tokens give
// as readers less what they give as writers to these, plus all that reaches dS, which for a head is summed over the tokens before t.
namespace tern::gpu::recurrence {

namespace {

// dS from the last chunk to the first for the delta rule, as delta_walk goes forward.

constexpr int back_stages = 2;
constexpr int back_stage_bytes = 3 * tile_bytes + 2 * value_tile_bytes + rates_size * 4;  // q, k, X, dy, A^T dy, rates
constexpr int back_bytes = back_stages * back_stage_bytes + 3 * value_tile_bytes;

struct BackWalk {
  Rows q, k, dy;
  const float *rates, *dstate;
  const void *inverses, *products;  ///< X and A^T dy
  void *dstates, *z;
  float* dinitial;
};

template <class T>
__global__ void __launch_bounds__(threads) recurrence_delta_walk_back(Sizes sizes, BackWalk a) {
  extern __shared__ __align__(128) char memory[];
  const int sequence = blockIdx.x / (width / value_tile), column = blockIdx.x % (width / value_tile) * value_tile, w = warp();
  const unsigned state_tile = shared_address(memory) + back_stages * back_stage_bytes, du_tile = state_tile + value_tile_bytes,
                 z_tile = du_tile + value_tile_bytes;
  const auto load = [&](int n) {
    if (n >= 0) {
      const Place at(sizes, sequence, n);
      const unsigned to = shared_address(memory) + n % back_stages * back_stage_bytes, dy_at = to + 3 * tile_bytes;
      load_tile<width>(to, at.rows<const T>(a.q), a.q.token, at.count, sizes.keys);
      load_tile<width>(to + tile_bytes, at.rows<const T>(a.k), a.k.token, at.count, sizes.keys);
      load_tile(to + 2 * tile_bytes, at.tile(static_cast<const T*>(a.inverses), sizes));
      const T* const dy = at.rows<const T>(a.dy);
      load_tile<value_tile>(dy_at, column < sizes.values ? dy + column : dy, a.dy.token, at.count, sizes.values - column);
      load_tile<value_tile>(dy_at + value_tile_bytes, at.tile(static_cast<const T*>(a.products), sizes) + column, width, chunk, value_tile);
      load_rates(dy_at + 2 * value_tile_bytes, at.tile(a.rates, sizes, rates_size));
    }
    cp_async_commit();
  };
  State d;
  load_state(d, a.dstate, sizes, sequence, column);
  load(sizes.chunks - 1);
  for (int n = sizes.chunks - 1; n >= 0; --n) {
    const int stage = n % back_stages * back_stage_bytes;
    const unsigned q_tile = shared_address(memory) + stage, k_tile = q_tile + tile_bytes, x_tile = k_tile + tile_bytes,
                   dy_tile = x_tile + tile_bytes, product_tile = dy_tile + value_tile_bytes;
    const float* const sums = reinterpret_cast<const float*>(memory + stage + 3 * tile_bytes + 2 * value_tile_bytes);
    const HeadDecay decay{sums};
    const Place at(sizes, sequence, n);
    store_tile<T>(d, state_tile);
    cp_async_wait_all();
    __syncthreads();  // all copies have arrived, and all warps are done with the other stage
    load(n - 1);
    write_rows<T>(d, at.tile(static_cast<T*>(a.dstates), sizes) + column, width, width, value_tile);
    scale_tile<T, value_tile>(dy_tile, [&](int row) { return decay.from_start(row); });
    State x = {};  // here rows are tokens
    mma<T, width>(Product(x, OperandA<width>(k_tile, w * 16), OperandB<value_tile>(state_tile)));
    float reads[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = w * 16 + x.row_of(r);
      const float end = decay.to_end(i);
      reads[r] = -sums[chunk + i] * decay.from_start(i);
#pragma unroll
      for (int c = 0; c < x.lane_columns; c += 2) {
        const float2 product = read_tile<T, value_tile>(product_tile, i, x.column_of(c));
        x.at(r, c) = product.x + end * x.at(r, c);
        x.at(r, c + 1) = product.y + end * x.at(r, c + 1);
      }
    }
    store_tile<T>(x, du_tile);
    __syncthreads();
    x = {};
    mma_depths<T, chunk>(Product(x, OperandAt<width>(x_tile, 0, w * 2), OperandB<value_tile>(du_tile)), w, 4);
    write_rows<T>(x, at.tile(static_cast<T*>(a.z), sizes) + column, width, chunk, value_tile);
    scale_rows(x, reads);
    store_tile<T>(x, z_tile);
    __syncthreads();
    const float whole[2] = {decay.whole(), decay.whole()};
    scale_rows(d, whole);
    mma<T, chunk>(Product(d, OperandAt<width>(q_tile, 0, w * 2), OperandB<value_tile>(dy_tile)));
    mma<T, chunk>(Product(d, OperandAt<width>(k_tile, 0, w * 2), OperandB<value_tile>(z_tile)));
  }
  write_state(d, a.dinitial, sizes, sequence, column);
}

// All gradients of a chunk. A warp takes 16 rows of F and G, tokens that read, and then 16 of their columns, tokens that write.

using Rows64 = FragmentTile<16, width>;

/// Sums of a tile's columns over the warp's 16 rows, from those of the lane's two rows; to `sums` (4, 64), a row for each warp.
__device__ __forceinline__ void sum_columns(float (&of_lane)[Rows64::lane_columns], float* sums) {
#pragma unroll
  for (int c = 0; c < Rows64::lane_columns; ++c) {
#pragma unroll
    for (unsigned step = 4; step < 32; step *= 2) of_lane[c] += shuffle_xor(of_lane[c], step);
    if (MmaLanes::group() == 0) sums[warp() * width + Rows64::column_of(c)] = of_lane[c];
  }
}
/// Writes two numbers of a row to global memory, rounded.
template <class T>
__device__ __forceinline__ void write_pair(T* to, float x, float y) {
  *reinterpret_cast<unsigned*>(to) = pack_pair<T>(x, y);
}

struct Inputs {
  Rows q, k, v, dy;
  const float* rates;
  const void *states, *dstates, *u, *z;
};
struct Outputs {
  Rows dq, dk, dv, dlog_decay, dbeta;
};

/// Offsets of tiles in shared memory. F takes the place of S; G that of z, or A that of v.
template <bool is_delta>
struct HeadTiles {
  static constexpr int q = 0, k = tile_bytes, v = 2 * tile_bytes, dy = 3 * tile_bytes, state = 4 * tile_bytes, dstate = 5 * tile_bytes,
                       z = is_delta ? 6 * tile_bytes : v, u = is_delta ? 7 * tile_bytes : v, rates = (is_delta ? 8 : 6) * tile_bytes,
                       bytes = rates + rates_size * 4;
};

template <class T, bool is_delta>
__global__ void __launch_bounds__(threads, is_delta ? 3 : 4) recurrence_gradients(Sizes sizes, Inputs in, Outputs to) {
  using At = HeadTiles<is_delta>;
  extern __shared__ __align__(128) char memory[];
  __shared__ float readers[chunk], pairs[4 * chunk], writers[chunk], reaching[4];
  const unsigned base = shared_address(memory), q = base + At::q, k = base + At::k, v = base + At::v, dy = base + At::dy,
                 state = base + At::state, dstate = base + At::dstate, z = base + At::z, u = base + At::u;
  const Place at = Place::of_block(sizes);
  const int w = warp(), lane = threadIdx.x % 32, row0 = w * 16, rows[2] = {row0 + Rows64::row_of(0), row0 + Rows64::row_of(1)};
  load_tile<width>(dy, at.rows<const T>(in.dy), in.dy.token, at.count, sizes.values);
  load_tile<width>(v, at.rows<const T>(in.v), in.v.token, at.count, sizes.values);
  load_tile<width>(q, at.rows<const T>(in.q), in.q.token, at.count, sizes.keys);
  load_tile<width>(k, at.rows<const T>(in.k), in.k.token, at.count, sizes.keys);
  load_tile(state, at.tile(static_cast<const T*>(in.states), sizes));
  load_tile(dstate, at.tile(static_cast<const T*>(in.dstates), sizes));
  if constexpr (is_delta) {
    load_tile(u, at.tile(static_cast<const T*>(in.u), sizes));
    load_tile(z, at.tile(static_cast<const T*>(in.z), sizes));
  }
  load_rates(base + At::rates, at.tile(in.rates, sizes, rates_size));
  cp_async_commit();
  cp_async_wait_all();
  __syncthreads();
  const float* const sums = reinterpret_cast<const float*>(memory + At::rates);
  const HeadDecay decay{sums};
  const float starts[2] = {decay.from_start(rows[0]), decay.from_start(rows[1])}, ends[2] = {decay.to_end(rows[0]), decay.to_end(rows[1])};
  const auto is_before = [&](int r, int c) { return Rows64::column_of(c) < rows[r]; };

  // Tokens that read.
  const OperandA<width> own_q(q, row0), own_k(k, row0), own_dy(dy, row0), own_z(z, row0);
  const OperandBt<width> all_k(k), all_u(u), all_states(state);
  float of_rows[2] = {}, of_columns[Rows64::lane_columns] = {};
  RegisterOperand<16, chunk> f_operand, other_operand;  // the other: G, or A
  {
    Rows64 f = {}, a = {};
    mma_columns<T, width>(Product(f, own_dy, all_u), w + 1);
    mma_columns<T, width>(Product(a, own_q, all_k), w + 1);
    f.for_each(f.column_tiles, [&](float& e, int r, int c) {
      const float ratio = decay.ratio(rows[r], f.column_of(c));
      e *= ratio;
      of_rows[r] += is_before(r, c) ? e * a.at(r, c) : 0;
      of_columns[c] += is_before(r, c) ? e * a.at(r, c) : 0;
      a.at(r, c) *= ratio;
    });
    f_operand.template assign<T>(f);
    if constexpr (!is_delta) other_operand.template assign<T>(a);
  }
  float of_beta[2] = {};
  if constexpr (is_delta) {
    Rows64 g = {}, products = {};
    mma_columns<T, width>(Product(g, own_z, all_u), w + 1);
    mma_columns<T, width>(Product(products, own_k, all_k), w + 1);
    g.for_each(g.column_tiles, [&](float& e, int r, int c) {
      e = is_before(r, c) ? -e * decay.ratio(rows[r], g.column_of(c)) : 0;
      of_beta[r] += e * products.at(r, c);
      e *= sums[chunk + rows[r]];
      of_rows[r] += e * products.at(r, c);
      of_columns[c] += e * products.at(r, c);
    });
    other_operand.template assign<T>(g);
  }
  sum_columns(of_columns, pairs);
  {
    Rows64 dq = {};
    mma<T, width>(Product(dq, own_dy, all_states));
    scale_rows(dq, starts);
    float reads[2];
    row_products<T>(dq, q, reads);
    if (MmaLanes::member() == 0) of_rows[0] += reads[0], of_rows[1] += reads[1];
    mma_depths<T, chunk>(Product(dq, f_operand, OperandB<width>(k)), 0, w + 1);
    write_rows<T>(dq, at.rows<T>(to.dq), to.dq.token, at.count, sizes.keys);
  }
  Rows64 dk = {};
  if constexpr (is_delta) {
    mma<T, width>(Product(dk, own_z, all_states));
    float reads[2], factors[2];
    row_products<T>(dk, k, reads);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float beta = sums[chunk + rows[r]];
      factors[r] = -beta * starts[r];
      float2 of_z[Rows64::column_tiles];
#pragma unroll
      for (int n = 0; n < Rows64::column_tiles; ++n) {
        of_z[n] = read_tile<T, width>(z, rows[r], Rows64::column_of(n * 2));
        const float2 of_v = read_tile<T, width>(v, rows[r], Rows64::column_of(n * 2));
        of_beta[r] += of_z[n].x * of_v.x + of_z[n].y * of_v.y;
      }
#pragma unroll
      for (int n = 0; n < Rows64::column_tiles; ++n)
        if (const int column = Rows64::column_of(n * 2); rows[r] < at.count && column < sizes.values)
          write_pair(at.rows<T>(to.dv) + rows[r] * to.dv.token + column, beta * of_z[n].x, beta * of_z[n].y);
      of_beta[r] = Rows64::combine_sum(of_beta[r]) - starts[r] * reads[r];
      if (MmaLanes::member() == 0) {
        of_rows[r] += factors[r] * reads[r];
        if (rows[r] < at.count) at.rows<float>(to.dbeta)[rows[r] * to.dbeta.token] = of_beta[r];
      }
    }
    scale_rows(dk, factors);
    mma_depths<T, chunk>(Product(dk, other_operand, OperandB<width>(k)), 0, w + 1);
  }
  {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float s[2], d[2];
      unpack_pair<T>(load_shared<unsigned>(pair_address(state, row0 + i)), s[0], s[1]);
      unpack_pair<T>(load_shared<unsigned>(pair_address(dstate, row0 + i)), d[0], d[1]);
      sum += s[0] * d[0] + s[1] * d[1];
    }
    sum = warp_all_reduce<PlusOp<float>>(sum);
    if (lane == 0) reaching[w] = sum * decay.whole();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    of_rows[r] = Rows64::combine_sum(of_rows[r]);
    if (MmaLanes::member() == 0) readers[rows[r]] = of_rows[r];
  }

  // Tokens that write.
  {
    Rows64 written = {};
    mma<T, width>(Product(written, OperandA<width>(u, row0), OperandBt<width>(dstate)));
    scale_rows(written, ends);
    float writes[2];
    row_products<T>(written, k, writes);
    if (MmaLanes::member() == 0) writers[rows[0]] = writes[0], writers[rows[1]] = writes[1];
    dk.add(written);
  }
  __syncthreads();
  f_operand.template store<width>(state, row0, 0);
  other_operand.template store<width>(z, row0, 0);
  __syncthreads();
  const OperandAt<width> f_columns(state, 0, w * 2), other_columns(z, 0, w * 2);
  mma_depths<T, chunk>(Product(dk, f_columns, OperandB<width>(q)), w, 4);
  if constexpr (is_delta) mma_depths<T, chunk>(Product(dk, other_columns, OperandB<width>(k)), w, 4);
  write_rows<T>(dk, at.rows<T>(to.dk), to.dk.token, at.count, sizes.keys);
  if constexpr (!is_delta) {
    Rows64 dv = {};
    mma<T, width>(Product(dv, own_k, OperandB<width>(dstate)));
    scale_rows(dv, ends);
    mma_depths<T, chunk>(Product(dv, other_columns, OperandB<width>(dy)), w, 4);
    write_rows<T>(dv, at.rows<T>(to.dv), to.dv.token, at.count, sizes.values);
  }
  if (!to.dlog_decay.data) return;
  __syncthreads();
  if (w > 0) return;
  // Readers from the token on, and writers before it: sums of two terms a lane.
  float terms[2], writes[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = lane * 2 + i;
    terms[i] = readers[t];
    writes[i] = writers[t];
#pragma unroll
    for (int part = 0; part < 4; ++part) terms[i] -= pairs[part * chunk + t];
  }
  float sum = terms[0] + terms[1], written = writes[0] + writes[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float later = __shfl_down_sync(whole_warp, sum, step), earlier = __shfl_up_sync(whole_warp, written, step);
    if (lane + step < 32) sum += later;
    if (lane >= step) written += earlier;
  }
  float after = __shfl_down_sync(whole_warp, sum, 1), before = __shfl_up_sync(whole_warp, written, 1);
  if (lane == 31) after = 0;
  if (lane == 0) before = 0;
  before += reaching[0] + reaching[1] + reaching[2] + reaching[3];
  float* const dlog_decay = at.rows<float>(to.dlog_decay);
  if (lane * 2 + 1 < at.count) dlog_decay[(lane * 2 + 1) * to.dlog_decay.token] = after + terms[1] + before + writes[0];
  if (lane * 2 < at.count) dlog_decay[lane * 2 * to.dlog_decay.token] = sum + before;
}

// The same with a decay of each key channel: Note [Hats].

/// F takes the place of S. When v, dy and dS are not needed any more, floats take theirs: for a chunk with strong decays sums over pairs of
/// tokens, and last q dq - k dk, of which a channel's suffix sums are taken.
struct ChannelTiles {
  static constexpr int v = 0, dy = tile_bytes, dstate = 2 * tile_bytes, q = 3 * tile_bytes, k = 4 * tile_bytes, state = 5 * tile_bytes,
                       a = 6 * tile_bytes, decays = 7 * tile_bytes, bytes = decays + decay_bytes;
  static constexpr int floats = 0, written = decay_bytes;  ///< written (4, 64): sums of k dk by the writes that reach dS
  static_assert(decay_bytes + 4 * width * 4 <= 3 * tile_bytes);
};

/// For a chunk with strong decays, r from its start: the sum over j <= i of F_ij x_j e^(r_i - r_j) for each token i, or with `is_later`
/// that over i >= j of F_ij x_i e^(r_i - r_j) for each token j. To rows of decay_stride floats.
template <class T, bool is_later>
__device__ __forceinline__ void sum_pairs(unsigned to, unsigned f, unsigned x, unsigned decays) {
  const unsigned column = threadIdx.x % 32 * 8;
  const auto decay_of = [&](int row) { return load_shared<float2>(decays + row * decay_stride * 4 + column); };
  for (int row = warp() * 16; row < warp() * 16 + 16; ++row) {
    const float2 own = decay_of(row);
    float2 sum = {0, 0};
    for (int other = is_later ? row : 0; other < (is_later ? chunk : row + 1); ++other) {
      const int i = is_later ? other : row, j = is_later ? row : other;
      const float factor = widen(std::bit_cast<T>(load_shared<std::uint16_t>(f + SharedTile<width>::offset(i, j / 8) + j % 8 * 2)));
      float value[2];
      unpack_pair<T>(load_shared<unsigned>(pair_address(x, other)), value[0], value[1]);
      const float2 there = decay_of(other);
      sum.x += factor * value[0] * exp_approx(is_later ? there.x - own.x : own.x - there.x);
      sum.y += factor * value[1] * exp_approx(is_later ? there.y - own.y : own.y - there.y);
    }
    store_shared(to + row * decay_stride * 4 + column, sum);
  }
}

template <class T>
__global__ void __launch_bounds__(threads, 3) recurrence_channel_gradients(Sizes sizes, Inputs in, Outputs to) {
  using At = ChannelTiles;
  extern __shared__ __align__(128) char memory[];
  __shared__ float totals[4 * width], reaching[width];
  const unsigned base = shared_address(memory), q = base + At::q, k = base + At::k, v = base + At::v, dy = base + At::dy,
                 state = base + At::state, dstate = base + At::dstate, a_tile = base + At::a, decays = base + At::decays,
                 floats = base + At::floats;
  float* const written = reinterpret_cast<float*>(memory + At::written);
  const Place at = Place::of_block(sizes);
  const int w = warp(), lane = threadIdx.x % 32, row0 = w * 16, rows[2] = {row0 + Rows64::row_of(0), row0 + Rows64::row_of(1)};
  load_tile<width>(q, at.rows<const T>(in.q), in.q.token, at.count, sizes.keys);
  load_tile<width>(k, at.rows<const T>(in.k), in.k.token, at.count, sizes.keys);
  load_decays<T>(decays, sizes, at);
  load_tile(state, at.tile(static_cast<const T*>(in.states), sizes));
  load_tile(dstate, at.tile(static_cast<const T*>(in.dstates), sizes));
  cp_async_commit();
  load_tile<width>(v, at.rows<const T>(in.v), in.v.token, at.count, sizes.values);
  load_tile<width>(dy, at.rows<const T>(in.dy), in.dy.token, at.count, sizes.values);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  const bool is_strong = put_hats<T>(decays, sizes.decay_is_f32, totals, q, k, state, dstate);
  cp_async_wait_all();
  __syncthreads();
  if (is_strong) multiply_pairs<T>(a_tile, q, k, decays);
  // Of floats: those of a row and two columns.
  const auto pair_of = [&](unsigned all, int row, int c) { return all + (row * decay_stride + Rows64::column_of(c)) * 4; };
  const auto for_each_pair = [&](auto&& f) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < Rows64::lane_columns; c += 2) f(r, c);
  };

  // Tokens that read.
  const OperandA<width> own_dy(dy, row0);
  RegisterOperand<16, chunk> f_operand, a_operand;
  const auto triangle = [&](RegisterOperand<16, chunk>& operand, const OperandA<width>& left, unsigned right) {
    Rows64 x = {};
    mma_columns<T, width>(Product(x, left, OperandBt<width>(right)), w + 1);
    x.for_each(x.column_tiles, [&](float& e, int r, int c) { e = x.column_of(c) <= rows[r] ? e : 0; });
    operand.template assign<T>(x);
  };
  triangle(f_operand, own_dy, v);
  if (!is_strong) triangle(a_operand, OperandA<width>(q, row0), k);
  Rows64 dq = {};
  mma<T, width>(Product(dq, own_dy, OperandBt<width>(state)));
  if (!is_strong) mma_depths<T, chunk>(Product(dq, f_operand, OperandB<width>(k)), 0, w + 1);
  // The state that reaches the chunk's end. Rows are key channels, and have their decay already, but for strong ones.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < Rows64::lane_columns; c += 2) {
      const float2 s = read_tile<T, width>(state, rows[r], Rows64::column_of(c)),
                   d = read_tile<T, width>(dstate, rows[r], Rows64::column_of(c));
      sum += s.x * d.x + s.y * d.y;
    }
    sum = Rows64::combine_sum(sum);
    if (MmaLanes::member() == 0) reaching[rows[r]] = is_strong ? sum * exp_approx(quarters(totals, rows[r], 0, 4)) : sum;
  }
  __syncthreads();
  f_operand.template store<width>(state, row0, 0);
  if (!is_strong) a_operand.template store<width>(a_tile, row0, 0);
  __syncthreads();

  // Tokens that write.
  Rows64 dk = {};
  mma<T, width>(Product(dk, OperandA<width>(v, row0), OperandBt<width>(dstate)));
  {
    Rows64 dv = {};
    mma_depths<T, chunk>(Product(dv, OperandAt<width>(a_tile, 0, w * 2), OperandB<width>(dy)), w, 4);
    if (is_strong) {
      __syncthreads();
      // k with its decay to the end, in the place of dy: a warp's own rows.
      for (int row = row0; row < row0 + 16; ++row) {
        const float2 log = load_shared<float2>(decays + (row * decay_stride + lane * 2) * 4),
                     end = load_shared<float2>(decays + ((chunk - 1) * decay_stride + lane * 2) * 4);
        store_shared(pair_address(dy, row), load_shared<unsigned>(pair_address(k, row)));
        scale_pair<T>(pair_address(dy, row), exp_approx(end.x - log.x), exp_approx(end.y - log.y));
      }
      __syncwarp();
    }
    mma<T, width>(Product(dv, OperandA<width>(is_strong ? dy : k, row0), OperandB<width>(dstate)));
    write_rows<T>(dv, at.rows<T>(to.dv), to.dv.token, at.count, sizes.values);
  }
  __syncthreads();
  if (is_strong)
    for_each_pair([&](int r, int c) {
      const float2 log = load_shared<float2>(pair_of(decays, rows[r], c)), end = load_shared<float2>(pair_of(decays, chunk - 1, c));
      dk.at(r, c) *= exp_approx(end.x - log.x);
      dk.at(r, c + 1) *= exp_approx(end.y - log.y);
    });
  float of_columns[Rows64::lane_columns] = {};
  for_each_pair([&](int r, int c) {
    const float2 factor = read_tile<T, width>(k, rows[r], Rows64::column_of(c));
    of_columns[c] += factor.x * dk.at(r, c);
    of_columns[c + 1] += factor.y * dk.at(r, c + 1);
  });
  sum_columns(of_columns, written);
  if (!is_strong) mma_depths<T, chunk>(Product(dk, OperandAt<width>(state, 0, w * 2), OperandB<width>(q)), w, 4);

  // Gradients with the sums over pairs, or hats, e^(sign r) times which they are. Writes them, and multiplies x by q or k: hats by hats.
  if (is_strong) {
    sum_pairs<T, false>(floats, state, k, decays);
    __syncthreads();
    for_each_pair([&](int r, int c) {
      const float2 log = load_shared<float2>(pair_of(decays, rows[r], c)), sum = load_shared<float2>(pair_of(floats, rows[r], c));
      dq.at(r, c) = dq.at(r, c) * exp_approx(log.x) + sum.x;
      dq.at(r, c + 1) = dq.at(r, c + 1) * exp_approx(log.y) + sum.y;
    });
    __syncthreads();
    sum_pairs<T, true>(floats, state, q, decays);
    __syncthreads();
    for_each_pair([&](int r, int c) {
      const float2 sum = load_shared<float2>(pair_of(floats, rows[r], c));
      dk.at(r, c) += sum.x;
      dk.at(r, c + 1) += sum.y;
    });
  }
  const auto finish = [&](Rows64& x, unsigned tile, float sign, const Rows& gradient) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float2 factor[Rows64::column_tiles], log[Rows64::column_tiles];
#pragma unroll
      for (int n = 0; n < Rows64::column_tiles; ++n) {
        factor[n] = read_tile<T, width>(tile, rows[r], Rows64::column_of(n * 2));
        log[n] = load_shared<float2>(pair_of(decays, rows[r], n * 2));
      }
#pragma unroll
      for (int n = 0; n < Rows64::column_tiles; ++n) {
        float &first = x.at(r, n * 2), &second = x.at(r, n * 2 + 1);
        if (const int column = Rows64::column_of(n * 2); rows[r] < at.count && column < sizes.keys)
          write_pair(at.rows<T>(gradient) + rows[r] * gradient.token + column, first * exp_approx(sign * log[n].x),
                     second * exp_approx(sign * log[n].y));
        first *= factor[n].x;
        second *= factor[n].y;
      }
    }
  };
  finish(dq, q, is_strong ? 0 : 1, to.dq);
  finish(dk, k, is_strong ? 0 : -1, to.dk);
  for_each_pair([&](int r, int c) {
    store_shared(pair_of(floats, rows[r], c), float2{dq.at(r, c) - dk.at(r, c), dq.at(r, c + 1) - dk.at(r, c + 1)});
  });
  if (!to.dlog_decay.data) return;
  __syncthreads();

  // Suffix sums: a warp has 16 tokens, a lane two channels.
  const int channel = lane * 2;
  const auto term_of = [&](int i) { return load_shared<float2>(floats + ((row0 + i) * decay_stride + channel) * 4); };
  float2 total = {0, 0};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 x = term_of(i);
    total.x += x.x, total.y += x.y;
  }
  totals[w * width + channel] = total.x;
  totals[w * width + channel + 1] = total.y;
  __syncthreads();
  float sums[2];
#pragma unroll
  for (int e = 0; e < 2; ++e)
    sums[e] = quarters(written, channel + e, 0, 4) + reaching[channel + e] + quarters(totals, channel + e, w + 1, 4);
#pragma unroll
  for (int i = 15; i >= 0; --i) {
    const float2 x = term_of(i);
    sums[0] += x.x, sums[1] += x.y;
    if (row0 + i < at.count && channel < sizes.keys) {
      const std::int64_t row = (row0 + i) * to.dlog_decay.token + channel;
      if (sizes.decay_is_f32) *reinterpret_cast<float2*>(at.rows<float>(to.dlog_decay) + row) = {sums[0], sums[1]};
      else write_pair(at.rows<T>(to.dlog_decay) + row, sums[0], sums[1]);
    }
  }
}

template <class T>
void launch_gradients(const Call& call, const Inputs& in, const Outputs& to, bool is_channel) {
  const unsigned blocks = blocks_for(call.sequences * call.sizes.chunks, 1);
  const auto with = [&](auto kernel, int bytes) { launch(kernel, blocks, threads, bytes, call.stream, call.sizes, in, to); };
  if (is_channel) with(recurrence_channel_gradients<T>, ChannelTiles::bytes);
  else if (in.u) with(recurrence_gradients<T, true>, HeadTiles<true>::bytes);
  else with(recurrence_gradients<T, false>, HeadTiles<false>::bytes);
}

}  // namespace

}  // namespace tern::gpu::recurrence

namespace tern::kernels {

void ChunkedRecurrenceGrad::run(Cuda) const {
  using namespace gpu::recurrence;
  using gpu::Workspace;
  const Call call(*this);
  const auto tiles = [&](bool is_needed) {
    return Workspace(is_needed ? static_cast<std::size_t>(call.sequences * call.sizes.chunks * state_size) * 2 : 0, call.stream);
  };
  const bool is_channel = log_decay.data && log_decay.dims() == 4, is_delta = beta.data;
  const Workspace rates = chunk_memory<float>(call.sizes, is_channel ? 0 : call.sequences, rates_size, call.stream);
  const Workspace states = tiles(true), dstates = tiles(true), inverses = tiles(is_delta), u = tiles(is_delta), products = tiles(is_delta);
  const float* const of_heads = is_channel ? nullptr : rates.as<const float>();
  const Rows of_dy(dy);
  if (!is_channel) head_rates(call, beta, rates.as<float>());
  if (is_delta) {
    solve_chunks(call, of_heads, inverses.as(), of_dy, products.as());
    delta_walk(call, of_heads, inverses.as(), initial.as<const float>(), nullptr, states.as(), u.as());
    // z takes the place of A^T dy: a block reads a tile of a chunk before it writes it.
    const BackWalk back{call.q,        call.k,        of_dy,        of_heads,      dstate.as<const float>(),
                        inverses.as(), products.as(), dstates.as(), products.as(), dinitial.as<float>()};
    gpu::dispatch_halves(call.dtype, [&]<class T>() {
      gpu::launch(recurrence_delta_walk_back<T>, gpu::blocks_for(call.sequences * (width / value_tile), 1), threads, back_bytes,
                  call.stream, call.sizes, back);
    });
  } else {
    const Walk walks[] = {{call.k, call.v, initial.as<const float>(), nullptr, states.as(), false},
                          {call.q, of_dy, dstate.as<const float>(), dinitial.as<float>(), dstates.as(), true}};
    walk(call, of_heads, walks, 2);
  }
  const Inputs in{call.q, call.k, call.v, of_dy, of_heads, states.as(), dstates.as(), is_delta ? u.as() : nullptr, products.as()};
  const Outputs to{Rows(dq), Rows(dk), Rows(dv), Rows(dlog_decay), Rows(dbeta)};
  gpu::dispatch_halves(call.dtype, [&]<class T>() { launch_gradients<T>(call, in, to, is_channel); });
}

}  // namespace tern::kernels
