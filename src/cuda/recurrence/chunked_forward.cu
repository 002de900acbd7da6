#include "cuda/recurrence/recurrence.cuh"

// Linear recurrence on a GPU, forward, and the walks and inverses that backward computes again: recurrence.cuh has the plan.
namespace tern::gpu::recurrence {

namespace {

/// A warp a chunk.
__global__ void __launch_bounds__(threads) recurrence_rates(Sizes sizes, int units, const float* beta, Rows beta_rows, float* rates) {
  const int unit = blockIdx.x * (threads / 32) + warp(), lane = threadIdx.x % 32;
  if (unit >= units) return;
  const Place at(sizes, unit / sizes.chunks, unit % sizes.chunks);
  float logs[2], rate[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = lane * 2 + i;
    const bool is_there = t < at.count;
    logs[i] = is_there && sizes.decay.data ? bounded_log(at.rows<const float>(sizes.decay)[t * sizes.decay.token]) : 0;
    rate[i] = is_there && beta ? at.rows<const float>(beta_rows)[t * beta_rows.token] : 0;
  }
  float sum = logs[0] + logs[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float earlier = __shfl_up_sync(whole_warp, sum, step);
    if (lane >= step) sum += earlier;
  }
  float before = __shfl_up_sync(whole_warp, sum, 1);
  if (lane == 0) before = 0;
  float* const to = rates + std::int64_t(unit) * rates_size + lane * 2;
  to[0] = before + logs[0];
  to[1] = before + logs[0] + logs[1];
  to[chunk] = rate[0];
  to[chunk + 1] = rate[1];
}

// The inverse of I + M, M_ij = beta_i R_ij k_i k_j for j < i: two diagonal blocks (32, 32) by substitution, a warp each, a column a lane;
// and between them -X_22 M_21 X_11, in TF32. M is stored transposed: a step of the substitution reads one of its columns.

constexpr int m_stride = 72, x_stride = 72;  // floats in a row
constexpr int inverse_bytes = tile_bytes + chunk * (m_stride + x_stride) * 4 + rates_size * 4, solve_bytes = inverse_bytes + tile_bytes;

/// c = a (16, 32) b (32, 16) of floats in shared memory; element (i, k) of a is at i a_row + k a_step.
__device__ __forceinline__ void multiply_blocks(FragmentTile<16, 16>& c, const float* a, int a_row, int a_step, const float* b,
                                                int b_stride) {
  const int group = MmaLanes::group(), member = MmaLanes::member();
  c = {};
#pragma unroll
  for (int k = 0; k < 32; k += 8) {
    float left[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) left[i] = round_to_tf32(a[(group + i % 2 * 8) * a_row + (k + member + i / 2 * 4) * a_step]);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      mma_m16n8k8_tf32(c.values[0][n], left, round_to_tf32(b[(k + member) * b_stride + n * 8 + group]),
                       round_to_tf32(b[(k + member + 4) * b_stride + n * 8 + group]));
  }
}
__device__ __forceinline__ void write_block(const FragmentTile<16, 16>& x, float* to, int stride, float factor) {
#pragma unroll
  for (int r = 0; r < 2; ++r) x.store_row(r, factor, to + x.row_of(r) * stride, 0, 16);
}
/// A lane's column of the inverse of a block (32, 32), from the block's M.
__device__ __forceinline__ void substitute(float (&column)[32], const float* m) {
#pragma unroll
  for (int i = 0; i < 32; ++i) column[i] = i == int(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < 31; ++j)
#pragma unroll
    for (int first = (j + 1) / 4 * 4; first < 32; first += 4) {
      const float4 four = *reinterpret_cast<const float4*>(m + j * m_stride + first);
      const float of_column[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (first + e > j) column[first + e] -= of_column[e] * column[j];
    }
}

template <class T>
__global__ void __launch_bounds__(threads)
    recurrence_solve(Sizes sizes, Rows q, Rows k, const float* rates, T* inverses, Rows dy, T* products) {
  extern __shared__ __align__(128) char memory[];
  float *const m = reinterpret_cast<float*>(memory + tile_bytes), *const x = m + chunk * m_stride, *const sums = x + chunk * x_stride;
  const unsigned k_tile = shared_address(memory), q_tile = shared_address(x), dy_tile = k_tile + inverse_bytes;  // q makes room for x
  const Place at = Place::of_block(sizes);
  load_tile<width>(k_tile, at.rows<const T>(k), k.token, at.count, sizes.keys);
  load_rates(shared_address(sums), at.tile(rates, sizes, rates_size));
  if (products) {
    load_tile<width>(q_tile, at.rows<const T>(q), q.token, at.count, sizes.keys);
    load_tile<width>(dy_tile, at.rows<const T>(dy), dy.token, at.count, sizes.values);
  }
  cp_async_commit();
  cp_async_wait_all();
  __syncthreads();
  const int w = warp();
  const HeadDecay decay{sums};
  const float* const beta = sums + chunk;
  const OperandBt<width> keys(k_tile);
  {
    FragmentTile<16, chunk> a = {};
    mma_columns<T, width>(Product(a, OperandA<width>(k_tile, w * 16), keys), w + 1);
    a.for_each(a.column_tiles, [&](float& e, int r, int c) {
      const int i = w * 16 + a.row_of(r), j = a.column_of(c);
      if (j < i) m[j * m_stride + i] = beta[i] * decay.ratio(i, j) * e;
    });
  }
  FragmentTile<16, chunk> a = {};
  if (products) {
    mma_columns<T, width>(Product(a, OperandA<width>(q_tile, w * 16), keys), w + 1);
    a.for_each(a.column_tiles, [&](float& e, int r, int c) { e *= decay.ratio(w * 16 + a.row_of(r), a.column_of(c)); });
  }
  __syncthreads();
  if (products) store_tile<T>(a, k_tile);
  if (w < 2) {
    float column[32];
    substitute(column, m + w * 32 * (m_stride + 1));
#pragma unroll
    for (int i = 0; i < 32; ++i) x[(w * 32 + i) * x_stride + w * 32 + threadIdx.x % 32] = column[i];
  }
  __syncthreads();
  const int row = w / 2 * 16, first = w % 2 * 16;
  float* const between = m + 32 * m_stride;  // M_21 X_11, in a part of M that is not used
  FragmentTile<16, 16> block;
  multiply_blocks(block, m + 32 + row, 1, m_stride, x + first, x_stride);
  write_block(block, between + row * m_stride + first, m_stride, 1);
  __syncthreads();
  multiply_blocks(block, x + (32 + row) * x_stride + 32, x_stride, 1, between + first, m_stride);
  write_block(block, x + (32 + row) * x_stride + first, x_stride, -1);
  __syncthreads();
  T* const inverse = at.tile(inverses, sizes);
#pragma unroll
  for (int piece = threadIdx.x; piece < state_size / 8; piece += threads) {
    const int i = piece / 8, j = piece % 8 * 8;
    float values[8] = {};
    if (i >= 32 || j < 32)
#pragma unroll
      for (int e = 0; e < 8; ++e) values[e] = x[i * x_stride + j + e];
    write_packed<8>(inverse + piece * 8, pack<T>(values));
  }
  if (products) {
    FragmentTile<16, width> y = {};
    mma_depths<T, chunk>(Product(y, OperandAt<width>(k_tile, 0, w * 2), OperandB<width>(dy_tile)), w, 4);
    write_rows<T>(y, at.tile(products, sizes), width, chunk, width);
  }
}

// Walks.

/// Waits for the oldest of the `stages` - 1 stages, 1 to 3, that are being loaded.
__device__ __forceinline__ void wait_for_stage(int stages) {
  if (stages == 4) cp_async_wait<2>();
  else if (stages == 3) cp_async_wait<1>();
  else cp_async_wait_all();
}

template <class T, Kind kind>
__global__ void __launch_bounds__(threads, 4)
    recurrence_walk(Sizes sizes, const float* rates, int stages, int stage_bytes, Walk first_walk, Walk second_walk) {
  extern __shared__ __align__(128) char memory[];
  __shared__ float totals[kind == Kind::channel ? 4 * width : 1];
  const Walk walk = blockIdx.y == 0 ? first_walk : second_walk;
  const int sequence = blockIdx.x / (width / value_tile), column = blockIdx.x % (width / value_tile) * value_tile, w = warp();
  const int decay_row = width * (sizes.decay_is_f32 ? 4 : 2);  // bytes
  const auto place = [&](int n) { return Place(sizes, sequence, walk.is_reversed ? sizes.chunks - 1 - n : n); };
  const auto load = [&](int n) {
    if (n < sizes.chunks) {
      const Place at = place(n);
      const unsigned to = shared_address(memory) + n % stages * stage_bytes;
      load_tile<width>(to, at.rows<const T>(walk.left), walk.left.token, at.count, sizes.keys);
      const T* const right = at.rows<const T>(walk.right);
      load_tile<value_tile>(to + tile_bytes, column < sizes.values ? right + column : right, walk.right.token, at.count,
                            sizes.values - column);
      if constexpr (kind == Kind::channel) load_decays<T>(to + tile_bytes + value_tile_bytes, sizes, at, decay_row);
      else load_rates(to + tile_bytes + value_tile_bytes, at.tile(rates, sizes, rates_size));
    }
    cp_async_commit();
  };
  State s;
  load_state(s, walk.initial, sizes, sequence, column);
  for (int n = 0; n < stages - 1; ++n) load(n);
  for (int n = 0; n < sizes.chunks; ++n) {
    wait_for_stage(stages);
    __syncthreads();  // all copies of the stage have arrived, and all warps are done with the one before it
    load(n + stages - 1);
    const int stage = n % stages * stage_bytes;
    const unsigned left = shared_address(memory) + stage, right = left + tile_bytes, decays = right + value_tile_bytes;
    write_rows<T>(s, place(n).tile(static_cast<T*>(walk.states), sizes) + column, width, width, value_tile);
    float whole[2];
    if constexpr (kind == Kind::channel) {
      ChannelLogs logs{};
      logs.load<T>(decays, sizes.decay_is_f32, totals, decay_row);
      __syncthreads();
      const int channel = threadIdx.x % 32 * 2;
      RowPairs pairs;
      pairs.load(left);
      float sums[2];
#pragma unroll
      for (int e = 0; e < 2; ++e)
        sums[e] = walk.is_reversed ? quarters(totals, channel + e, 0, w) : quarters(totals, channel + e, w + 1, 4);
      const auto scale = [&](int i) {
        store_shared(pair_address(left, w * 16 + i), scaled_pair<T>(pairs.values[i], exp_approx(sums[0]), exp_approx(sums[1])));
      };
      const auto add = [&](int i) { sums[0] += logs.x[i][0], sums[1] += logs.x[i][1]; };
      if (walk.is_reversed) {
#pragma unroll
        for (int i = 0; i < 16; ++i) add(i), scale(i);
      } else {
#pragma unroll
        for (int i = 15; i >= 0; --i) scale(i), add(i);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) whole[r] = exp_approx(quarters(totals, w * 16 + s.row_of(r), 0, 4));
    } else {
      const HeadDecay decay{reinterpret_cast<const float*>(memory + stage + tile_bytes + value_tile_bytes)};
      scale_tile<T, value_tile>(right, [&](int row) { return walk.is_reversed ? decay.from_start(row) : decay.to_end(row); });
      whole[0] = whole[1] = decay.whole();
    }
    __syncthreads();
    scale_rows(s, whole);
    mma<T, chunk>(Product(s, OperandAt<width>(left, 0, w * 2), OperandB<value_tile>(right)));
  }
  write_state(s, walk.last, sizes, sequence, column);
}

constexpr int delta_stage_bytes = 2 * tile_bytes + value_tile_bytes + rates_size * 4;  // k, X, v, rates
constexpr int delta_stages = 4, delta_walk_bytes = delta_stages * delta_stage_bytes + 3 * value_tile_bytes;

template <class T>
__global__ void __launch_bounds__(threads) recurrence_delta_walk(Sizes sizes, Rows k, Rows v, const float* rates, const T* inverses,
                                                                 const float* initial, float* last, T* states, T* u) {
  extern __shared__ __align__(128) char memory[];
  const int sequence = blockIdx.x / (width / value_tile), column = blockIdx.x % (width / value_tile) * value_tile, w = warp();
  const unsigned state_tile = shared_address(memory) + delta_stages * delta_stage_bytes, error_tile = state_tile + value_tile_bytes,
                 u_tile = error_tile + value_tile_bytes;
  const auto load = [&](int n) {
    if (n < sizes.chunks) {
      const Place at(sizes, sequence, n);
      const unsigned to = shared_address(memory) + n % delta_stages * delta_stage_bytes;
      load_tile<width>(to, at.rows<const T>(k), k.token, at.count, sizes.keys);
      load_tile(to + tile_bytes, at.tile(inverses, sizes));
      const T* const values = at.rows<const T>(v);
      load_tile<value_tile>(to + 2 * tile_bytes, column < sizes.values ? values + column : values, v.token, at.count,
                            sizes.values - column);
      load_rates(to + 2 * tile_bytes + value_tile_bytes, at.tile(rates, sizes, rates_size));
    }
    cp_async_commit();
  };
  State s;
  load_state(s, initial, sizes, sequence, column);
  for (int n = 0; n < delta_stages - 1; ++n) load(n);
  for (int n = 0; n < sizes.chunks; ++n) {
    const int stage = n % delta_stages * delta_stage_bytes;
    const unsigned k_tile = shared_address(memory) + stage, x_tile = k_tile + tile_bytes, v_tile = x_tile + tile_bytes;
    const float* const sums = reinterpret_cast<const float*>(memory + stage + 2 * tile_bytes + value_tile_bytes);
    const HeadDecay decay{sums};
    const Place at(sizes, sequence, n);
    store_tile<T>(s, state_tile);
    wait_for_stage(delta_stages);
    __syncthreads();  // all copies of the stage have arrived, and all warps are done with the one before it
    load(n + delta_stages - 1);
    write_rows<T>(s, at.tile(states, sizes) + column, width, width, value_tile);
    State x = {};  // here rows are tokens
    mma<T, width>(Product(x, OperandA<width>(k_tile, w * 16), OperandB<value_tile>(state_tile)));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = w * 16 + x.row_of(r);
      const float beta = sums[chunk + i], read = decay.from_start(i);
#pragma unroll
      for (int c = 0; c < x.lane_columns; c += 2) {
        const float2 value = read_tile<T, value_tile>(v_tile, i, x.column_of(c));
        x.at(r, c) = beta * (value.x - read * x.at(r, c));
        x.at(r, c + 1) = beta * (value.y - read * x.at(r, c + 1));
      }
    }
    store_tile<T>(x, error_tile);
    __syncthreads();
    x = {};
    mma_depths<T, chunk>(Product(x, OperandA<width>(x_tile, w * 16), OperandB<value_tile>(error_tile)), 0, w + 1);
    write_rows<T>(x, at.tile(u, sizes) + column, width, chunk, value_tile);
    const float ends[2] = {decay.to_end(w * 16 + x.row_of(0)), decay.to_end(w * 16 + x.row_of(1))},
                whole[2] = {decay.whole(), decay.whole()};
    scale_rows(x, ends);
    store_tile<T>(x, u_tile);
    __syncthreads();
    scale_rows(s, whole);
    mma<T, chunk>(Product(s, OperandAt<width>(k_tile, 0, w * 2), OperandB<value_tile>(u_tile)));
  }
  write_state(s, last, sizes, sequence, column);
}

// y = (q P) S + tril(R q k^T) u.

constexpr int output_tiles = 4;
template <Kind kind>
constexpr int output_bytes = output_tiles * tile_bytes + (kind == Kind::channel ? decay_bytes : rates_size * 4);

template <class T, Kind kind>
__global__ void __launch_bounds__(threads, 4)
    recurrence_outputs(Sizes sizes, Rows q, Rows k, Rows u, const float* rates, const T* states, Rows y) {
  extern __shared__ __align__(128) char memory[];
  __shared__ float totals[kind == Kind::channel ? 4 * width : 1];
  const unsigned q_tile = shared_address(memory), k_tile = q_tile + tile_bytes, u_tile = k_tile + tile_bytes,
                 state_tile = u_tile + tile_bytes, decays = state_tile + tile_bytes;
  const Place at = Place::of_block(sizes);
  const int w = warp();
  load_tile<width>(q_tile, at.rows<const T>(q), q.token, at.count, sizes.keys);
  load_tile<width>(k_tile, at.rows<const T>(k), k.token, at.count, sizes.keys);
  if constexpr (kind == Kind::channel) load_decays<T>(decays, sizes, at);
  else load_rates(decays, at.tile(rates, sizes, rates_size));
  load_tile<width>(u_tile, at.rows<const T>(u), u.token, kind == Kind::delta ? chunk : at.count,
                   kind == Kind::delta ? width : sizes.values);
  load_tile(state_tile, at.tile(states, sizes));
  cp_async_commit();
  cp_async_wait_all();
  __syncthreads();
  bool is_strong = false;
  if constexpr (kind == Kind::channel) {
    is_strong = put_hats<T>(decays, sizes.decay_is_f32, totals, q_tile, k_tile, state_tile, 0);
    __syncthreads();
    if (is_strong) {
      multiply_pairs<T>(k_tile, q_tile, k_tile, decays);
      decay_rows<T>(q_tile, decays);
      __syncthreads();
    }
  }
  const HeadDecay decay{reinterpret_cast<const float*>(memory + output_tiles * tile_bytes)};
  FragmentTile<16, width> out = {};
  const OperandA<width> queries(q_tile, w * 16);
  mma<T, width>(Product(out, queries, OperandB<width>(state_tile)));
  RegisterOperand<16, chunk> products;
  if (is_strong) {
    products.template assign<T>(OperandA<width>(k_tile, w * 16));
  } else {
    FragmentTile<16, chunk> a = {};
    mma_columns<T, width>(Product(a, queries, OperandBt<width>(k_tile)), w + 1);
    a.for_each(a.column_tiles, [&](float& e, int r, int c) {
      const int i = w * 16 + a.row_of(r), j = a.column_of(c);
      if constexpr (kind == Kind::channel) e = j <= i ? e : 0;
      else e *= decay.ratio(i, j);
    });
    products.template assign<T>(a);
  }
  if constexpr (kind != Kind::channel) {
    const float starts[2] = {decay.from_start(w * 16 + out.row_of(0)), decay.from_start(w * 16 + out.row_of(1))};
    scale_rows(out, starts);
  }
  mma_depths<T, chunk>(Product(out, products, OperandB<width>(u_tile)), 0, w + 1);
  write_rows<T>(out, at.rows<T>(y), y.token, at.count, sizes.values);
}

}  // namespace

Rows rows_of_chunks(void* data, const Sizes& sizes) {
  Rows rows;
  rows.data = data;
  rows.token = width;
  rows.head = std::int64_t(sizes.chunks) * state_size;
  rows.batch = rows.head * sizes.heads;
  return rows;
}

void head_rates(const Call& call, const View& beta, float* rates) {
  const std::int64_t units = call.sequences * call.sizes.chunks;
  if (units == 0) return;
  launch(recurrence_rates, blocks_for(units, threads / 32), threads, 0, call.stream, call.sizes, units, beta.as<const float>(), Rows(beta),
         rates);
}

void solve_chunks(const Call& call, const float* rates, void* inverses, const Rows& dy, void* products) {
  dispatch_halves(call.dtype, [&]<class T>() {
    launch(recurrence_solve<T>, blocks_for(call.sequences * call.sizes.chunks, 1), threads, products ? solve_bytes : inverse_bytes,
           call.stream, call.sizes, call.q, call.k, rates, static_cast<T*>(inverses), dy, static_cast<T*>(products));
  });
}

void walk(const Call& call, const float* rates, const Walk* walks, int count) {
  dispatch_halves(call.dtype, [&]<class T>() {
    const auto with = [&]<Kind kind>() {
      const dim3 grid(blocks_for(call.sequences * (width / value_tile), 1), static_cast<unsigned>(count));
      const int rest = kind == Kind::head ? rates_size * 4 : state_size * (call.sizes.decay_is_f32 ? 4 : 2);
      const int stage_bytes = tile_bytes + value_tile_bytes + rest;
      // Two blocks of a walk on a multiprocessor, and four of two: those of 8 sequences with 16 heads are then resident together.
      const int stages = std::clamp((count == 1 ? 96 : 52) * 1024 / stage_bytes, 2, 4);
      launch(recurrence_walk<T, kind>, grid, threads, stages * stage_bytes, call.stream, call.sizes, rates, stages, stage_bytes, walks[0],
             walks[count - 1]);
    };
    if (rates) with.template operator()<Kind::head>();
    else with.template operator()<Kind::channel>();
  });
}

void delta_walk(const Call& call, const float* rates, const void* inverses, const float* initial, float* last, void* states, void* u) {
  dispatch_halves(call.dtype, [&]<class T>() {
    launch(recurrence_delta_walk<T>, blocks_for(call.sequences * (width / value_tile), 1), threads, delta_walk_bytes, call.stream,
           call.sizes, call.k, call.v, rates, static_cast<const T*>(inverses), initial, last, static_cast<T*>(states), static_cast<T*>(u));
  });
}

}  // namespace tern::gpu::recurrence

namespace tern::kernels {

bool has_chunked_recurrence(Cuda, Device device) { return gpu::attribute(cudaDevAttrComputeCapabilityMajor, device) >= 8; }
static_assert(ChunkedRecurrence::widest == gpu::recurrence::width);

void ChunkedRecurrence::run(Cuda) const {
  using namespace gpu::recurrence;
  const Call call(*this);
  const Sizes& sizes = call.sizes;
  const gpu::Workspace states = chunk_memory<std::uint16_t>(sizes, call.sequences, state_size, call.stream);
  const bool is_channel = log_decay.data && log_decay.dims() == 4, is_delta = beta.data;
  const auto outputs = [&]<Kind kind>(const Rows& u, const float* rates) {
    gpu::dispatch_halves(call.dtype, [&]<class T>() {
      gpu::launch(recurrence_outputs<T, kind>, gpu::blocks_for(call.sequences * sizes.chunks, 1), threads, output_bytes<kind>, call.stream,
                  sizes, call.q, call.k, u, rates, states.as<const T>(), Rows(y));
    });
  };
  if (is_channel) {
    const Walk forward{call.k, call.v, initial.as<const float>(), state.as<float>(), states.as(), false};
    walk(call, nullptr, &forward, 1);
    return outputs.template operator()<Kind::channel>(call.v, nullptr);
  }
  const gpu::Workspace rates = chunk_memory<float>(sizes, call.sequences, rates_size, call.stream);
  head_rates(call, beta, rates.as<float>());
  if (!is_delta) {
    const Walk forward{call.k, call.v, initial.as<const float>(), state.as<float>(), states.as(), false};
    walk(call, rates.as<const float>(), &forward, 1);
    return outputs.template operator()<Kind::head>(call.v, rates.as<const float>());
  }
  const gpu::Workspace inverses = chunk_memory<std::uint16_t>(sizes, call.sequences, state_size, call.stream),
                       u = chunk_memory<std::uint16_t>(sizes, call.sequences, state_size, call.stream);
  solve_chunks(call, rates.as<const float>(), inverses.as(), Rows(), nullptr);
  delta_walk(call, rates.as<const float>(), inverses.as(), initial.as<const float>(), state.as<float>(), states.as(), u.as());
  outputs.template operator()<Kind::delta>(rows_of_chunks(u.as(), sizes), rates.as<const float>());
}

}  // namespace tern::kernels
