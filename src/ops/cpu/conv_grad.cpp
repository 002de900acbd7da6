#include "ops/cpu/conv.h"
#include "ops/cpu/rows.h"
#include "ops/kernels/conv.h"

namespace tern::kernels {

using namespace loops;
using namespace loops::conv;

// Note [Steps of the gradient]: step t of the kernel writes du[t], which needs dz[t + left - K + 1 .. t + left], and adds the contribution
// of dz[t + left] to dw and db, which needs u[t .. t + K - 1]. Steps run over every t for which one of the two exists. So u and g are read
// once, except for the K - 1 positions before a tile, where dz is computed a second time.

namespace {

/// Parts into which the steps are divided, of a size that depends on the shape alone. Each part adds up dw and db in order, and the parts
/// are added in order at the end, so the sums do not depend on the number of threads.
struct Parts {
  std::int64_t first, steps, batches, of_batch, size;

  explicit Parts(const DepthwiseConv1dGradArguments& a)
      : first(std::min<std::int64_t>(0, -a.left)), steps(std::max(a.u.shape[1], a.g.shape[1] - a.left) - first), batches(a.u.shape[0]) {
    constexpr std::int64_t most = 64;
    const std::int64_t shortest = is_channels_last(a.u) ? 64 : 2 * chunk;
    of_batch = std::clamp<std::int64_t>(steps / shortest, 1, std::max<std::int64_t>(most / std::max<std::int64_t>(batches, 1), 1));
    size = (steps + of_batch - 1) / of_batch;
  }
  std::int64_t count() const { return batches * of_batch; }
  std::int64_t batch(std::int64_t part) const { return part / of_batch; }
  std::int64_t begin(std::int64_t part) const { return first + part % of_batch * size; }
  std::int64_t end(std::int64_t part) const { return std::min(begin(part) + size, first + steps); }
};

/// dz = g silu'(z) for n elements. dz may be z.
template <class C>
void through_silu(const C* g, const C* z, C* dz, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const C s = conv::sigmoid(z[i]);
    dz[i] = g[i] * (s * (1 + z[i] * (1 - s)));
  }
}

/// sums[k][i] += dz[0][i] u[k][i] + ... + dz[R - 1][i] u[k + R - 1][i], and sums[K][i] += dz[0][i] + ...: R positions at once, because the
/// sums are read from the cache and written back.
template <int R, class C>
void add_products(const C* const* dz, const C* const* u, C* sums, std::int64_t pitch, std::int64_t taps, std::int64_t n) {
  for (std::int64_t k = 0; k < taps; ++k) {
    C* const sum = sums + k * pitch;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      C total = sum[i];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) total += dz[r][i] * u[k + r][i];
      sum[i] = total;
    }
  }
  C* const sum = sums + taps * pitch;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    C total = sum[i];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) total += dz[r][i];
    sum[i] = total;
  }
}

template <class C, class S>
void differentiate_channels_last(const DepthwiseConv1dGradArguments& a, const Parts& parts, C* part_sums) {
  constexpr std::int64_t channels_at_once = tile_channels / 2;  // the tile holds u, g and dz
  const std::int64_t channels = a.u.shape[2], taps = a.w.shape[1], halo = taps - 1, threads = num_threads();
  const std::int64_t runs = (channels + channels_at_once - 1) / channels_at_once;
  const std::int64_t u_rows = tile_positions + 2 * halo, g_rows = tile_positions + halo, rows_of_tile = u_rows + 2 * g_rows + 1;
  const Parameters<C> forward(a.w, a.bias, true, false, a.u.stream, S()), backward(a.w, View{}, true, true, a.u.stream, S());
  const Scratch<C> zeros(tile_channels, a.u.stream), memory(threads * rows_of_tile * tile_channels, a.u.stream);
  const Scratch<const C*> pointers(threads * rows_of_tile, a.u.stream);
  std::fill_n(zeros.data(), tile_channels, C(0));
  const Convolve<C> convolve_row = convolve_for<C, true>(taps);
  parallel_units(parts.count() * runs, parts.size * std::min(channels, channels_at_once), stream_grain,
                 [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
                   C *const u_buffer = memory.data() + thread * rows_of_tile * tile_channels, *const g_buffer =
                                                                                                  u_buffer + u_rows * tile_channels;
                   C *const dz_buffer = g_buffer + g_rows * tile_channels, *const sums = dz_buffer + g_rows * tile_channels;
                   const C **const u = pointers.data() + thread * rows_of_tile, **const dz = u + u_rows;
                   for (std::int64_t unit = begin; unit < end; ++unit) {
                     const std::int64_t c = unit % runs * channels_at_once, part = unit / runs, b = parts.batch(part),
                                        n = std::min(channels_at_once, channels - c);
                     C* const totals = part_sums + part * (taps + 1) * channels + c;
                     for (std::int64_t k = 0; k <= taps; ++k) std::fill_n(totals + k * channels, n, C(0));
                     for (std::int64_t t = parts.begin(part); t < parts.end(part); t += tile_positions) {
                       const std::int64_t count = std::min(tile_positions, parts.end(part) - t);
                       fetch_rows<C, S>(a.u, b, t - halo, count + 2 * halo, c, n, zeros.data(), u_buffer, u);
                       fetch_rows<C, S>(a.g, b, t + a.left - halo, count + halo, c, n, zeros.data(), g_buffer, dz);
                       for (std::int64_t r = 0; a.silu && r < count + halo; ++r) {
                         if (dz[r] == zeros.data()) continue;
                         C* const z = dz_buffer + r * tile_channels;
                         convolve_row(u + r, forward.at(c), z, n);
                         through_silu(dz[r], z, z, n);
                         dz[r] = z;
                       }
                       for (std::int64_t r = 0; a.du.data && r < count; ++r) {
                         if (t + r < 0 || t + r >= a.du.shape[1]) continue;
                         S* const du = a.du.as<S>() + b * a.du.strides[0] + (t + r) * a.du.strides[1] + c * a.du.strides[2];
                         C* const out = target(du, a.du.strides[2], n, sums);
                         convolve_row(dz + r, backward.at(c), out, n);
                         store(out, du, a.du.strides[2], n);
                       }
                       if (!a.dw.data && !a.db.data) continue;
                       std::int64_t r = halo;
                       for (; r + 4 <= count + halo; r += 4) add_products<4>(dz + r, u + r, totals, channels, taps, n);
                       for (; r < count + halo; ++r) add_products<1>(dz + r, u + r, totals, channels, taps, n);
                     }
                   }
                 });
}

template <class C>
double dot(const C* a, const C* b, std::int64_t n) {
  return sums<1, C>(n, [=](auto at) { return std::array{at(a) * at(b)}; })[0];
}
template <class C>
double total(const C* a, std::int64_t n) {
  return sums<1, C>(n, [=](auto at) { return std::array{at(a)}; })[0];
}

template <class C, class S>
void differentiate_channels_first(const DepthwiseConv1dGradArguments& a, const Parts& parts, C* part_sums) {
  const std::int64_t channels = a.u.shape[2], taps = a.w.shape[1], halo = taps - 1, threads = num_threads();
  const std::int64_t run_size = chunk + 2 * halo;
  const Parameters<C> forward(a.w, a.bias, false, false, a.u.stream, S()), backward(a.w, View{}, false, true, a.u.stream, S());
  const Scratch<C> memory(threads * 4 * run_size, a.u.stream);
  const Scratch<const C*> pointers(threads * taps, a.u.stream);
  const Scratch<double> sum_memory(threads * (taps + 1), a.u.stream);
  const Convolve<C> convolve_run = convolve_for<C, false>(taps);
  parallel_units(parts.count() * channels, parts.size, stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
    C *const u_buffer = memory.data() + thread * 4 * run_size, *const g_buffer = u_buffer + run_size,
             *const dz_buffer = g_buffer + run_size;
    const C** const rows = pointers.data() + thread * taps;
    double* const totals = sum_memory.data() + thread * (taps + 1);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t c = unit % channels, part = unit / channels, b = parts.batch(part);
      std::fill_n(totals, taps + 1, 0.0);
      for (std::int64_t t = parts.begin(part); t < parts.end(part); t += chunk) {
        const std::int64_t count = std::min(chunk, parts.end(part) - t);
        const C* const u = fetch_run<C, S>(a.u, b, c, t - halo, count + 2 * halo, u_buffer);
        const C* dz = fetch_run<C, S>(a.g, b, c, t + a.left - halo, count + halo, g_buffer);
        if (a.silu) {
          for (std::int64_t k = 0; k < taps; ++k) rows[k] = u + k;
          convolve_run(rows, forward.at(c), dz_buffer, count + halo);
          through_silu(dz, dz_buffer, dz_buffer, count + halo);
          dz = dz_buffer;
        }
        const std::int64_t from = std::clamp<std::int64_t>(-t, 0, count), n = std::clamp(a.u.shape[1] - t, from, count) - from;
        if (a.du.data && n > 0) {
          S* const du = a.du.as<S>() + b * a.du.strides[0] + (t + from) * a.du.strides[1] + c * a.du.strides[2];
          C* const out = target(du, a.du.strides[1], n, dz_buffer + run_size);
          for (std::int64_t k = 0; k < taps; ++k) rows[k] = dz + from + k;
          convolve_run(rows, backward.at(c), out, n);
          store(out, du, a.du.strides[1], n);
        }
        if (!a.dw.data && !a.db.data) continue;
        for (std::int64_t k = 0; k < taps; ++k) totals[k] += dot(dz + halo, u + halo + k, count);
        totals[taps] += total(dz + halo, count);
      }
      for (std::int64_t k = 0; k <= taps; ++k) part_sums[(part * (taps + 1) + k) * channels + c] = C(totals[k]);
    }
  });
}

/// y[c] = the sum over parts of parts[part][k][c], for a tap k, or for the bias.
template <class C, class S>
void add_parts(const C* parts, std::int64_t count, std::int64_t taps, std::int64_t k, std::int64_t channels, S* y, std::int64_t stride) {
  parallel_units((channels + chunk - 1) / chunk, chunk * count, stream_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin * chunk; c < std::min(end * chunk, channels); c += chunk) {
      const std::int64_t n = std::min(chunk, channels - c);
      alignas(64) double totals[chunk] = {};
      for (std::int64_t part = 0; part < count; ++part) {
        const C* const values = parts + (part * (taps + 1) + k) * channels + c;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) totals[i] += double(values[i]);
      }
      alignas(64) C rounded[chunk];
      convert_run(totals, rounded, n);
      store(rounded, y + c * stride, stride, n);
    }
  });
}

}  // namespace

void depthwise_conv1d_grad(Cpu, const DepthwiseConv1dGradArguments& a) {
  const std::int64_t channels = a.u.shape[2], taps = a.w.shape[1];
  const Parts parts(a);
  dispatch_floats(a.u.dtype, "depthwise_conv1d_grad", [&]<class S>() {
    using C = compute_t<S>;
    const Scratch<C> sums(parts.count() * (taps + 1) * channels, a.u.stream);
    if (is_channels_last(a.u)) differentiate_channels_last<C, S>(a, parts, sums.data());
    else differentiate_channels_first<C, S>(a, parts, sums.data());
    if (a.dw.data)
      for (std::int64_t k = 0; k < taps; ++k) add_parts(sums.data(), parts.count(), taps, k, channels, a.dw.as<S>() + k, taps);
    if (a.db.data) add_parts(sums.data(), parts.count(), taps, taps, channels, a.db.as<S>(), 1);
  });
}

}  // namespace tern::kernels
