#include "ops/kernels/softmax.h"

#include <cmath>

#include "ops/cpu/sums.h"
#include "ops/cpu/vector_math.h"

namespace tern::kernels {

using namespace loops;

// Softmax over rows that stay in the cache: a row comes from memory once, becomes scores, exponentials and their sum in a buffer of its
// thread, and is scaled on its way out. A row sees the columns before a limit, so the others are neither read nor computed.

namespace {

[[gnu::always_inline]] inline float exp_of(float x) { return vector_math::exp(x); }
[[gnu::always_inline]] inline double exp_of(double x) { return std::exp(x); }

template <class C>
constexpr C infinity = std::numeric_limits<C>::infinity();

/// Rows are computed in whole vectors: what stands past their end is hidden, and dropped.
template <class C>
constexpr std::int64_t whole_vectors(std::int64_t n) {
  constexpr std::int64_t lanes = vector_bytes / int(sizeof(C));
  return (n + lanes - 1) / lanes * lanes;
}

/// The first n elements of a row with their padding, and -inf in hidden columns and past the end. x may be scores.
template <class C>
void make_scores(const C* x, const C* padding, std::int64_t n, C* scores) {
  if (padding) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const C sum = x[i] + padding[i];
      scores[i] = padding[i] > C(hidden_padding) ? sum : -infinity<C>;
    }
  } else if (x != scores) {
    std::copy_n(x, n, scores);
  }
  std::fill_n(scores + n, whole_vectors<C>(n) - n, -infinity<C>);
}

/// Turns n scores into exp(score - shift), and returns their sum.
template <class C>
double exponentials(C* scores, std::int64_t n, C shift) {
  double total = 0;
  for (std::int64_t first = 0; first < n; first += chunk) {
    C* const run = scores + first;
    const std::int64_t m = std::min(chunk, n - first);
    C sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < m; ++i) {
      run[i] = exp_of(run[i] - shift);
      sum += run[i];
    }
    total += double(sum);
  }
  return total;
}

/// One row of which `limit` columns may be visible. The buffer holds them in whole vectors.
template <class C, class S>
void softmax_row(const S* x, const C* padding, std::int64_t limit, S* y, C* buffer) {
  make_scores(load(x, 1, limit, buffer), padding, limit, buffer);
  const std::int64_t n = whole_vectors<C>(limit);
  const C top = fold_numbers<LargestNumber>(buffer, n, -infinity<C>);
  // A row that sees nothing has no maximum; its exponentials are 0 whatever is subtracted.
  const double total = exponentials(buffer, n, top == -infinity<C> ? C(0) : top);
  if (total != total) {
    for (std::int64_t i = 0; i < limit; ++i)
      y[i] = S(padding && !(padding[i] > C(hidden_padding)) ? C(0) : std::numeric_limits<C>::quiet_NaN());
    return;
  }
  const C factor = total > 0 ? C(1 / total) : C(0);
  C* const out = target(y, 1, limit, buffer);
#pragma omp simd
  for (std::int64_t i = 0; i < limit; ++i) out[i] = buffer[i] * factor;
  store(out, y, 1, limit);
}

}  // namespace

void attention_softmax(Cpu, const View& x, const SoftmaxMask& mask, const View& y) {
  if (x.numel() == 0) return;
  const std::int64_t columns = x.shape[x.dims() - 1], queries = x.shape[x.dims() - 2], rows = x.numel() / columns;
  const std::int64_t rows_per_batch = x.dims() > 2 ? rows / x.shape[0] : rows;
  dispatch_floats(x.dtype, "attention_softmax", [&]<class S>() {
    using C = compute_t<S>;
    const std::int64_t width = whole_vectors<C>(columns);
    const Scratch<C> memory(omp_get_max_threads() * width, y.stream);
    parallel_units(rows, columns, function_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      C* const buffer = memory.data() + thread * width;
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t batch = row / rows_per_batch;
        std::int64_t limit = columns;
        if (mask.causal) {
          const std::int64_t prefix = mask.prefix.data ? mask.prefix.as<const std::int64_t>()[batch] : 0;
          limit = std::clamp<std::int64_t>(std::max(row % queries + columns - queries + 1, prefix), 0, columns);
        }
        const C* const padding = mask.padding.data ? mask.padding.as<const C>() + batch * columns : nullptr;
        S* const to = y.as<S>() + row * columns;
        softmax_row(x.as<const S>() + row * columns, padding, limit, to, buffer);
        std::fill_n(to + limit, columns - limit, S(C(0)));
      }
    });
  });
}

void attention_softmax_grad(Cpu, const View& y, const View& g, const View& dx) {
  if (y.numel() == 0) return;
  const std::int64_t columns = y.shape[y.dims() - 1], rows = y.numel() / columns;
  dispatch_floats(y.dtype, "attention_softmax_grad", [&]<class S>() {
    using C = compute_t<S>;
    const std::int64_t width = std::is_same_v<C, S> ? 0 : whole_vectors<C>(columns);
    const Scratch<C> memory(2 * omp_get_max_threads() * width, dx.stream);
    parallel_units(rows, columns, stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      C* const buffer = memory.data() + 2 * thread * width;
      for (std::int64_t row = begin; row < end; ++row) {
        const C* const p = load(y.as<const S>() + row * columns, 1, columns, buffer);
        const C* const gradient = load(g.as<const S>() + row * columns, 1, columns, buffer + width);
        const C mean = C(sums<1, C>(columns, [=](auto at) { return std::array{at(p) * at(gradient)}; })[0]);
        S* const to = dx.as<S>() + row * columns;
        C* const out = target(to, 1, columns, buffer);
#pragma omp simd
        for (std::int64_t i = 0; i < columns; ++i) out[i] = p[i] * (gradient[i] - mean);
        store(out, to, 1, columns);
      }
    });
  });
}

}  // namespace tern::kernels
