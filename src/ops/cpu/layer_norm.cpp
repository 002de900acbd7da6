#include "ops/kernels/layer_norm.h"

#include <cmath>

#include "ops/cpu/sums.h"

namespace tern::kernels {

using namespace loops;

// A row comes from memory once and stays in the cache for the two passes of its statistics and for what is computed with them. Rows of the
// 16-bit types are widened into a buffer of their thread.

namespace {

/// n parameters as C: where they lie, converted into the buffer, or `otherwise` where there are none.
template <class C, class S>
const C* parameters(const View& view, std::int64_t n, C otherwise, C* buffer) {
  if (view.data) return load(view.as<const S>(), 1, n, buffer);
  std::fill_n(buffer, n, otherwise);
  return buffer;
}

/// Dropout of runs of at most `chunk` elements of a larger tensor, wherever they begin.
class Dropout {
 public:
  Dropout(double p, PhiloxState state)
      : bound_(std::uint32_t(std::ceil(std::clamp(p, 0.0, 1.0) * 0x1p24))),
        keep_(1 - p), seed_(state.seed), position_(p > 0 ? state.offset + (state.base ? *state.base : 0) : 0) {}

  /// y[i] = x[i] / (1 - p), or 0, by the word of element first + i. y may be x.
  template <class C>
  void operator()(const C* x, C* y, std::int64_t first, std::int64_t n) {
    if (n > 0) draw(position_ + std::uint64_t(first / 4), first % 4 + n);
    const std::uint32_t* const words = words_ + first % 4;
    const C keep = C(keep_);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const C scaled = x[i] / keep;
      y[i] = words[i] >> 8 < bound_ ? C(0) : scaled;
    }
  }

 private:
  static constexpr std::int64_t max_blocks = chunk / 4 + 1;

  [[gnu::flatten, gnu::noinline]] void draw(std::uint64_t position, std::int64_t count) {
    const std::int64_t blocks = (count + 3) / 4;
#pragma omp simd
    for (std::int64_t b = 0; b < blocks; ++b) {
      const PhiloxBlock block = philox(seed_, position + std::uint64_t(b));
      for (int w = 0; w < 4; ++w) by_word_[w][b] = block.words[w];
    }
    for (std::int64_t b = 0; b < blocks; ++b)
      for (int w = 0; w < 4; ++w) words_[4 * b + w] = by_word_[w][b];
  }

  std::uint32_t bound_;
  double keep_;
  std::uint64_t seed_, position_;
  alignas(64) std::uint32_t by_word_[4][max_blocks];
  alignas(64) std::uint32_t words_[4 * max_blocks];
};

/// What a row's elements are normalized with: u = (s - shift - mean) rstd; see Note [Shifted rows].
template <class C>
struct Moments {
  C shift, mean, rstd;
};

template <class C>
Moments<C> moments_of(const C* row, std::int64_t n, bool centered, double eps) {
  Moments<C> m{};
  if (centered && n > 0) {
    const C shift = m.shift = row[0];
    m.mean = C(sums<1, C>(n, [=](auto at) { return std::array{at(row) - shift}; })[0] / double(n));
  }
  const double squares = sums<1, C>(n, [=](auto at) {
    const auto distance = (at(row) - m.shift) - m.mean;
    return std::array{distance * distance};
  })[0];
  m.rstd = C(1 / std::sqrt(squares / double(n) + eps));
  return m;
}

template <class C>
void normalize(const C* row, const Moments<C>& m, const C* gamma, const C* beta, C* y, std::int64_t n) {
  const auto [shift, mean, rstd] = m;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = ((row[i] - shift) - mean) * rstd * gamma[i] + beta[i];
}

}  // namespace

void layer_norm(Cpu, const LayerNormArguments& a) {
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  dispatch_floats(a.x.dtype, "layer_norm", [&]<class S>() {
    using C = compute_t<S>;
    const Scratch<C> parameter_memory(3 * columns, a.y.stream), row_memory(omp_get_max_threads() * columns, a.y.stream);
    const C* const gamma = parameters<C, S>(a.gamma, columns, C(1), parameter_memory.data());
    const C* const beta = parameters<C, S>(a.beta, columns, C(0), parameter_memory.data() + columns);
    const C* const bias = parameters<C, S>(a.bias, columns, C(0), parameter_memory.data() + 2 * columns);
    parallel_units(rows, columns, stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      C* const buffer = row_memory.data() + thread * columns;
      Dropout dropout(a.p, a.draws);
      alignas(64) C branch[chunk];
      alignas(64) C from[chunk];
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t at = row * columns;
        // The sum lies in `sum` or, rounded as it is there, in the buffer.
        for (std::int64_t first = 0; a.sum.data && first < columns; first += chunk) {
          const std::int64_t n = std::min(chunk, columns - first);
          const C* const in = load(a.x.as<const S>() + at + first, 1, n, from);
#pragma omp simd
          for (std::int64_t i = 0; i < n; ++i) branch[i] = in[i] + bias[first + i];
          if (a.p > 0) dropout(branch, branch, at + first, n);
          if (a.residual.data) fold_columns<Sum>(branch, load(a.residual.as<const S>() + at + first, 1, n, from), n);
          store(branch, a.sum.as<S>() + at + first, 1, n);
        }
        const C* const s = load((a.sum.data ? a.sum : a.x).as<const S>() + at, 1, columns, buffer);
        const Moments<C> m = moments_of(s, columns, a.centered, a.eps);
        if (a.centered) a.mean.as<C>()[row] = m.mean;
        a.rstd.as<C>()[row] = m.rstd;
        C* const out = target(a.y.as<S>() + at, 1, columns, buffer);
        normalize(s, m, gamma, beta, out, columns);
        store(out, a.y.as<S>() + at, 1, columns);
      }
    });
  });
}

// Note [Parameter gradients]: the rows are cut into a number of parts that depends on their count alone. Each part adds its rows up in order,
// and the parts are added up in order at last, so the sums do not depend on the number of threads.

namespace {

constexpr std::int64_t max_parts = 64, min_part_rows = 4;

/// dx of a row. h_mean is 0 where the row was not centered.
template <class C>
void grad_run(const C* s, const C* g, const Moments<C>& m, const C* gamma, const C* g_sum, C h_mean, C hu_mean, C* dx, std::int64_t n) {
  const auto [shift, mean, rstd] = m;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const C u = ((s[i] - shift) - mean) * rstd;
    dx[i] = rstd * (g[i] * gamma[i] - h_mean - u * hu_mean) + g_sum[i];
  }
}

template <class C>
void add_parameter_grads(const C* s, const C* g, const Moments<C>& m, C* dgamma, C* dbeta, std::int64_t n) {
  const auto [shift, mean, rstd] = m;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    dgamma[i] += g[i] * (((s[i] - shift) - mean) * rstd);
    dbeta[i] += g[i];
  }
}

/// y = the sum of the parts' rows of `columns` elements, which lie `stride` apart.
template <class C, class S>
void sum_parts(const C* parts, std::int64_t count, std::int64_t stride, std::int64_t columns, const View& y) {
  parallel_units((columns + chunk - 1) / chunk, chunk * std::max<std::int64_t>(count, 1), stream_grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * chunk; first < std::min(end * chunk, columns); first += chunk) {
      const std::int64_t n = std::min(chunk, columns - first);
      alignas(64) double totals[chunk] = {};
      for (std::int64_t part = 0; part < count; ++part) {
        const C* const values = parts + part * stride + first;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) totals[i] += double(values[i]);
      }
      alignas(64) C rounded[chunk];
      convert_run(totals, rounded, n);
      store(rounded, y.as<S>() + first, 1, n);
    }
  });
}

}  // namespace

void layer_norm_grad(Cpu, const LayerNormGradArguments& a) {
  const std::int64_t rows = a.s.shape[0], columns = a.s.shape[1];
  dispatch_floats(a.s.dtype, "layer_norm_grad", [&]<class S>() {
    using C = compute_t<S>;
    const std::int64_t part_rows = std::max(min_part_rows, (rows + max_parts - 1) / max_parts), parts = (rows + part_rows - 1) / part_rows;
    // dgamma, dbeta and dbias of each part.
    const Scratch<C> part_memory(3 * parts * columns, a.dx.stream);
    const Scratch<C> parameter_memory(2 * columns, a.dx.stream), row_memory(3 * omp_get_max_threads() * columns, a.dx.stream);
    const C* const gamma = parameters<C, S>(a.gamma, columns, C(1), parameter_memory.data());
    C* const zeros = parameter_memory.data() + columns;
    std::fill_n(zeros, columns, C(0));
    const bool affine = a.dgamma.data || a.dbeta.data;
    parallel_units(parts, part_rows * columns, stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      C* const buffer = row_memory.data() + 3 * thread * columns;
      Dropout dropout(a.p, a.draws);
      alignas(64) C branch[chunk];
      for (std::int64_t part = begin; part < end; ++part) {
        C *const dgamma = part_memory.data() + 3 * part * columns, *const dbeta = dgamma + columns, *const dbias = dbeta + columns;
        std::fill_n(dgamma, 3 * columns, C(0));
        for (std::int64_t row = part * part_rows; row < std::min((part + 1) * part_rows, rows); ++row) {
          const std::int64_t at = row * columns;
          const C* const s = load(a.s.as<const S>() + at, 1, columns, buffer);
          const C* const g = load(a.g.as<const S>() + at, 1, columns, buffer + columns);
          const C* const g_sum = a.g_sum.data ? load(a.g_sum.as<const S>() + at, 1, columns, buffer + 2 * columns) : zeros;
          const bool shifted = a.centered && columns > 0;
          const Moments<C> m{shifted ? s[0] : C(0), shifted ? a.mean.as<const C>()[row] : C(0), a.rstd.as<const C>()[row]};
          const auto [h_sum, hu_sum] = sums<2, C>(columns, [=](auto i) {
            const auto h = i(g) * i(gamma);
            return std::array{h, h * (((i(s) - m.shift) - m.mean) * m.rstd)};
          });
          if (affine) add_parameter_grads(s, g, m, dgamma, dbeta, columns);
          C* const dx = target(a.dx.as<S>() + at, 1, columns, buffer);
          grad_run(s, g, m, gamma, g_sum, a.centered ? C(h_sum / double(columns)) : C(0), C(hu_sum / double(columns)), dx, columns);
          for (std::int64_t first = 0; a.p > 0 && first < columns; first += chunk) {
            const std::int64_t n = std::min(chunk, columns - first);
            dropout(dx + first, branch, at + first, n);
            store(branch, a.dbranch.as<S>() + at + first, 1, n);
            if (a.dbias.data) fold_columns<Sum>(dbias + first, branch, n);
          }
          if (a.p <= 0 && a.dbias.data) fold_columns<Sum>(dbias, dx, columns);
          store(dx, a.dx.as<S>() + at, 1, columns);
        }
      }
    });
    const View* const outputs[] = {&a.dgamma, &a.dbeta, &a.dbias};
    for (int k = 0; k < 3; ++k)
      if (outputs[k]->data) sum_parts<C, S>(part_memory.data() + k * columns, parts, 3 * columns, columns, *outputs[k]);
  });
}

}  // namespace tern::kernels
