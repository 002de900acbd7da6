#include "ops/kernels/loss.h"

#include <cmath>
#include <string>

#include "ops/cpu/fold.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/vector_math.h"

namespace tern::kernels {

using namespace loops;

namespace {

[[gnu::always_inline]] inline float exp_of(float x) { return vector_math::exp(x); }
[[gnu::always_inline]] inline double exp_of(double x) { return std::exp(x); }

void check_targets(const View& x, const View& targets, std::int64_t ignore_index) {
  const auto* const t = targets.as<const std::int64_t>();
  for (std::int64_t n = 0; n < x.shape[0]; ++n)
    if (t[n] != ignore_index && (t[n] < 0 || t[n] >= x.shape[1]))
      fail("cross_entropy", "expected targets from 0 to " + std::to_string(x.shape[1] - 1) + " but got " + std::to_string(t[n]));
}

/// The sum of a row, run by run, so that it vectorises and its error stays small.
template <class C, class S>
C row_sum(const S* row, std::int64_t n) {
  alignas(64) C buffer[chunk];
  C total = 0;
  for (std::int64_t i = 0; i < n; i += chunk) {
    const std::int64_t m = std::min(chunk, n - i);
    total += fold_run<Sum>(load(row + i, 1, m, buffer), m);
  }
  return total;
}

}  // namespace

void cross_entropy(Cpu, const View& x, const View& lse, const View& targets, const View& weights, const View& losses,
                   double smoothing, std::int64_t ignore_index) {
  check_targets(x, targets, ignore_index);
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  dispatch_floats(x.dtype, "cross_entropy", [&]<class S>() {
    using C = compute_t<S>;
    const C smooth = C(smoothing), sharp = C(1 - smoothing), mean_factor = C(1 / double(columns));
    // Without smoothing a row costs one element.
    const std::int64_t row_size = smoothing == 0 ? 16 : columns;
    parallel_units(rows, row_size, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const std::int64_t target = targets.as<const std::int64_t>()[n];
        C& loss = losses.as<C>()[n];
        loss = 0;
        if (target == ignore_index) continue;
        const S* const row = x.as<const S>() + n * x.strides[0];
        const C top = lse.as<const C>()[n];
        loss = sharp * (top - C(row[target]));
        if (smoothing != 0) loss += smooth * (top - row_sum<C>(row, columns) * mean_factor);
        if (weights.data) loss *= weights.as<const C>()[n];
      }
    });
  });
}

void cross_entropy_grad(Cpu, const View& x, const View& lse, const View& targets, const View& weights, const View& g, const View& dx,
                        double smoothing, std::int64_t ignore_index) {
  check_targets(x, targets, ignore_index);
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  dispatch_floats(x.dtype, "cross_entropy_grad", [&]<class S>() {
    using C = compute_t<S>;
    const C sharp = C(1 - smoothing), even = C(smoothing / double(columns));
    parallel_units(rows, columns, function_grain, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) C in[chunk];
      alignas(64) C result[chunk];
      for (std::int64_t n = begin; n < end; ++n) {
        const std::int64_t target = targets.as<const std::int64_t>()[n];
        const S* const row = x.as<const S>() + n * x.strides[0];
        S* const to = dx.as<S>() + n * columns;
        if (target == ignore_index) {
          std::fill_n(to, columns, S(C(0)));
          continue;
        }
        const C top = lse.as<const C>()[n];
        const C factor = g.as<const C>()[n * g.strides[0]] * (weights.data ? weights.as<const C>()[n] : C(1));
        for (std::int64_t first = 0; first < columns; first += chunk) {
          const std::int64_t m = std::min(chunk, columns - first);
          const C* run = load(row + first, 1, m, in);
          C* out = tern::loops::target(to + first, 1, m, result);
          // dx may be x: what the target's element needs is read before it is overwritten.
          const bool hit = target >= first && target < first + m;
          const C at_target = hit ? run[target - first] : C(0);
#pragma omp simd
          for (std::int64_t i = 0; i < m; ++i) out[i] = factor * (exp_of(run[i] - top) - even);
          if (hit) out[target - first] = factor * (exp_of(at_target - top) - sharp - even);
          store(out, to + first, 1, m);
        }
      }
    });
  });
}

}  // namespace tern::kernels
