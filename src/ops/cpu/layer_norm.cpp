#include <cmath>

#include "ops/cpu/philox.h"
#include "ops/cpu/rows.h"
#include "ops/kernels/normalize.h"
#include "tensor/sizes.h"

namespace tern::kernels {

using namespace loops;

// A row is read from memory once, for its statistics, and is in the cache when it is normalized. Rows of the 16-bit types are widened into
// a buffer of their thread.

namespace {

/// Rows that go through the stages together: the statistics of a single short row would stall the next stage.
constexpr std::int64_t max_rows = 8;
std::int64_t rows_in_group(std::int64_t columns) { return columns > 0 ? std::clamp<std::int64_t>(2 * chunk / columns, 1, max_rows) : 1; }

/// Elements of a row's buffer: whole cache lines.
std::int64_t padded(std::int64_t columns) { return round_up(columns, 16); }

/// n parameters as C: read in place, converted into the buffer, or filled with `otherwise` if there are none.
template <class C, class S>
const C* parameters(const View& view, std::int64_t n, C otherwise, C* buffer) {
  if (view.data) return load(view.as<const S>(), 1, n, buffer);
  std::fill_n(buffer, n, otherwise);
  return buffer;
}

/// Statistics that normalize a row: u = (s - center) rstd + rest. The center is the rounded mean, and rest corrects the rounding. So
/// neither a large mean nor an outlier as first element costs the others precision; see Note [Shifted rows].
template <class C>
struct Moments {
  C center, rest, rstd;

  Moments() = default;
  /// mean: relative to `shift`.
  Moments(C shift, double mean, double scale)
      : center(static_cast<C>(shift + mean)),
        rest(static_cast<C>(((double(center) - shift) - mean) * scale)),
        rstd(static_cast<C>(scale)) {}
};

template <class C>
struct Statistics {
  C mean;  ///< relative to the first element
  Moments<C> moments;
};

/// Both sums in one pass. The sum of squares is about the first element; if that is far from the mean, the difference would cancel, and
/// both are computed once more about the mean.
template <class C>
Statistics<C> statistics_of(const C* row, std::int64_t n, bool centered, double eps) {
  const C first = centered && n > 0 ? row[0] : C(0);
  double mean = 0, variance = 0;
  const auto take = [&](C about) {
    const auto [sum, squares] = sums<2, C>(n, [=](auto at) {
      const auto distance = at(row) - about;
      return std::array{distance, distance * distance};
    });
    const double rest = centered ? sum / double(n) : 0;
    mean = (double(about) - first) + rest;
    variance = std::max(squares / double(n) - rest * rest, 0.0);
    return rest * rest > 2 * variance;
  };
  if (take(first)) take(C(first + mean));
  return {C(mean), {first, mean, 1 / std::sqrt(variance + eps)}};
}

/// The row of `sum` that begins at element `at`: residual + dropout(x + bias).
template <class C, class S>
void add_branch(const LayerNorm& a, const C* bias, const DropoutRuns& dropout, std::int64_t at) {
  alignas(64) C branch[chunk];
  alignas(64) C from[chunk];
  const std::int64_t columns = a.x.shape[1];
  for (std::int64_t first = 0; first < columns; first += chunk) {
    const std::int64_t n = std::min(chunk, columns - first);
    const C* const x = load(a.x.as<const S>() + at + first, 1, n, from);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) branch[i] = x[i] + bias[first + i];
    if (a.p > 0) dropout(branch, branch, at + first, n);
    if (a.residual.data) fold_columns<Sum>(branch, load(a.residual.as<const S>() + at + first, 1, n, from), n);
    store(branch, a.sum.as<S>() + at + first, 1, n);
  }
}

}  // namespace

static void layer_norm(const LayerNorm& a) {
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  dispatch_floats(a.x.dtype, "layer_norm", [&]<class S>() {
    using C = compute_t<S>;
    const std::int64_t group_size = rows_in_group(columns), width = padded(columns);
    const Scratch<C> parameter_memory(3 * width, a.y.stream), row_memory(num_threads() * group_size * width, a.y.stream);
    const C* const gamma = parameters<C, S>(a.gamma, columns, C(1), parameter_memory.data());
    const C* const beta = parameters<C, S>(a.beta, columns, C(0), parameter_memory.data() + width);
    const C* const bias = parameters<C, S>(a.bias, columns, C(0), parameter_memory.data() + 2 * width);
    parallel_units(rows, columns, stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      const DropoutRuns dropout(a.p, a.draws);
      struct Row {
        const C* s;
        C* buffer;
        Statistics<C> statistics;
      } group[max_rows];
      for (std::int64_t first = begin; first < end; first += group_size) {
        const std::int64_t count = std::min(group_size, end - first);
        for (std::int64_t k = 0; k < count; ++k) {
          const std::int64_t at = (first + k) * columns;
          if (a.sum.data) add_branch<C, S>(a, bias, dropout, at);
          C* const buffer = row_memory.data() + (thread * group_size + k) * width;
          const C* const s = load((a.sum.data ? a.sum.as<const S>() : a.x.as<const S>()) + at, 1, columns, buffer);
          group[k] = {s, buffer, statistics_of(s, columns, a.centered, a.eps)};
        }
        for (std::int64_t k = 0; k < count; ++k) {
          const auto& row = group[k];
          if (a.centered) a.mean.as<C>()[first + k] = row.statistics.mean;
          a.rstd.as<C>()[first + k] = row.statistics.moments.rstd;
          write_row(a.y.as<S>() + (first + k) * columns, columns, row.buffer,
                    [s = row.s, m = row.statistics.moments, gamma, beta](std::int64_t i) {
                      return ((s[i] - m.center) * m.rstd + m.rest) * gamma[i] + beta[i];
                    });
        }
      }
    });
  });
}
void LayerNorm::run(Cpu) const { layer_norm(*this); }

// Note [Parameter gradients]: the rows are divided into parts of a size that depends on their number alone. Each part adds up its rows in
// order, and the parts are added in order at the end, so the sums do not depend on the number of threads. A part costs about as much as a
// row, so it has 32 rows if that leaves enough parts to share, and more where there would be over 64 parts.

namespace {

std::int64_t rows_in_part(std::int64_t rows) { return std::max(std::clamp<std::int64_t>(ceil_div(rows, 32), 4, 32), ceil_div(rows, 64)); }

/// A row of the backward pass: its normalization, its gradients, and the means of h and h u.
template <class C>
struct GradRow {
  const C *s, *g, *g_sum;
  Moments<C> moments;
  C h_mean, hu_mean;  ///< h_mean is 0 if the row is not centered
};

/// Adds the row's contribution to dgamma and dbeta.
template <class C>
void add_parameter_grads(const GradRow<C>& row, C* dgamma, C* dbeta, std::int64_t n) {
  const C *const s = row.s, *const g = row.g;
  const Moments<C> m = row.moments;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    dgamma[i] += g[i] * ((s[i] - m.center) * m.rstd + m.rest);
    dbeta[i] += g[i];
  }
}

/// dx of a row; it may be g or g_sum. In a separate loop: stores complete in order, so stores to sums in the cache would wait for those of
/// dx, which go to memory.
template <class C>
void grad_run(const GradRow<C>& row, const C* gamma, C* dx, std::int64_t n) {
  const GradRow<C> r = row;
  const Moments<C> m = r.moments;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const C u = (r.s[i] - m.center) * m.rstd + m.rest;
    dx[i] = m.rstd * (r.g[i] * gamma[i] - r.h_mean - u * r.hu_mean) + r.g_sum[i];
  }
}

/// The buffer has room for three rows.
template <class C, class S>
GradRow<C> grad_row(const LayerNormGrad& a, const C* gamma, const C* zeros, std::int64_t row, C* buffer) {
  const std::int64_t columns = a.s.shape[1], first = row * columns, width = padded(columns);
  const C* const s = load(a.s.as<const S>() + first, 1, columns, buffer);
  const C* const g = load(a.g.as<const S>() + first, 1, columns, buffer + width);
  const C* const g_sum = a.g_sum.data ? load(a.g_sum.as<const S>() + first, 1, columns, buffer + 2 * width) : zeros;
  const bool shifted = a.centered && columns > 0;
  const Moments<C> m(shifted ? s[0] : C(0), shifted ? a.mean.as<const C>()[row] : C(0), a.rstd.as<const C>()[row]);
  const auto [h_sum, hu_sum] = sums<2, C>(columns, [=](auto at) {
    const auto h = at(g) * at(gamma);
    return std::array{h, h * ((at(s) - m.center) * m.rstd + m.rest)};
  });
  return {s, g, g_sum, m, a.centered ? C(h_sum / double(columns)) : C(0), C(hu_sum / double(columns))};
}

/// dbranch of the row that begins at element `at`, and its contribution to dbias.
template <class C, class S>
void branch_grad(const LayerNormGrad& a, const C* dx, const DropoutRuns& dropout, std::int64_t at, C* dbias) {
  alignas(64) C branch[chunk];
  const std::int64_t columns = a.s.shape[1];
  for (std::int64_t first = 0; first < columns; first += chunk) {
    const std::int64_t n = std::min(chunk, columns - first);
    dropout(dx + first, branch, at + first, n);
    store(branch, a.dbranch.as<S>() + at + first, 1, n);
    if (a.dbias.data) fold_columns<Sum>(dbias + first, branch, n);
  }
}

}  // namespace

static void layer_norm_grad(const LayerNormGrad& a) {
  const std::int64_t rows = a.s.shape[0], columns = a.s.shape[1];
  dispatch_floats(a.s.dtype, "layer_norm_grad", [&]<class S>() {
    using C = compute_t<S>;
    const std::int64_t part_rows = rows_in_part(rows), parts = ceil_div(rows, part_rows);
    const std::int64_t width = padded(columns), part_size = 3 * width;
    // Memory for dgamma, dbeta and dbias of each part, and for s, g and g_sum of a row for each thread, if they cannot be used in place.
    const Scratch<C> part_memory(parts * part_size, a.dx.stream), row_memory(num_threads() * 3 * width, a.dx.stream);
    const Scratch<C> parameter_memory(2 * width, a.dx.stream);
    const C* const gamma = parameters<C, S>(a.gamma, columns, C(1), parameter_memory.data());
    C* const zeros = parameter_memory.data() + width;
    std::fill_n(zeros, columns, C(0));
    const bool affine = a.dgamma.data || a.dbeta.data;
    parallel_units(parts, part_rows * columns, stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      const DropoutRuns dropout(a.p, a.draws);
      C* const buffer = row_memory.data() + thread * 3 * width;
      for (std::int64_t part = begin; part < end; ++part) {
        C *const dgamma = part_memory.data() + part * part_size, *const dbeta = dgamma + width, *const dbias = dbeta + width;
        if (affine) std::fill_n(dgamma, 2 * width, C(0));
        if (a.dbias.data) std::fill_n(dbias, width, C(0));
        for (std::int64_t r = part * part_rows; r < std::min((part + 1) * part_rows, rows); ++r) {
          const GradRow<C> row = grad_row<C, S>(a, gamma, zeros, r, buffer);
          if (affine) add_parameter_grads(row, dgamma, dbeta, columns);
          C* const dx = target(a.dx.as<S>() + r * columns, 1, columns, buffer);
          grad_run(row, gamma, dx, columns);
          if (a.p > 0) branch_grad<C, S>(a, dx, dropout, r * columns, dbias);
          else if (a.dbias.data) fold_columns<Sum>(dbias, dx, columns);
          store(dx, a.dx.as<S>() + r * columns, 1, columns);
        }
      }
    });
    const View* const outputs[] = {&a.dgamma, &a.dbeta, &a.dbias};
    for (int k = 0; k < 3; ++k)
      if (outputs[k]->data) sum_parts(part_memory.data() + k * width, parts, part_size, columns, outputs[k]->as<S>(), 1, a.write);
  });
}
void LayerNormGrad::run(Cpu) const { layer_norm_grad(*this); }

}  // namespace tern::kernels
