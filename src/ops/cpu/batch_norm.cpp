#include <algorithm>
#include <cmath>

#include "ops/cpu/loops.h"
#include "ops/kernels/normalize.h"
#include "tensor/dispatch.h"

namespace tern::kernels {

// Batch normalization on the CPU: a thread processes whole channels, whose elements are B rows of L. They are read two or three times in a
// row, the first time from memory and then from a cache, where a composition would write a tensor in each step. The mean's sum is in
// float64, as are the sums over rows; other sums along a row are in the elements' type. The mean is rounded to the elements' type; the
// remainder (near 1e5 it is up to 4e-3 in f32) is subtracted where deviations are used.

namespace {

/// Calls f.operator()<C>(channel, first, stride) for each channel: element l of row b is at first + b stride + l.
template <class F>
void each_channel(const View& x, F f) {
  dispatch_f32_f64(x.dtype, "batch_norm", [&]<class C>() {
    const std::int64_t rows = x.shape[0], channels = x.shape[1], length = x.shape[2];
    loops::parallel_units(channels, rows * length, loops::stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) f.template operator()<C>(c, c * length, channels * length);
    });
  });
}

/// In float64: where all elements are equal, the deviation is eps alone, and an error of one unit in the mean is 300 units in y.
template <class C>
double sum_row(const C* x, std::int64_t n) {
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) total += double(x[i]);
  return total;
}

template <class C>
C square_row(const C* x, C mean, std::int64_t n) {
  C total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < n; ++i) total += (x[i] - mean) * (x[i] - mean);
  return total;
}

template <class C>
void write_row(const C* x, C mean, C scale, C shift, C* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale + shift;
}

template <class C>
struct GradientSums {
  C g = 0, along = 0, deviations = 0;
};
/// Sums of g, of g times the deviation, and of the deviations.
template <class C>
GradientSums<C> gradient_row(const C* x, const C* g, C mean, std::int64_t n) {
  C sum = 0, along = 0, deviations = 0;
#pragma omp simd reduction(+ : sum, along, deviations)
  for (std::int64_t i = 0; i < n; ++i) {
    const C deviation = x[i] - mean;
    sum += g[i];
    along += g[i] * deviation;
    deviations += deviation;
  }
  return {sum, along, deviations};
}

template <class C>
void write_gradient_row(const C* x, const C* g, C mean, C of_g, C of_x, C shift, C* dx, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) dx[i] = of_g * g[i] + of_x * (x[i] - mean) + shift;
}

}  // namespace

void BatchNorm::run(Cpu) const {
  const std::int64_t rows = x.shape[0], length = x.shape[2];
  const auto count = static_cast<double>(rows * length);
  each_channel(x, [&]<class C>(std::int64_t c, std::int64_t first, std::int64_t stride) {
    const C* const from = x.as<const C>() + first;
    C* const to = y.as<C>() + first;
    double total = 0, squares = 0;
    for (std::int64_t b = 0; b < rows; ++b) total += sum_row(from + b * stride, length);
    const double exact = total / count;
    const C rounded = C(exact);
    const double rest = exact - double(rounded);
    for (std::int64_t b = 0; b < rows; ++b) squares += double(square_row(from + b * stride, rounded, length));
    const double spread = std::max(squares / count - rest * rest, 0.0), inverse = 1 / std::sqrt(spread + eps);
    const double scale = gamma.data ? inverse * double(gamma.as<const C>()[c]) : inverse;
    const double shift = (beta.data ? double(beta.as<const C>()[c]) : 0) - rest * scale;
    for (std::int64_t b = 0; b < rows; ++b) write_row(from + b * stride, rounded, C(scale), C(shift), to + b * stride, length);
    mean.as<C>()[c] = rounded;
    variance.as<C>()[c] = C(spread);
    rstd.as<C>()[c] = C(inverse);
  });
}

void BatchNormGrad::run(Cpu) const {
  const std::int64_t rows = x.shape[0], length = x.shape[2];
  const auto count = static_cast<double>(rows * length);
  each_channel(x, [&]<class C>(std::int64_t c, std::int64_t first, std::int64_t stride) {
    const C *const from = x.as<const C>() + first, *const gradient = g.as<const C>() + first, rounded = mean.as<const C>()[c];
    double sum = 0, along = 0, deviations = 0;
    for (std::int64_t b = 0; b < rows; ++b) {
      const GradientSums<C> row = gradient_row(from + b * stride, gradient + b * stride, rounded, length);
      sum += double(row.g);
      along += double(row.along);
      deviations += double(row.deviations);
    }
    const double rest = deviations / count, inverse = double(rstd.as<const C>()[c]);
    along -= rest * sum;
    if (d_gamma.data) d_gamma.as<C>()[c] = C(along * inverse);
    if (d_beta.data) d_beta.as<C>()[c] = C(sum);
    if (!dx.data) return;
    // dx = scale (g - mean(g) - unit mean(g unit)) with unit = (x - mean - rest) inverse.
    const double scale = gamma.data ? inverse * double(gamma.as<const C>()[c]) : inverse;
    const double of_x = -scale * inverse * inverse * along / count, shift = -scale * sum / count - of_x * rest;
    for (std::int64_t b = 0; b < rows; ++b)
      write_gradient_row(from + b * stride, gradient + b * stride, rounded, C(scale), C(of_x), C(shift), dx.as<C>() + first + b * stride,
                         length);
  });
}

}  // namespace tern::kernels
