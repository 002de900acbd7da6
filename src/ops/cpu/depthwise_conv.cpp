#include "ops/cpu/rows.h"
#include "ops/kernels/conv.h"
#include "ops/kernels/math.h"

// Depthwise convolution on the CPU, and its gradient. Both process one tile at a time, which stays in the cache. If channels are adjacent
// in memory, a tile is some positions of up to `tile_channels` channels, and loops run along channels, each with its own taps. Otherwise it
// is a range of positions of one channel, and loops run along positions with the same taps. Elements outside a signal are read from a row
// of zeros, so no loop has a branch.
namespace tern::kernels {

using namespace loops;

namespace {

constexpr std::int64_t tile_channels = 512, tile_positions = 16;

bool is_channels_last(const View& u) { return u.strides[1] != 1 || (u.strides[2] == 1 && u.shape[2] > 1); }

/// out[i] = bias[i] + sum over k of taps[k][i] rows[k][i] for n elements; for a range of one channel, with taps[k][0] and bias[0].
template <class C>
struct Taps {
  const C* values;  ///< (K, pitch)
  std::int64_t pitch;
  const C* bias;
  std::int64_t count;  ///< number of taps, K
};
template <class C>
using Convolve = void (*)(const C* const* rows, const Taps<C>& taps, C* out, std::int64_t n);

template <class C, bool along_channels, int K>
void convolve(const C* const* rows, const Taps<C>& taps, C* out, std::int64_t n) {
  const C* row[K];
  const C* tap[K];
  for (int k = 0; k < K; ++k) row[k] = rows[k], tap[k] = taps.values + k * taps.pitch;
  const C* const bias = taps.bias;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    C sum = bias[along_channels ? i : 0];
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) sum += tap[k][along_channels ? i : 0] * row[k][i];
    out[i] = sum;
  }
}

/// The same for any number of taps: `out` is read from the L1 cache once for each tap.
template <class C, bool along_channels>
void convolve_any(const C* const* rows, const Taps<C>& taps, C* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = taps.bias[along_channels ? i : 0];
  for (std::int64_t k = 0; k < taps.count; ++k) {
    const C *const row = rows[k], *const tap = taps.values + k * taps.pitch;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] += tap[along_channels ? i : 0] * row[i];
  }
}

template <class C, bool along_channels>
Convolve<C> convolve_for(std::int64_t taps) {
  switch (taps) {
    case 2: return convolve<C, along_channels, 2>;
    case 3: return convolve<C, along_channels, 3>;
    case 4: return convolve<C, along_channels, 4>;
    case 5: return convolve<C, along_channels, 5>;
    case 7: return convolve<C, along_channels, 7>;
    default: return convolve_any<C, along_channels>;
  }
}

/// rows[r] = n elements, from channel c on, of position first + r of batch b, for r < count: pointers into the signal, or into the buffer,
/// where rows are `tile_channels` apart.
template <class C, class S>
void fetch_rows(const View& x, std::int64_t b, std::int64_t first, std::int64_t count, std::int64_t c, std::int64_t n, const C* zeros,
                C* buffer, const C** rows) {
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t position = first + r;
    const bool is_inside = position >= 0 && position < x.shape[1];
    rows[r] = is_inside ? load(x.as<const S>() + b * x.strides[0] + position * x.strides[1] + c * x.strides[2], x.strides[2], n,
                               buffer + r * tile_channels)
                        : zeros;
  }
}

/// Positions first .. first + count - 1 of a channel: a pointer into the signal, or into the buffer.
template <class C, class S>
const C* fetch_run(const View& x, std::int64_t b, std::int64_t c, std::int64_t first, std::int64_t count, C* buffer) {
  const std::int64_t begin = std::clamp<std::int64_t>(-first, 0, count), end = std::clamp(x.shape[1] - first, begin, count);
  const S* const from = x.as<const S>() + b * x.strides[0] + (first + begin) * x.strides[1] + c * x.strides[2];
  if (begin == 0 && end == count) return load(from, x.strides[1], count, buffer);
  std::fill_n(buffer, begin, C(0));
  std::fill_n(buffer + end, count - end, C(0));
  if (begin < end) {
    const C* const inside = load(from, x.strides[1], end - begin, buffer + begin);
    if (inside != buffer + begin) std::copy_n(inside, end - begin, buffer + begin);
  }
  return buffer;
}

/// Taps (D, K) and bias converted to C: for each channel its taps, or with `by_tap` for each tap its channels; taps reversed with
/// `flipped`.
template <class C>
class Parameters {
 public:
  template <class S>
  Parameters(const View& w, const View& bias, bool by_tap, bool flipped, const Stream& stream, S)
      : channels_(w.shape[0]), count_(w.shape[1]), by_tap_(by_tap), memory_(channels_ * (count_ + 1), stream) {
    C *const values = memory_.data(), *const shifts = values + channels_ * count_;
    for (std::int64_t c = 0; c < channels_; ++c) {
      for (std::int64_t k = 0; k < count_; ++k)
        values[by_tap ? k * channels_ + c : c * count_ + k] = convert<C>(w.as<const S>()[c * count_ + (flipped ? count_ - 1 - k : k)]);
      shifts[c] = bias.data ? convert<C>(bias.as<const S>()[c]) : C(0);
    }
  }

  /// The taps from channel c on, or those of channel c only.
  Taps<C> at(std::int64_t c) const {
    const C *const values = memory_.data(), *const shifts = values + channels_ * count_;
    if (by_tap_) return {values + c, channels_, shifts + c, count_};
    return {values + c * count_, 1, shifts + c, count_};
  }

 private:
  std::int64_t channels_, count_;
  bool by_tap_;
  Scratch<C> memory_;
};

/// Epilogue of n sums, SiLU and conversion, on the way to y: `out` holds the sums, and is y itself or a buffer.
template <class C, class S>
void finish(C* out, bool silu, S* y, std::int64_t stride, std::int64_t n) {
  if (silu) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] = out[i] * vector_math::sigmoid(out[i]);
  }
  store(out, y, stride, n);
}

template <class C, class S>
void convolve_channels_last(const DepthwiseConv1d& a) {
  const std::int64_t positions = a.y.shape[1], channels = a.y.shape[2], taps = a.w.shape[1];
  const std::int64_t tiles = (positions + tile_positions - 1) / tile_positions, runs = (channels + tile_channels - 1) / tile_channels;
  const std::int64_t rows_of_tile = tile_positions + taps - 1, threads = num_threads();
  const Parameters<C> parameters(a.w, a.bias, true, false, a.y.stream, S());
  const Scratch<C> zeros(tile_channels, a.y.stream), memory(threads * (rows_of_tile + 1) * tile_channels, a.y.stream);
  const Scratch<const C*> pointers(threads * rows_of_tile, a.y.stream);
  std::fill_n(zeros.data(), tile_channels, C(0));
  const Convolve<C> convolve_row = convolve_for<C, true>(taps);
  parallel_units(a.y.shape[0] * tiles * runs, tile_positions * std::min(channels, tile_channels), stream_grain,
                 [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
                   C *const buffer = memory.data() + thread * (rows_of_tile + 1) * tile_channels, *const sums =
                                                                                                      buffer + rows_of_tile * tile_channels;
                   const C** const rows = pointers.data() + thread * rows_of_tile;
                   for (std::int64_t unit = begin; unit < end; ++unit) {
                     const std::int64_t c = unit % runs * tile_channels, tile = unit / runs % tiles, b = unit / runs / tiles;
                     const std::int64_t n = std::min(tile_channels, channels - c), first = tile * tile_positions,
                                        count = std::min(tile_positions, positions - first);
                     fetch_rows<C, S>(a.u, b, first - a.left, count + taps - 1, c, n, zeros.data(), buffer, rows);
                     for (std::int64_t r = 0; r < count; ++r) {
                       S* const y = a.y.as<S>() + b * a.y.strides[0] + (first + r) * a.y.strides[1] + c * a.y.strides[2];
                       C* const out = target(y, a.y.strides[2], n, sums);
                       convolve_row(rows + r, parameters.at(c), out, n);
                       finish(out, a.silu, y, a.y.strides[2], n);
                     }
                   }
                 });
}

template <class C, class S>
void convolve_channels_first(const DepthwiseConv1d& a) {
  const std::int64_t positions = a.y.shape[1], channels = a.y.shape[2], taps = a.w.shape[1];
  const std::int64_t runs = (positions + chunk - 1) / chunk, run_size = chunk + taps - 1, threads = num_threads();
  const Parameters<C> parameters(a.w, a.bias, false, false, a.y.stream, S());
  const Scratch<C> memory(threads * (run_size + chunk), a.y.stream);
  const Scratch<const C*> pointers(threads * taps, a.y.stream);
  const Convolve<C> convolve_run = convolve_for<C, false>(taps);
  parallel_units(a.y.shape[0] * channels * runs, std::min(positions, chunk), stream_grain,
                 [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
                   C *const buffer = memory.data() + thread * (run_size + chunk), *const sums = buffer + run_size;
                   const C** const rows = pointers.data() + thread * taps;
                   const auto make = [&](std::int64_t b, std::int64_t c, std::int64_t first, std::int64_t last) {
                     const std::int64_t n = last - first;
                     if (n <= 0) return;
                     const C* const run = fetch_run<C, S>(a.u, b, c, first - a.left, n + taps - 1, buffer);
                     for (std::int64_t k = 0; k < taps; ++k) rows[k] = run + k;
                     S* const y = a.y.as<S>() + b * a.y.strides[0] + first * a.y.strides[1] + c * a.y.strides[2];
                     C* const out = target(y, a.y.strides[1], n, sums);
                     convolve_run(rows, parameters.at(c), out, n);
                     finish(out, a.silu, y, a.y.strides[1], n);
                   };
                   for (std::int64_t unit = begin; unit < end; ++unit) {
                     const std::int64_t first = unit % runs * chunk, c = unit / runs % channels, b = unit / runs / channels,
                                        last = std::min(first + chunk, positions);
                     // Positions that see padding are separate, so that the inputs of all others are read in place.
                     const std::int64_t from = std::clamp(a.left, first, last),
                                        to = std::clamp(a.u.shape[1] + a.left - taps + 1, from, last);
                     make(b, c, first, from);
                     make(b, c, from, to);
                     make(b, c, to, last);
                   }
                 });
}

}  // namespace

static void depthwise_conv1d(const DepthwiseConv1d& a) {
  if (a.y.numel() == 0) return;
  dispatch_floats(a.y.dtype, "depthwise_conv1d", [&]<class S>() {
    if (is_channels_last(a.u)) convolve_channels_last<compute_t<S>, S>(a);
    else convolve_channels_first<compute_t<S>, S>(a);
  });
}
void DepthwiseConv1d::run(Cpu) const { depthwise_conv1d(*this); }

// Note [Steps of the gradient]: step t of the kernel writes du[t], which needs dz[t + left - K + 1 .. t + left], and adds the contribution
// of dz[t + left] to dw and db, which needs u[t .. t + K - 1]. Steps run over every t for which one of the two exists. So u and g are read
// once, except for the K - 1 positions before a tile, where dz is computed a second time.

namespace {

/// Parts into which the steps are divided, of a size that depends on the shape alone. Each part adds up dw and db in order, and the parts
/// are added in order at the end, so the sums do not depend on the number of threads.
struct Parts {
  std::int64_t first, steps, batches, of_batch, size;

  explicit Parts(const DepthwiseConv1dGrad& a)
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
    const C s = vector_math::sigmoid(z[i]);
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
void differentiate_channels_last(const DepthwiseConv1dGrad& a, const Parts& parts, C* part_sums) {
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
void differentiate_channels_first(const DepthwiseConv1dGrad& a, const Parts& parts, C* part_sums) {
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

}  // namespace

static void depthwise_conv1d_grad(const DepthwiseConv1dGrad& a) {
  const std::int64_t channels = a.u.shape[2], taps = a.w.shape[1];
  const Parts parts(a);
  dispatch_floats(a.u.dtype, "depthwise_conv1d_grad", [&]<class S>() {
    using C = compute_t<S>;
    const Scratch<C> sums(parts.count() * (taps + 1) * channels, a.u.stream);
    if (is_channels_last(a.u)) differentiate_channels_last<C, S>(a, parts, sums.data());
    else differentiate_channels_first<C, S>(a, parts, sums.data());
    const auto add_up = [&](std::int64_t k, S* to, std::int64_t stride) {
      sum_parts(sums.data() + k * channels, parts.count(), (taps + 1) * channels, channels, to, stride, Write::overwrite);
    };
    if (a.dw.data)
      for (std::int64_t k = 0; k < taps; ++k) add_up(k, a.dw.as<S>() + k, taps);
    if (a.db.data) add_up(taps, a.db.as<S>(), 1);
  });
}
void DepthwiseConv1dGrad::run(Cpu) const { depthwise_conv1d_grad(*this); }

}  // namespace tern::kernels
