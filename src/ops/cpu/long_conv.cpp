#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "ops/cpu/loops.h"
#include "ops/kernels/conv.h"
#include "tensor/dispatch.h"

// Long convolution on the CPU, by Fourier transforms of n >= T + K - 1 points, a power of two, so that the end of y does not wrap around.
//
// Lanes: a unit of work is a vector of channels, and a point of a transform is a complex number in each lane. So all loops run over whole
// vectors, and a twiddle factor is the same number for all lanes. Two rows of the batch are the real and the imaginary part of one signal:
// filters are real, so the parts of the result are the two rows' results.
//
// Order: the transform (decimation in frequency, radix 4) leaves its points in the reversed order of digits, products go point by point,
// and the inverse takes the same steps back. Nothing sorts. Both go depth first, so that parts that fit the cache are finished in it.
namespace tern::kernels {

namespace {

template <class C>
struct Point {
  typedef C Vector __attribute__((vector_size(loops::vector_bytes)));
  static constexpr int lanes = int(sizeof(Vector) / sizeof(C));
  Vector re, im;

  [[gnu::always_inline]] friend Point operator+(const Point& a, const Point& b) { return {a.re + b.re, a.im + b.im}; }
  [[gnu::always_inline]] friend Point operator-(const Point& a, const Point& b) { return {a.re - b.re, a.im - b.im}; }
  [[gnu::always_inline]] friend Point operator*(const Point& a, const Point& b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
  [[gnu::always_inline]] Point conjugate() const { return {re, -im}; }
  [[gnu::always_inline]] Point times_i() const { return {-im, re}; }
};

/// Transforms of n points.
template <class C>
class Fourier {
 public:
  Fourier(std::int64_t n, const Stream& stream) : n_(n), roots_(n, stream) {
    for (std::int64_t k = 0; k < n; ++k) {
      const double angle = -2 * std::numbers::pi * double(k) / double(n);
      roots_.data()[k] = {C(std::cos(angle)), C(std::sin(angle))};
    }
  }

  void forward(Point<C>* x) const { forward(x, n_); }
  /// n times the inverse.
  void inverse(Point<C>* x) const { inverse(x, n_); }

 private:
  struct Root {
    C re, im;
  };
  /// x times the root k of `of` points.
  [[gnu::always_inline]] Point<C> twiddled(const Point<C>& x, std::int64_t k, std::int64_t of) const {
    const Root w = roots_.data()[k * (n_ / of)];
    return {x.re * w.re - x.im * w.im, x.re * w.im + x.im * w.re};
  }
  [[gnu::always_inline]] Point<C> untwiddled(const Point<C>& x, std::int64_t k, std::int64_t of) const {
    const Root w = roots_.data()[k * (n_ / of)];
    return {x.re * w.re + x.im * w.im, x.im * w.re - x.re * w.im};
  }

  void forward(Point<C>* x, std::int64_t n) const {
    if (n == 2) return pair(x);
    if (n < 2) return;
    const std::int64_t m = n / 4;
    for (std::int64_t i = 0; i < m; ++i) {
      const Point<C> even = x[i] + x[i + 2 * m], odd = x[i] - x[i + 2 * m], both = x[i + m] + x[i + 3 * m],
                     by_i = (x[i + 3 * m] - x[i + m]).times_i();
      x[i] = even + both;
      x[i + m] = twiddled(odd + by_i, i, n);
      x[i + 2 * m] = twiddled(even - both, 2 * i, n);
      x[i + 3 * m] = twiddled(odd - by_i, 3 * i, n);
    }
    for (std::int64_t part = 0; part < n; part += m) forward(x + part, m);
  }
  void inverse(Point<C>* x, std::int64_t n) const {
    if (n == 2) return pair(x);
    if (n < 2) return;
    const std::int64_t m = n / 4;
    for (std::int64_t part = 0; part < n; part += m) inverse(x + part, m);
    for (std::int64_t i = 0; i < m; ++i) {
      const Point<C> a = x[i], b = untwiddled(x[i + m], i, n), c = untwiddled(x[i + 2 * m], 2 * i, n),
                     d = untwiddled(x[i + 3 * m], 3 * i, n);
      const Point<C> even = a + c, odd = a - c, both = b + d, by_i = (b - d).times_i();
      x[i] = even + both;
      x[i + m] = odd + by_i;
      x[i + 2 * m] = even - both;
      x[i + 3 * m] = odd - by_i;
    }
  }
  static void pair(Point<C>* x) {
    const Point<C> sum = x[0] + x[1];
    x[1] = x[0] - x[1];
    x[0] = sum;
  }

  const std::int64_t n_;
  const loops::Scratch<Root> roots_;
};

/// Work of a call: vectors of channels, each with signals of n points.
template <class C>
struct Plan {
  std::int64_t batch, length, channels, taps, n, blocks, threads;

  Plan(const View& signal, const View& filter)
      : batch(signal.shape[0]),
        length(signal.shape[1]),
        channels(signal.shape[2]),
        taps(std::min(filter.shape[1], length)),  // no token reads those beyond
        n(std::int64_t(std::bit_ceil(std::uint64_t(std::max<std::int64_t>(length + taps - 1, 1))))),
        blocks(ceil_div(channels, Point<C>::lanes)),
        threads(std::clamp<std::int64_t>(batch * channels * n / loops::function_grain, 1, num_threads())) {}

  /// Calls f(first channel, number of channels, `signals` of n points) for each block.
  template <class F>
  void for_each_block(std::int64_t signals, const Stream& stream, F&& f) const {
    const std::int64_t team = std::min(threads, blocks);
    const loops::Scratch<Point<C>> points(team * signals * n, stream);
    loops::share_dynamically(blocks, team, [&](std::int64_t block, std::int64_t thread) {
      const std::int64_t first = block * Point<C>::lanes;
      f(first, std::min<std::int64_t>(Point<C>::lanes, channels - first), points.data() + thread * signals * n);
    });
  }

  static void copy(const C* from, std::int64_t step, C* to, std::int64_t to_step, std::int64_t count) {
    if (step == 1 && to_step == 1 && count == Point<C>::lanes) std::memcpy(to, from, sizeof(Point<C>::re));
    else
      for (std::int64_t l = 0; l < count; ++l) to[l * to_step] = from[l * step];
  }
  /// x = rows b and b + 1 of a signal, from channel c on.
  void load_rows(const View& from, std::int64_t b, std::int64_t c, std::int64_t count, Point<C>* x) const {
    std::fill_n(x, n, Point<C>{});
    for (std::int64_t t = 0; t < length; ++t) {
      const C* const at = from.as<const C>() + b * from.strides[0] + t * from.strides[1] + c * from.strides[2];
      copy(at, from.strides[2], reinterpret_cast<C*>(&x[t].re), 1, count);
      if (b + 1 < batch) copy(at + from.strides[0], from.strides[2], reinterpret_cast<C*>(&x[t].im), 1, count);
    }
  }
  void store_rows(const Point<C>* x, const View& to, std::int64_t b, std::int64_t c, std::int64_t count) const {
    for (std::int64_t t = 0; t < length; ++t) {
      C* const at = to.as<C>() + b * to.strides[0] + t * to.strides[1] + c * to.strides[2];
      copy(reinterpret_cast<const C*>(&x[t].re), 1, at, to.strides[2], count);
      if (b + 1 < batch) copy(reinterpret_cast<const C*>(&x[t].im), 1, at + to.strides[0], to.strides[2], count);
    }
  }
  /// The transform of the filters, divided by n.
  void load_filters(const View& h, std::int64_t c, std::int64_t count, const Fourier<C>& fourier, Point<C>* x) const {
    std::fill_n(x, n, Point<C>{});
    for (std::int64_t k = 0; k < taps; ++k)
      for (std::int64_t l = 0; l < count; ++l) x[k].re[l] = h.as<const C>()[(c + l) * h.strides[0] + k * h.strides[1]] / C(n);
    fourier.forward(x);
  }
};

template <class C>
void convolve(const LongConv& a) {
  const Plan<C> plan(a.u, a.h);
  const Fourier<C> fourier(plan.n, a.y.stream);
  // A transform counts as 5 n log2 n, whatever its radix.
  const auto n = static_cast<double>(plan.n), pairs = static_cast<double>((plan.batch + 1) / 2);
  backend::count_flops(static_cast<double>(plan.channels) * (5 * n * std::log2(n) * (1 + 2 * pairs) + 6 * n * pairs), false);
  plan.for_each_block(2, a.y.stream, [&](std::int64_t c, std::int64_t count, Point<C>* filters) {
    Point<C>* const x = filters + plan.n;
    plan.load_filters(a.h, c, count, fourier, filters);
    for (std::int64_t b = 0; b < plan.batch; b += 2) {
      plan.load_rows(a.u, b, c, count, x);
      fourier.forward(x);
      for (std::int64_t i = 0; i < plan.n; ++i) x[i] = x[i] * filters[i];
      fourier.inverse(x);
      plan.store_rows(x, a.y, b, c, count);
    }
  });
}

/// Correlations: du = g with h, and dh = g with u. Of two rows a and b at once, the real part of (a + i b) with (c + i d) is that of a with
/// c and of b with d.
template <class C>
void correlate(const LongConvGrad& a) {
  const Plan<C> plan(a.g, a.h);
  const Fourier<C> fourier(plan.n, a.g.stream);
  plan.for_each_block(4, a.g.stream, [&](std::int64_t c, std::int64_t count, Point<C>* filters) {
    Point<C>*const x = filters + plan.n, *const g = x + plan.n, *const sum = g + plan.n;
    if (a.du.data) plan.load_filters(a.h, c, count, fourier, filters);
    std::fill_n(sum, plan.n, Point<C>{});
    for (std::int64_t b = 0; b < plan.batch; b += 2) {
      plan.load_rows(a.g, b, c, count, g);
      fourier.forward(g);
      if (a.dh.data) {
        plan.load_rows(a.u, b, c, count, x);
        fourier.forward(x);
        for (std::int64_t i = 0; i < plan.n; ++i) sum[i] = sum[i] + g[i] * x[i].conjugate();
      }
      if (!a.du.data) continue;
      for (std::int64_t i = 0; i < plan.n; ++i) g[i] = g[i] * filters[i].conjugate();
      fourier.inverse(g);
      plan.store_rows(g, a.du, b, c, count);
    }
    if (!a.dh.data) return;
    fourier.inverse(sum);
    for (std::int64_t k = 0; k < a.dh.shape[1]; ++k)
      for (std::int64_t l = 0; l < count; ++l)
        a.dh.as<C>()[(c + l) * a.dh.strides[0] + k * a.dh.strides[1]] = k < plan.taps ? sum[k].re[l] / C(plan.n) : C(0);
  });
}

}  // namespace

void LongConv::run(Cpu) const {
  dispatch_f32_f64(y.dtype, "long_conv", [&]<class C>() { convolve<C>(*this); });
}

void LongConvGrad::run(Cpu) const {
  dispatch_f32_f64(g.dtype, "long_conv", [&]<class C>() { correlate<C>(*this); });
}

}  // namespace tern::kernels
