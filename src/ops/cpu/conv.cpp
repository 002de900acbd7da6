#include "ops/cpu/conv.h"

#include "ops/kernels/conv.h"

namespace tern::kernels {

using namespace loops;
using namespace loops::conv;

namespace {

/// Epilogue of n sums, SiLU and conversion, on the way to y: `out` holds the sums, and is y itself or a buffer.
template <class C, class S>
void finish(C* out, bool silu, S* y, std::int64_t stride, std::int64_t n) {
  if (silu) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] = out[i] * conv::sigmoid(out[i]);
  }
  store(out, y, stride, n);
}

template <class C, class S>
void convolve_channels_last(const DepthwiseConv1dArguments& a) {
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
void convolve_channels_first(const DepthwiseConv1dArguments& a) {
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

void depthwise_conv1d(Cpu, const DepthwiseConv1dArguments& a) {
  if (a.y.numel() == 0) return;
  dispatch_floats(a.y.dtype, "depthwise_conv1d", [&]<class S>() {
    if (is_channels_last(a.u)) convolve_channels_last<compute_t<S>, S>(a);
    else convolve_channels_first<compute_t<S>, S>(a);
  });
}

}  // namespace tern::kernels
