#include "ops/cpu/convolution.h"
#include "ops/cpu/rows.h"
#include "tensor/dispatch.h"

// Max pooling on the CPU: a thread processes whole planes. Windows that tile the plane, the usual case, are processed row by row in whole
// vectors; any others tap by tap.
namespace tern::kernels {

using namespace convolutions;

namespace {

/// Geometry of a pooling over one plane.
struct Pool {
  std::int64_t planes, height, width;
  SlidingWindow window;

  Pool(const View& x, const SlidingWindow& of) : planes(x.shape[0] * x.shape[1]), height(x.shape[2]), width(x.shape[3]), window(of) {}
  bool is_tiling() const {
    const auto tiles = [](const WindowAxis& axis) { return axis.taps == axis.stride && axis.padding == 0; };
    return tiles(window.y) && tiles(window.x);
  }
  std::int64_t positions() const { return window.y.positions * window.x.positions; }
  /// Number of elements of a row that the tiles cover.
  std::int64_t covered() const { return window.x.positions * window.x.taps; }

  /// Calls f(row of x, reach of the tap, of elements `stride` apart) for each tap of a row of positions that is inside of the image.
  template <class F>
  void each_tap(std::int64_t oh, F f) const {
    for (std::int64_t i = 0; i < window.y.taps; ++i) {
      const std::int64_t h = oh * window.y.stride + i - window.y.padding;
      if (h < 0 || h >= height) continue;
      for (std::int64_t j = 0; j < window.x.taps; ++j) f(h, loops::Reach(j, width, window.x));
    }
  }
  template <class F>
  void each_plane(std::int64_t elements, F f) const {
    loops::parallel_units(planes, elements, loops::stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      for (std::int64_t plane = begin; plane < end; ++plane) f(plane, thread);
    });
  }
};

/// Calls f with the number as a constant if it is 1, 2 or 3: with constant steps, loads and stores are whole vectors.
template <class F>
void with_step(std::int64_t step, F f) {
  if (step == 1) f(std::integral_constant<std::int64_t, 1>());
  else if (step == 2) f(std::integral_constant<std::int64_t, 2>());
  else if (step == 3) f(std::integral_constant<std::int64_t, 3>());
  else f(step);
}

/// to[q] = the largest of the tile from[q taps ...].
template <class T>
void largest_of_tiles(const T* from, std::int64_t taps, std::int64_t n, T* to) {
  with_step(taps, [&](auto step) {
#pragma omp simd
    for (std::int64_t q = 0; q < n; ++q) {
      T top = from[q * step];
      for (std::int64_t j = 1; j < step; ++j) loops::Largest::fold(top, from[q * step + j]);
      to[q] = top;
    }
  });
}

/// to[q taps + j] = from[q].
template <class T>
void spread_to_tiles(const T* from, std::int64_t taps, std::int64_t n, T* to) {
  with_step(taps, [&](auto step) {
#pragma omp simd
    for (std::int64_t q = 0; q < n; ++q)
      for (std::int64_t j = 0; j < step; ++j) to[q * step + j] = from[q];
  });
}

/// to[q] = the sum of the tile from[q taps ...].
template <class T>
void sums_of_tiles(const T* from, std::int64_t taps, std::int64_t n, T* to) {
  with_step(taps, [&](auto step) {
#pragma omp simd
    for (std::int64_t q = 0; q < n; ++q) {
      T sum = 0;
      for (std::int64_t j = 0; j < step; ++j) sum += from[q * step + j];
      to[q] = sum;
    }
  });
}

template <class T>
void pool_tiles(const Pool& p, const T* x, T* y, const Stream& stream) {
  const std::int64_t covered = p.covered(), size = covered * p.window.y.positions;
  const loops::Scratch<T> work(size * num_threads(), stream);
  p.each_plane(p.height * p.width, [&](std::int64_t plane, std::int64_t thread) {
    T *const tall = work.data() + size * thread, *to = tall;
    const T* row = x + plane * p.height * p.width;
    for (std::int64_t oh = 0; oh < p.window.y.positions; ++oh, to += covered) {
      std::copy_n(row, covered, to);
      row += p.width;
      for (std::int64_t i = 1; i < p.window.y.taps; ++i, row += p.width) loops::fold_columns<loops::Largest>(to, row, covered);
    }
    largest_of_tiles(tall, p.window.x.taps, p.positions(), y + plane * p.positions());
  });
}

template <class T>
void pool_windows(const Pool& p, const T* x, T* y) {
  p.each_plane(p.positions() * p.window.y.taps * p.window.x.taps, [&](std::int64_t plane, std::int64_t) {
    T* to = y + plane * p.positions();
    for (std::int64_t oh = 0; oh < p.window.y.positions; ++oh, to += p.window.x.positions) {
      std::fill_n(to, p.window.x.positions, -std::numeric_limits<T>::infinity());
      p.each_tap(oh, [&](std::int64_t h, const loops::Reach& reach) {
        const T* const from = x + (plane * p.height + h) * p.width + reach.first;
        with_step(p.window.x.stride, [&](auto step) {
#pragma omp simd
          for (std::int64_t q = reach.begin; q < reach.end; ++q) loops::Largest::fold(to[q], from[q * step]);
        });
      });
    }
  });
}

template <class T>
void pool_tiles_grad(const Pool& p, const T* x, const T* y, const T* g, T* dx, const Stream& stream) {
  const std::int64_t covered = p.covered(), rows = p.window.y.positions, taps = p.window.y.taps, spread = covered * rows;
  const std::int64_t size = p.positions() + 3 * spread;
  const loops::Scratch<T> work(size * num_threads(), stream);
  p.each_plane(p.height * p.width, [&](std::int64_t plane, std::int64_t thread) {
    // For each position: its maximum, the number of elements in its row of taps that equal it, and the gradient of each of these.
    T *const top = work.data() + size * thread, *const equal = top + spread, *const share = equal + spread;
    T* const counts = share + spread;
    const T* const from = x + plane * p.height * p.width;
    T* const to = dx + plane * p.height * p.width;
    spread_to_tiles(y + plane * p.positions(), p.window.x.taps, p.positions(), top);
    for (std::int64_t oh = 0; oh < rows; ++oh)
      loops::each_vector<T>(covered, [&]<class V>(std::int64_t k) {
        const V highest = loops::load_vector<V>(top + oh * covered + k), one = V{} + T(1);
        V count{};
        for (std::int64_t i = 0; i < taps; ++i) count += loops::load_vector<V>(from + (oh * taps + i) * p.width + k) == highest ? one : V{};
        loops::store_vector(count, equal + oh * covered + k);
      });
    sums_of_tiles(equal, p.window.x.taps, p.positions(), counts);
    const T* const gradient = g + plane * p.positions();
#pragma omp simd
    for (std::int64_t q = 0; q < p.positions(); ++q) counts[q] = gradient[q] / counts[q];
    spread_to_tiles(counts, p.window.x.taps, p.positions(), share);
    for (std::int64_t h = 0; h < rows * taps; ++h) {
      const std::int64_t row = h / taps * covered;
      loops::each_vector<T>(covered, [&]<class V>(std::int64_t k) {
        const V own = loops::load_vector<V>(from + h * p.width + k);
        const V got = own == loops::load_vector<V>(top + row + k) ? loops::load_vector<V>(share + row + k) : V{};
        loops::store_vector(got, to + h * p.width + k);
      });
      std::fill_n(to + h * p.width + covered, p.width - covered, T(0));
    }
    std::fill_n(to + rows * taps * p.width, (p.height - rows * taps) * p.width, T(0));
  });
}

template <class T>
void pool_windows_grad(const Pool& p, const T* x, const T* y, const T* g, T* dx, const Stream& stream) {
  const std::int64_t width = p.window.x.positions;
  const loops::Scratch<T> work(width * num_threads(), stream);
  p.each_plane(p.positions() * p.window.y.taps * p.window.x.taps, [&](std::int64_t plane, std::int64_t thread) {
    T* const shares = work.data() + width * thread;
    const std::int64_t image = plane * p.height * p.width;
    std::fill_n(dx + image, p.height * p.width, T(0));
    for (std::int64_t oh = 0; oh < p.window.y.positions; ++oh) {
      const T *const top = y + plane * p.positions() + oh * width, *const from_g = g + plane * p.positions() + oh * width;
      std::fill_n(shares, width, T(0));
      p.each_tap(oh, [&](std::int64_t h, const loops::Reach& reach) {
        const T* const from = x + image + h * p.width + reach.first;
        for (std::int64_t q = reach.begin; q < reach.end; ++q) shares[q] += from[q * p.window.x.stride] == top[q] ? T(1) : T(0);
      });
      for (std::int64_t q = 0; q < width; ++q) shares[q] = from_g[q] / shares[q];
      p.each_tap(oh, [&](std::int64_t h, const loops::Reach& reach) {
        const std::int64_t first = image + h * p.width + reach.first;
        for (std::int64_t q = reach.begin; q < reach.end; ++q)
          if (x[first + q * p.window.x.stride] == top[q]) dx[first + q * p.window.x.stride] += shares[q];
      });
    }
  });
}

}  // namespace

void MaxPool::run(Cpu) const {
  if (y.numel() == 0) return;
  const Pool p(x, window);
  dispatch_f32_f64(y.dtype, "max_pool2d", [&]<class T>() {
    if (p.is_tiling()) pool_tiles(p, x.as<const T>(), y.as<T>(), y.stream);
    else pool_windows(p, x.as<const T>(), y.as<T>());
  });
}

void MaxPoolGrad::run(Cpu) const {
  if (dx.numel() == 0) return;
  const Pool p(x, window);
  dispatch_f32_f64(y.dtype, "max_pool2d", [&]<class T>() {
    if (p.is_tiling()) pool_tiles_grad(p, x.as<const T>(), y.as<const T>(), g.as<const T>(), dx.as<T>(), dx.stream);
    else pool_windows_grad(p, x.as<const T>(), y.as<const T>(), g.as<const T>(), dx.as<T>(), dx.stream);
  });
}

}  // namespace tern::kernels
