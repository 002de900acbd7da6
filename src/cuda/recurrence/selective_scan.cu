#include "cuda/device/convert.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/recurrence.h"
#include "tensor/dispatch.h"

// Selective scan on a GPU, token by token: a thread has 16 of the N numbers of a channel's state in registers. More of them are tiles of
// 16, one launch after the other, which add to what the first one wrote.
//
// Backward goes through chunks of tokens from the last to the first. The states at their borders come from a forward pass; within a chunk
// those of its tokens are computed again, and kept in shared memory. Sums over the channels of a group, for b and c, are of half a warp.
namespace tern::gpu::selective {

namespace {

constexpr int tile = 16, chunk = 8, threads = 64;
constexpr int group = kernels::SelectiveScanGrad::group;
static_assert(group == tile);  // lanes of a half warp end with a number each

struct Sizes {
  std::int64_t batch;
  int tokens, channels, numbers, chunks, groups;
  int first;  ///< of the tile's numbers
};

/// exp(x), of x log2(e).
__device__ __forceinline__ float power(float x) { return exp2f(x); }
__device__ __forceinline__ double power(double x) { return exp2(x); }
template <class C>
constexpr C bits = C(1.4426950408889634);  // log2(e)

/// A thread's channel of a row of the batch, by block: its numbers of a token are at signal(t), those of b and c at keys(t).
struct Place {
  std::int64_t row;
  int channel, count;  ///< count: numbers of the tile
  bool is_there;

  __device__ explicit Place(const Sizes& sizes)
      : row(blockIdx.y), channel(blockIdx.x * threads + threadIdx.x), count(min(sizes.numbers - sizes.first, tile)) {
    is_there = channel < sizes.channels;
    if (!is_there) channel = sizes.channels - 1;
  }
  __device__ std::int64_t signal(const Sizes& sizes, int t) const { return (row * sizes.tokens + t) * sizes.channels + channel; }
  __device__ std::int64_t keys(const Sizes& sizes, int t) const { return (row * sizes.tokens + t) * sizes.numbers + sizes.first; }
  __device__ std::int64_t state(const Sizes& sizes) const { return (row * sizes.channels + channel) * sizes.numbers + sizes.first; }
};

/// The tile's numbers of a row, and zeros.
template <class C, bool is_whole>
__device__ __forceinline__ void load(C (&to)[tile], const C* from, int count) {
  if constexpr (is_whole) {
#pragma unroll
    for (int i = 0; i < tile; i += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < tile; ++i) to[i] = i < count ? __ldg(from + i) : C(0);
  }
}

template <class C>
struct Operands {
  const C *x, *dt, *a, *b, *c;
};

/// The tile's rates of a channel, for power().
template <class C>
__device__ __forceinline__ void load_rates(C (&to)[tile], const Operands<C>& in, const Sizes& sizes, const Place& at) {
  load<C, false>(to, in.a + std::int64_t(at.channel) * sizes.numbers + sizes.first, at.count);
#pragma unroll
  for (C& a : to) a *= bits<C>;
}

/// y or borders (B, chunks, tile, D), the states before each chunk.
template <class C, bool is_whole>
__global__ void __launch_bounds__(threads)
    selective_scan_forward(Sizes sizes, Operands<C> in, const C* initial, C* y, C* state, C* borders) {
  const Place at(sizes);
  C a[tile], h[tile];
  load_rates(a, in, sizes, at);
  load<C, false>(h, initial + at.state(sizes), at.count);
  for (int t = 0; t < sizes.tokens; ++t) {
    if (borders && t % chunk == 0 && at.is_there) {
#pragma unroll
      for (int i = 0; i < tile; ++i) borders[((at.row * sizes.chunks + t / chunk) * tile + i) * sizes.channels + at.channel] = h[i];
    }
    const std::int64_t now = at.signal(sizes, t), keys = at.keys(sizes, t);
    const C step = in.dt[now], u = step * in.x[now];
    C b[tile], c[tile];
    load<C, is_whole>(b, in.b + keys, at.count);
    load<C, is_whole>(c, in.c + keys, at.count);
    C sum = y && sizes.first > 0 ? y[now] : C(0);
#pragma unroll
    for (int i = 0; i < tile; ++i) {
      h[i] = power(step * a[i]) * h[i] + u * b[i];
      sum += c[i] * h[i];
    }
    if (y && at.is_there) y[now] = sum;
  }
  if (!state || !at.is_there) return;
#pragma unroll
  for (int i = 0; i < tile; ++i)
    if (i < at.count) state[at.state(sizes) + i] = h[i];
}

/// The sum of x[l] over the lanes of a half warp, in its lane l.
template <class C>
__device__ __forceinline__ C sum_by_lane(C (&x)[tile]) {
#pragma unroll
  for (int half = tile / 2; half > 0; half /= 2) {
    const bool is_upper = threadIdx.x & half;
#pragma unroll
    for (int i = 0; i < half; ++i)
      x[i] = (is_upper ? x[i + half] : x[i]) + __shfl_xor_sync(0xffffffffu, is_upper ? x[i] : x[i + half], half);
  }
  return x[0];
}

template <class C, bool is_whole>
__global__ void __launch_bounds__(threads) selective_scan_backward(Sizes sizes, Operands<C> in, const C* dy_, const C* dstate,
                                                                   const C* borders, C* dx, C* ddt, C* da_, C* db, C* dc, C* dinitial) {
  extern __shared__ __align__(16) char memory[];
  C* const kept = reinterpret_cast<C*>(memory) + threadIdx.x;  // (chunk, tile, threads): states before each token
  const Place at(sizes);
  C a[tile], h[tile], d[tile], da[tile] = {};
  load_rates(a, in, sizes, at);
#pragma unroll
  for (C& g : d) g = 0;
  if (dstate) load<C, false>(d, dstate + at.state(sizes), at.count);
  for (int first = (sizes.chunks - 1) * chunk; first >= 0; first -= chunk) {
    const int end = min(first + chunk, sizes.tokens);
#pragma unroll
    for (int i = 0; i < tile; ++i) h[i] = borders[((at.row * sizes.chunks + first / chunk) * tile + i) * sizes.channels + at.channel];
    for (int t = first; t < end; ++t) {
      const std::int64_t now = at.signal(sizes, t);
      const C step = in.dt[now], u = step * in.x[now];
      C b[tile];
      load<C, is_whole>(b, in.b + at.keys(sizes, t), at.count);
#pragma unroll
      for (int i = 0; i < tile; ++i) {
        kept[((t - first) * tile + i) * threads] = h[i];
        h[i] = power(step * a[i]) * h[i] + u * b[i];
      }
    }
    for (int t = end - 1; t >= first; --t) {
      const std::int64_t now = at.signal(sizes, t), keys = at.keys(sizes, t);
      const C step = in.dt[now], x = in.x[now], dy = at.is_there ? dy_[now] : C(0), u = step * x;
      C b[tile], c[tile], of_b[tile], of_c[tile], of_u = 0, of_step = 0;
      load<C, is_whole>(b, in.b + keys, at.count);
      load<C, is_whole>(c, in.c + keys, at.count);
#pragma unroll
      for (int i = 0; i < tile; ++i) {
        const C before = kept[((t - first) * tile + i) * threads];
        of_c[i] = dy * h[i];
        h[i] = before;
        const C g = d[i] + c[i] * dy;
        of_b[i] = at.is_there ? g * u : C(0);
        of_u += g * b[i];
        d[i] = g * power(step * a[i]);
        const C of_exponent = d[i] * before;
        of_step += of_exponent * a[i];
        da[i] += of_exponent * step;
      }
      of_step = of_step / bits<C> + of_u * x;
      of_u *= step;
      if (at.is_there) {
        const bool is_more = sizes.first > 0;
        dx[now] = is_more ? dx[now] + of_u : of_u;
        ddt[now] = is_more ? ddt[now] + of_step : of_step;
      }
      const C b_sum = sum_by_lane(of_b), c_sum = sum_by_lane(of_c);
      const int lane = threadIdx.x % tile, part = (blockIdx.x * threads + threadIdx.x) / group;
      if (lane < at.count && part < sizes.groups) {
        const std::int64_t to = part * sizes.batch * sizes.tokens * sizes.numbers + keys + lane;
        db[to] = b_sum;
        dc[to] = c_sum;
      }
    }
  }
  if (!at.is_there) return;
#pragma unroll
  for (int i = 0; i < tile; ++i) {
    if (i >= at.count) break;
    da_[at.state(sizes) + i] = da[i];
    dinitial[at.state(sizes) + i] = d[i];
  }
}

/// Calls f<C, is_whole>(sizes, grid, operands) for each tile of numbers.
template <class Kernel, class F>
void for_each_tile(const Kernel& k, F f) {
  dispatch_f32_f64(k.x.dtype, "selective_scan", [&]<class C>() {
    const std::int64_t channels = k.x.shape[2], tokens = k.x.shape[1], numbers = k.a.shape[1];
    Sizes sizes{k.x.shape[0],
                static_cast<int>(tokens),
                static_cast<int>(channels),
                static_cast<int>(numbers),
                static_cast<int>(ceil_div(tokens, chunk)),
                static_cast<int>(ceil_div(channels, group)),
                0};
    const Operands<C> in{k.x.template as<const C>(), k.dt.template as<const C>(), k.a.template as<const C>(), k.b.template as<const C>(),
                         k.c.template as<const C>()};
    const dim3 grid(blocks_for(channels, threads), static_cast<unsigned>(sizes.batch));
    const auto is_aligned = [](const View& x) { return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0; };
    const bool is_whole = numbers % tile == 0 && is_aligned(k.b) && is_aligned(k.c);
    for (; sizes.first < sizes.numbers; sizes.first += tile) {
      if constexpr (std::is_same_v<C, float>)
        if (is_whole) {
          f.template operator()<C, true>(sizes, grid, in);
          continue;
        }
      f.template operator()<C, false>(sizes, grid, in);
    }
  });
}

}  // namespace

}  // namespace tern::gpu::selective

namespace tern::kernels {

using namespace gpu::selective;

bool has_selective_scan(Cuda, const View& x, const View& a) { return x.numel() > 0 && a.numel() > 0 && x.shape[0] < 65536; }

void SelectiveScan::run(Cuda) const {
  for_each_tile(*this, [&]<class C, bool is_whole>(const Sizes& sizes, dim3 grid, const Operands<C>& in) {
    gpu::launch(selective_scan_forward<C, is_whole>, grid, threads, 0, x.stream, sizes, in, initial.as<const C>(), y.as<C>(), state.as<C>(),
                nullptr);
  });
}

void SelectiveScanGrad::run(Cuda) const {
  for_each_tile(*this, [&]<class C, bool is_whole>(const Sizes& sizes, dim3 grid, const Operands<C>& in) {
    const gpu::Workspace borders(static_cast<std::size_t>(sizes.batch * sizes.chunks * tile * sizes.channels) * sizeof(C), x.stream);
    gpu::launch(selective_scan_forward<C, is_whole>, grid, threads, 0, x.stream, sizes, in, initial.as<const C>(), nullptr, nullptr,
                borders.as<C>());
    gpu::launch(selective_scan_backward<C, is_whole>, grid, threads, chunk * tile * threads * sizeof(C), x.stream, sizes, in,
                dy.as<const C>(), dstate.as<const C>(), borders.as<const C>(), dx.as<C>(), ddt.as<C>(), da.as<C>(), db.as<C>(), dc.as<C>(),
                dinitial.as<C>());
  });
}

}  // namespace tern::kernels
