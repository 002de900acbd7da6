#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "ops/cpu/gemm.h"
#include "ops/kernels/conv.h"
#include "tensor/sizes.h"

namespace tern::loops {

/// The positions [begin, end) along a dimension whose element under a tap is inside of the image, and the element under position 0.
struct Reach {
  std::int64_t begin, end, first;

  Reach(std::int64_t tap, std::int64_t size, const kernels::WindowAxis& axis) : first(tap * axis.dilation - axis.padding) {
    begin = first < 0 ? std::min(axis.positions, ceil_div(-first, axis.stride)) : 0;
    end = first < size ? std::clamp(ceil_div(size - first, axis.stride), begin, axis.positions) : begin;
  }
};

template <class T, int Lanes, class F>
[[gnu::always_inline]] inline void each_edge(std::int64_t n, std::int64_t i, F& f) {
  typedef T Vector __attribute__((vector_size(Lanes * sizeof(T))));
  if (n & Lanes) {
    f.template operator()<Vector>(i);
    i += Lanes;
  }
  if constexpr (Lanes > 1) each_edge<T, Lanes / 2>(n, i, f);
}
/// Calls f.operator()<Vector>(i) for the elements [0, n) in whole vectors and then, by powers of two, in shorter ones: rows of images are
/// often shorter than a vector.
template <class T, class F>
[[gnu::always_inline]] inline void each_vector(std::int64_t n, F f) {
  constexpr int lanes = gemm::lanes<T>;
  std::int64_t i = 0;
  for (; n - i >= lanes; i += lanes) f.template operator()<typename gemm::VectorOf<T>::type>(i);
  each_edge<T, lanes / 2>(n, i, f);
}
template <class V, class T>
[[gnu::always_inline]] inline V load_vector(const T* from) {
  V x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
template <class V, class T>
[[gnu::always_inline]] inline void store_vector(const V& x, T* to) {
  std::memcpy(to, &x, sizeof x);
}

/// into[i] += from[i].
template <class T>
void add_run(const T* from, T* into, std::int64_t count) {
  each_vector<T>(count, [=]<class V>(std::int64_t i) { store_vector(load_vector<V>(into + i) + load_vector<V>(from + i), into + i); });
}
template <class S, class T>
void add_run(const S* from, T* into, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) into[i] += T(from[i]);
}

}  // namespace tern::loops

namespace tern::convolutions {

/// Note [Bands]: a convolution is a matrix product, one operand of which, the windows as columns (unfold), is never written to memory. A
/// thread copies a band of an image, the padded rows that some rows of the result read, into its own memory, which stays in the L2 cache. A
/// padded row is stored by phases: element e is at index e / stride of phase e % stride. So a tap's elements for neighbouring positions are
/// adjacent for every stride. Forward copies the product's panels from segments of a band, the weights' gradient reads a band in place,
/// and dx is accumulated in one; none of them checks image borders.
struct Bands {
  std::int64_t batch, groups, inputs, outputs;  ///< inputs, outputs: channels of a group
  std::int64_t height, width;                   ///< size of an image
  kernels::SlidingWindow window;
  std::int64_t phases, phase_width, pitch;  ///< of a padded row; pitch: its elements

  Bands(const View& x, const View& y, const kernels::Convolution& of)
      : batch(x.shape[0]),
        groups(of.groups),
        inputs(x.shape[1] / of.groups),
        outputs(y.shape[1] / of.groups),
        height(x.shape[2]),
        width(x.shape[3]),
        window(of.window) {
    const std::int64_t extent = (window.x.taps - 1) * window.x.dilation;
    phases = std::min(window.x.stride, extent + 1);
    phase_width = window.x.positions + extent / window.x.stride;
    pitch = phases * phase_width;
  }

  std::int64_t taps() const { return window.y.taps * window.x.taps; }
  std::int64_t depth() const { return inputs * taps(); }
  std::int64_t positions() const { return window.y.positions * window.x.positions; }
  double multiplications() const {
    return static_cast<double>(batch * groups * outputs) * static_cast<double>(positions()) * static_cast<double>(depth());
  }
  /// Number of padded rows that `rows` rows of the result read.
  std::int64_t rows_seen(std::int64_t rows) const { return (rows - 1) * window.y.stride + (window.y.taps - 1) * window.y.dilation + 1; }
  /// Elements of one channel's plane in a band.
  std::int64_t plane(std::int64_t rows) const { return rows_seen(rows) * pitch; }
  /// Elements from one row of the result to the next.
  std::int64_t row_step() const { return window.y.stride * pitch; }
  /// Offset in a channel's plane of the element under a tap at the band's first position.
  std::int64_t offset(std::int64_t tap) const {
    const std::int64_t i = tap / window.x.taps, along = tap % window.x.taps * window.x.dilation;
    return i * window.y.dilation * pitch + along % window.x.stride * phase_width + along / window.x.stride;
  }
  /// A phase of a row, as a tap over the image.
  loops::Reach reach(std::int64_t phase) const { return {phase, width, {1, window.x.stride, window.x.padding, 1, phase_width}}; }

  /// Number of rows of the result, at least one, for which `channels` planes have at most `elements` elements; preferably one whose
  /// positions fill whole panels of `panel`.
  std::int64_t rows_within(std::int64_t channels, std::int64_t elements, std::int64_t panel) const {
    std::int64_t rows = 1;
    while (rows < window.y.positions && channels * plane(rows + 1) <= elements) ++rows;
    const std::int64_t even = panel / std::gcd(panel, window.x.positions);
    return rows >= window.y.positions || rows < even ? rows : rows / even * even;
  }
};

/// Copies a band: the padded rows that `rows` rows of the result, from `first` on, read, of `channels` channels from `image` on.
template <class T>
void copy_band(const Bands& s, const T* image, std::int64_t channels, std::int64_t first, std::int64_t rows, T* to) {
  const std::int64_t seen = s.rows_seen(rows), above = first * s.window.y.stride - s.window.y.padding;
  for (std::int64_t c = 0; c < channels; ++c, image += s.height * s.width) {
    for (std::int64_t r = 0; r < seen; ++r) {
      const std::int64_t h = above + r;
      if (h < 0 || h >= s.height) {
        std::fill_n(to, s.pitch, T(0));
        to += s.pitch;
        continue;
      }
      const T* const row = image + h * s.width;
      for (std::int64_t phase = 0; phase < s.phases; ++phase, to += s.phase_width) {
        const loops::Reach reach = s.reach(phase);
        std::fill_n(to, reach.begin, T(0));
        std::fill_n(to + reach.end, s.phase_width - reach.end, T(0));
        if (s.window.x.stride == 1) std::copy_n(row + reach.first + reach.begin, reach.end - reach.begin, to + reach.begin);
        else
          for (std::int64_t k = reach.begin; k < reach.end; ++k) to[k] = row[reach.first + k * s.window.x.stride];
      }
    }
  }
}

/// Writes the image from a band of all rows; 0 for elements that no window covers.
template <class T>
void copy_image(const Bands& s, const T* band, std::int64_t channels, T* image) {
  const std::int64_t seen = s.rows_seen(s.window.y.positions);
  for (std::int64_t c = 0; c < channels; ++c, band += seen * s.pitch) {
    for (std::int64_t h = 0; h < s.height; ++h, image += s.width) {
      const std::int64_t r = h + s.window.y.padding;
      const T* const row = band + r * s.pitch;
      std::fill_n(image, s.width, T(0));
      for (std::int64_t phase = 0; r < seen && phase < s.phases; ++phase) {
        const loops::Reach reach = s.reach(phase);
        const T* const from = row + phase * s.phase_width;
        if (s.window.x.stride == 1) std::copy_n(from + reach.begin, reach.end - reach.begin, image + reach.first + reach.begin);
        else
          for (std::int64_t k = reach.begin; k < reach.end; ++k) image[reach.first + k * s.window.x.stride] = from[k];
      }
    }
  }
}

/// Number of threads that pay off for a convolution.
inline std::int64_t threads_for(const Bands& s) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(s.multiplications() / double(gemm::product_grain)), 1, num_threads());
}

}  // namespace tern::convolutions
