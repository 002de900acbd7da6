#include <cmath>

#include "ops/cpu/rows.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/math.h"

namespace tern::kernels {

using namespace loops;

// Row softmax that stays in the cache: a row is read from memory once, becomes scores, exponentials and their sum in a buffer of its
// thread, and is scaled as it is written. A row sees only the columns before a limit; the others are neither read nor computed.

namespace {

template <class C>
constexpr C infinity = std::numeric_limits<C>::infinity();

/// The first n elements of a row plus their padding; -inf in hidden columns, and past the end up to a whole vector. x may be scores.
template <class C>
void make_scores(const C* x, const C* padding, std::int64_t n, C* scores) {
  const std::int64_t whole = n / lanes<C> * lanes<C>;
  const auto padded = [=](std::int64_t i) {
    const C sum = x[i] + padding[i];
    return padding[i] > C(hidden_padding) ? sum : -infinity<C>;
  };
  if (padding) {
#pragma omp simd
    for (std::int64_t i = 0; i < whole; ++i) scores[i] = padded(i);
  } else if (x != scores) {
#pragma omp simd
    for (std::int64_t i = 0; i < whole; ++i) scores[i] = x[i];
  }
  // The last vector is written as a whole: if it were read after several narrow stores, the load would wait for them (no store forwarding).
  if (whole == n) return;
  if (padding) {
#pragma omp simd
    for (std::int64_t i = whole; i < whole + lanes<C>; ++i) scores[i] = i < n ? padded(i) : -infinity<C>;
  } else {
#pragma omp simd
    for (std::int64_t i = whole; i < whole + lanes<C>; ++i) scores[i] = i < n ? x[i] : -infinity<C>;
  }
}

/// Replaces n scores by exp(score - shift), and returns the sum of those.
template <class C>
double exponentials(C* scores, std::int64_t n, C shift) {
  double total = 0;
  for (std::int64_t first = 0; first < n; first += chunk) {
    C* const run = scores + first;
    const std::int64_t m = std::min(chunk, n - first);
#pragma omp simd
    for (std::int64_t i = 0; i < m; ++i) run[i] = vector_math::exp_below_zero(run[i] - shift);
    total += sums<1, C>(m, [=](auto at) { return std::array{at(run)}; })[0];
  }
  return total;
}

/// Rows that go through the stages together: the stages of a single short row would wait for each other.
constexpr std::int64_t max_rows = 16;
std::int64_t rows_in_group(std::int64_t width) { return std::clamp<std::int64_t>(2 * chunk / width, 1, max_rows); }

template <class C>
struct Row {
  std::int64_t begin;  ///< first column that may be visible
  std::int64_t limit;  ///< number of columns that may be visible
  const C* padding;
  C* buffer;  ///< `limit` elements in whole vectors
  C top;
  double total;
};

template <class C>
void normalize(Row<C>& row) {
  // A fully masked row has no maximum; its exponentials are 0 regardless of the number that is subtracted.
  row.total = exponentials(row.buffer, whole_vectors<C>(row.limit), row.top == -infinity<C> ? C(0) : row.top);
}

template <class C, class S>
void write(const Row<C>& row, S* y, std::int64_t columns) {
  C* const e = row.buffer;
  std::fill_n(y, row.begin, S(C(0)));
  y += row.begin;
  if (row.total != row.total) {
    for (std::int64_t i = 0; i < row.limit; ++i)
      y[i] = S(row.padding && !(row.padding[i] > C(hidden_padding)) ? C(0) : std::numeric_limits<C>::quiet_NaN());
  } else {
    const C factor = row.total > 0 ? C(1 / row.total) : C(0);
    write_row(y, row.limit, e, [=](std::int64_t i) { return e[i] * factor; });
  }
  std::fill_n(y + row.limit, columns - row.begin - row.limit, S(C(0)));
}

/// Elements of two rows of bf16. Each lane has one 32-bit word of each row, that is two elements, low and high, so no data moves between
/// lanes.
template <int Lane>
struct Pairs {
  static constexpr int elements = 2 * Lane;
  using Words = Lanes<std::uint32_t, Lane>;
  using Floats = Lanes<float, Lane>;
  Floats y_low, y_high, g_low, g_high;

  [[gnu::always_inline]] Pairs(const bf16* y, const bf16* g) {
    Words words;
    std::memcpy(&words, y, sizeof words);
    y_low = Floats(words << 16), y_high = Floats(words & 0xffff0000u);
    std::memcpy(&words, g, sizeof words);
    g_low = Floats(words << 16), g_high = Floats(words & 0xffff0000u);
  }
};

/// Calls f(i, pairs, m) for elements i to i + m - 1, in vectors and then in smaller ones. The last pairs may hold more elements than m;
/// those are zeros.
template <class F>
[[gnu::always_inline]] inline void for_pairs(const bf16* y, const bf16* g, std::int64_t begin, std::int64_t end, F&& f) {
  using Large = Pairs<vector_bytes / 4>;
  using Small = Pairs<4>;
  std::int64_t i = begin;
  for (; i + Large::elements <= end; i += Large::elements) f(i, Large(y + i, g + i), std::int64_t(Large::elements));
  for (; i + Small::elements <= end; i += Small::elements) f(i, Small(y + i, g + i), std::int64_t(Small::elements));
  if (i == end) return;
  bf16 copies[2][Small::elements] = {};
  for (std::int64_t k = 0; k < end - i; ++k) copies[0][k] = y[i + k], copies[1][k] = g[i + k];
  f(i, Small(copies[0], copies[1]), end - i);
}

double dot(const bf16* y, const bf16* g, std::int64_t n) {
  constexpr std::int64_t block = 4096;
  double total = 0;
  for (std::int64_t first = 0; first < n; first += block) {
    Lanes<float, vector_bytes / 4> large = {}, more = {};
    Lanes<float, 4> small = {};
    for_pairs(y, g, first, std::min(n, first + block), [&](std::int64_t, const auto& at, std::int64_t) {
      if constexpr (sizeof at.y_low > sizeof small) large += at.y_low * at.g_low, more += at.y_high * at.g_high;
      else small += at.y_low * at.g_low + at.y_high * at.g_high;
    });
    total += double(fold_register<Sum>(large + more)) + double(fold_register<Sum>(small));
  }
  return total;
}

/// dx = y (g - mean) of a row in which no number is NaN; dx may be y or g.
void write_grad(const bf16* y, const bf16* g, float mean, std::int64_t n, bf16* dx) {
  for_pairs(y, g, 0, n, [&](std::int64_t i, const auto& at, std::int64_t m) {
    using Words = typename std::decay_t<decltype(at)>::Words;
    // Round to nearest even, as bf16's constructor does.
    const auto rounded = [](const auto& value) {
      const auto bits = Words(value);
      return bits + 0x7fffu + (bits >> 16 & 1u);
    };
    const Words words = rounded(at.y_low * (at.g_low - mean)) >> 16 | (rounded(at.y_high * (at.g_high - mean)) & 0xffff0000u);
    if (m == at.elements) {
      std::memcpy(static_cast<void*>(dx + i), &words, sizeof words);
    } else {
      std::uint16_t bits[std::decay_t<decltype(at)>::elements];
      std::memcpy(bits, &words, sizeof words);
      for (std::int64_t k = 0; k < m; ++k) dx[i + k].bits = bits[k];
    }
  });
}

/// Gradient of up to max_rows rows. Returns false, with nothing written, if a mean is not finite: only then can a number be NaN.
bool differentiate_pairs(const bf16* y, const bf16* g, std::int64_t rows, std::int64_t columns, bf16* dx) {
  float means[max_rows];
  for (std::int64_t k = 0; k < rows; ++k) {
    means[k] = float(dot(y + k * columns, g + k * columns, columns));
    if (!std::isfinite(means[k])) return false;
  }
  for (std::int64_t k = 0; k < rows; ++k) write_grad(y + k * columns, g + k * columns, means[k], columns, dx + k * columns);
  return true;
}

}  // namespace

void AttentionSoftmax::run(Cpu) const {
  if (x.numel() == 0) return;
  const std::int64_t columns = x.shape[x.dims() - 1], queries = x.shape[x.dims() - 2], rows = x.numel() / columns;
  const std::int64_t rows_per_batch = x.dims() > 2 ? rows / x.shape[0] : rows;
  const auto of_batch = [&](const View& numbers, std::int64_t row, std::int64_t otherwise) {
    return numbers.data ? numbers.as<const std::int64_t>()[row / rows_per_batch] : otherwise;
  };
  const auto limit_of = [&](std::int64_t row) {
    std::int64_t limit = of_batch(mask.key_lengths, row, columns);
    if (mask.causal) limit = std::min(limit, std::max(row % queries + columns - queries + 1, of_batch(mask.prefix, row, 0)));
    return std::clamp<std::int64_t>(limit, 0, columns);
  };
  const auto begin_of = [&](std::int64_t row, std::int64_t limit) {
    return mask.window > 0 ? std::clamp<std::int64_t>(row % queries + columns - queries + 1 - mask.window, 0, limit) : 0;
  };
  dispatch_floats(x.dtype, "attention_softmax", [&]<class S>() {
    using C = compute_t<S>;
    const std::int64_t width = whole_vectors<C>(columns), group_size = rows_in_group(width);
    const Scratch<C> memory(num_threads() * group_size * width, y.stream);
    parallel_units(rows, columns, function_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      Row<C> group[max_rows];
      for (std::int64_t first = begin; first < end; first += group_size) {
        const std::int64_t count = std::min(group_size, end - first);
        for (std::int64_t k = 0; k < count; ++k) {
          const std::int64_t index = first + k, stop = limit_of(index), start = begin_of(index, stop), limit = stop - start;
          Row<C>& row = group[k];
          row.begin = start;
          row.limit = limit;
          row.buffer = memory.data() + (thread * group_size + k) * width;
          row.padding = mask.padding.data ? mask.padding.as<const C>() + index / rows_per_batch * columns + start : nullptr;
          make_scores(load(x.as<const S>() + index * columns + start, 1, limit, row.buffer), row.padding, limit, row.buffer);
          row.top = largest(row.buffer, whole_vectors<C>(limit));
        }
        for (std::int64_t k = 0; k < count; ++k) normalize(group[k]);
        for (std::int64_t k = 0; k < count; ++k) write(group[k], y.as<S>() + (first + k) * columns, columns);
      }
    });
  });
}

void AttentionSoftmaxGrad::run(Cpu) const {
  if (y.numel() == 0) return;
  const std::int64_t columns = y.shape[y.dims() - 1], rows = y.numel() / columns;
  dispatch_floats(y.dtype, "attention_softmax_grad", [&]<class S>() {
    using C = compute_t<S>;
    const std::int64_t width = whole_vectors<C>(columns), group_size = rows_in_group(width);
    const Scratch<C> memory(num_threads() * group_size * 2 * width, dx.stream);
    parallel_units(rows, columns, stream_grain, [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
      struct GradRow {
        const C *y, *g;
        C* buffer;  ///< memory of two rows, for rows that cannot be used in place
        C mean;     ///< mean of g, weighted by y
      } group[max_rows];
      for (std::int64_t first = begin; first < end; first += group_size) {
        const std::int64_t count = std::min(group_size, end - first);
        if constexpr (std::is_same_v<S, bf16>) {
          const std::int64_t at = first * columns;
          if (differentiate_pairs(y.as<const S>() + at, g.as<const S>() + at, count, columns, dx.as<S>() + at)) continue;
        }
        for (std::int64_t k = 0; k < count; ++k) {
          C* const buffer = memory.data() + (thread * group_size + k) * 2 * width;
          const C* const p = load(y.as<const S>() + (first + k) * columns, 1, columns, buffer);
          const C* const q = load(g.as<const S>() + (first + k) * columns, 1, columns, buffer + width);
          group[k] = {p, q, buffer, C(sums<1, C>(columns, [=](auto at) { return std::array{at(p) * at(q)}; })[0])};
        }
        for (std::int64_t k = 0; k < count; ++k) {
          const GradRow row = group[k];
          write_row(dx.as<S>() + (first + k) * columns, columns, row.buffer,
                    [row](std::int64_t i) { return row.y[i] * (row.g[i] - row.mean); });
        }
      }
    });
  });
}

}  // namespace tern::kernels
