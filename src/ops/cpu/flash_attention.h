#pragma once
#include <cmath>
#include <numbers>

#include "ops/cpu/gemm.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/rows.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/math.h"
#include "tensor/sizes.h"

// Flash attention on the CPU, common to both passes: masks, products of tiles, and scores.
namespace tern::flash {

using kernels::Attention;

/// Note [CPU tiles]: scores are computed for tile_queries x tile_keys at a time. A tile's keys, values, scores and sums take about half of
/// a 512 KiB L2 cache at D = 64, and a tile side is a multiple of the vector width and nearly one of the register tile of every instruction
/// set.
inline constexpr std::int64_t tile_queries = 96, tile_keys = 96;

template <class C>
inline constexpr C infinity = std::numeric_limits<C>::infinity();

/// A batch row, or one of the packed sequences, with its mask.
struct Sequence {
  std::int64_t number = 0, batch = 0, first_query = 0, first_key = 0;  ///< first_query, first_key: first rows in batch row `batch`
  std::int64_t queries = 0, all_keys = 0, keys = 0;                    ///< keys: those before key_lengths[b]
  std::int64_t past = 0;                                               ///< the position of query t among the keys is t + past
  std::int64_t prefix = 0, window = 0;
  bool causal = false;

  /// Range of keys that query t sees: `begin` to `end` - 1 at most.
  std::int64_t end(std::int64_t t) const { return causal ? std::clamp<std::int64_t>(std::max(t + past + 1, prefix), 0, keys) : keys; }
  std::int64_t begin(std::int64_t t) const { return window > 0 ? std::clamp<std::int64_t>(t + past + 1 - window, 0, end(t)) : 0; }
  /// Range of queries that see any of the keys `first` to `last` - 1.
  std::int64_t queries_begin(std::int64_t first) const {
    return causal && first >= prefix ? std::clamp<std::int64_t>(first - past, 0, queries) : 0;
  }
  std::int64_t queries_end(std::int64_t last) const {
    return window > 0 ? std::clamp<std::int64_t>(last - 1 - past + window, 0, queries) : queries;
  }
};

/// Sizes of a call, and its sequences.
struct Problem {
  const Attention& attention;
  std::int64_t sequences, queries, keys, heads, kv_heads, width;  ///< queries and keys of the longest sequence
  std::int64_t packed_queries;                                    ///< rows of q if sequences are packed

  Problem(const View& q, const View& k, const Attention& attention_)
      : attention(attention_),
        sequences(is_packed() ? attention.query_starts.shape[0] - 1 : q.shape[0]),
        queries(is_packed() ? attention.max_queries : q.shape[1]),
        keys(is_packed() ? attention.max_keys : k.shape[1]),
        heads(q.shape[2]),
        kv_heads(k.shape[2]),
        width(q.shape[3]),
        packed_queries(q.shape[1]) {}

  bool is_packed() const { return attention.query_starts.data; }
  std::int64_t group() const { return kv_heads == 0 ? 0 : heads / kv_heads; }
  std::int64_t key_tiles() const { return ceil_div(keys, tile_keys); }
  std::int64_t query_tiles() const { return ceil_div(queries, tile_queries); }

  Sequence sequence(std::int64_t n) const {
    const kernels::AttentionMask& mask = attention.mask;
    const auto number = [n](const View& numbers) { return numbers.as<const std::int64_t>()[n]; };
    Sequence s{.number = n, .batch = n, .queries = queries, .all_keys = keys, .window = mask.window, .causal = mask.causal};
    if (is_packed()) {
      const std::int64_t *query = attention.query_starts.as<const std::int64_t>() + n,
                         *key = attention.key_starts.as<const std::int64_t>() + n;
      s.batch = 0;
      s.first_query = query[0], s.first_key = key[0];
      s.queries = query[1] - query[0], s.all_keys = key[1] - key[0];
    }
    s.past = s.all_keys - s.queries;
    if (mask.prefix.data) s.prefix = number(mask.prefix);
    s.keys = mask.key_lengths.data ? std::clamp<std::int64_t>(number(mask.key_lengths), 0, s.all_keys) : s.all_keys;
    return s;
  }
  /// Index of a head's first query in log_sums: (B, H, T), or (H, rows) if sequences are packed.
  std::int64_t first_row(const Sequence& s, std::int64_t head) const {
    return is_packed() ? head * packed_queries + s.first_query : (s.number * heads + head) * queries;
  }
  /// Number of rows of log_sums.
  std::int64_t all_rows() const { return heads * (is_packed() ? packed_queries : sequences * queries); }
  /// Number of threads that pay off for `units` units of work.
  std::int64_t threads(std::int64_t units) const {
    const std::int64_t multiplications = sequences * heads * queries * keys * std::max<std::int64_t>(width, 1);
    return std::clamp<std::int64_t>(std::min(units, multiplications / gemm::product_grain), 1, num_threads());
  }
};

/// Rows of a head.
template <class S>
struct Rows {
  S* data;
  std::int64_t stride;

  Rows(const View& x, const Sequence& s, std::int64_t first, std::int64_t head)
      : data(x.as<S>() + s.batch * x.strides[0] + first * x.strides[1] + head * x.strides[2]), stride(x.strides[1]) {}
  S* operator[](std::int64_t row) const { return data + row * stride; }
};

/// Right operand of products, (depth, columns), packed as in gemm.h: `breadth` columns for each step of the depth; the last panel is one
/// vector wide if that suffices.
template <class C>
struct Panels {
  const C* data;
  std::int64_t depth, columns;

  static constexpr std::int64_t breadth = gemm::breadth<C>;
  int vectors(std::int64_t column) const { return columns - column <= gemm::lanes<C> ? 1 : 2; }

  /// Number of elements that `pack` writes, padding included.
  static std::int64_t size(std::int64_t depth, std::int64_t columns) {
    return round_up(round_up(columns, breadth) * depth + gemm::lanes<C>, 64);
  }
  /// Packs the matrix whose element (i, j) is at x + i depth_stride + j column_stride.
  template <class S>
  static Panels pack(const S* x, std::int64_t depth_stride, std::int64_t column_stride, std::int64_t depth, std::int64_t columns, C* to) {
    const std::int64_t rest = columns % breadth, narrow = rest > 0 && rest <= gemm::lanes<C> ? rest : 0, wide = columns - narrow;
    gemm::pack(x, column_stride, depth_stride, wide, depth, breadth, to);
    if (narrow) gemm::pack(x + wide * column_stride, column_stride, depth_stride, narrow, depth, gemm::lanes<C>, to + wide * depth);
    return {to, depth, columns};
  }
};

/// Part of a product's right operand, to which the product is limited.
struct Part {
  std::int64_t depth_begin, depth_end, column_begin, column_end;  ///< column_begin: of a panel
};

/// c = alpha a b, or added to c, for up to `height` rows; c is written up to a whole vector at its right end.
template <class A, class C>
void multiply_panel(int height, std::int64_t rows, const A& a, const Panels<C>& b, const Part& part, C* c, std::int64_t c_stride, C alpha,
                    bool add) {
  for (std::int64_t j = part.column_begin; j < part.column_end; j += Panels<C>::breadth) {
    const int vectors = b.vectors(j), width = vectors * gemm::lanes<C>;
    gemm::strided_tile_for<A, C>(height, vectors)(part.depth_end - part.depth_begin, a, b.data + j * b.depth + part.depth_begin * width,
                                                  width, c + j, c_stride, static_cast<int>(rows), width, alpha, add, nullptr);
  }
}

/// Copies n rows as C, `pitch` apart, padded with zeros, and adds rows of zeros up to `padded`.
template <class C, class S>
void copy_rows(const Rows<const S>& from, std::int64_t first, std::int64_t n, std::int64_t width, std::int64_t padded, std::int64_t pitch,
               C* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    loops::convert_run(from[first + i], to + i * pitch, width);
    std::fill(to + i * pitch + width, to + (i + 1) * pitch, C(0));
  }
  std::fill(to + n * pitch, to + padded * pitch, C(0));
}

using vector_math::exp2_below_zero;

/// Replaces n scores by exponentials relative to their query's running maximum, and returns the factor that rescales earlier sums.
template <class C>
C update_softmax(C* scores, std::int64_t n, C& top, C& total) {
  const C before = top;
  top = std::max(before, loops::largest(scores, n));
  const C shift = top == -infinity<C> ? C(0) : top;  // -inf: fully masked so far
  C sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += scores[i] = exp2_below_zero(scores[i] - shift);
  const C factor = exp2_below_zero(before - shift);
  total = total * factor + sum;
  return factor;
}

/// Note [Scores in base 2]: scores are multiplied by log2(e), because e^x = 2^(x log2(e)). A bias near the largest finite number would
/// overflow, and -inf hides a key. So beyond 2^(E - 2), where 2^E is the overflow, the factor is 1/2: numbers there are equal or so far
/// apart that only the largest matters.
template <class C>
[[gnu::always_inline]] inline C bias_in_base_2(C x) {
  constexpr C log2_e = std::numbers::log2e_v<C>, bend = std::numeric_limits<C>::max() / 4, offset = (log2_e - C(0.5)) * bend;
  const C scaled = log2_e * x, low = C(0.5) * x - offset, high = C(0.5) * x + offset;
  const C bounded = scaled < low ? low : scaled;
  return bounded > high ? high : bounded;
}

/// Bias and padding of the scores of one head, times log2(e), and the hidden scores.
template <class C, class S>
class ScoreRows {
 public:
  ScoreRows(const Problem& problem, const Sequence& s, std::int64_t head) : attention_(problem.attention), sequence_(s) {
    if (const View& bias = attention_.bias; bias.data) bias_ = bias.as<const S>() + s.number * bias.strides[0] + head * bias.strides[1];
    if (attention_.mask.padding.data) padding_ = attention_.mask.padding.as<const C>() + s.number * problem.keys;
  }
  /// Moves to the tile of n keys from `first` on.
  void move_to(std::int64_t first, std::int64_t n) {
    first_ = first;
    if (!padding_) return;
    for (std::int64_t i = 0; i < n; ++i)
      tile_padding_[i] = padding_[first + i] > C(kernels::hidden_padding) ? padding_[first + i] * log2_e : -infinity<C>;
  }
  /// Completes scale log2(e) q k^T of query t, in columns [begin, end) of the tile, in whole vectors; hidden scores become -inf.
  void complete(std::int64_t t, std::int64_t begin, std::int64_t end, C* scores) {
    const std::int64_t seen = std::clamp(sequence_.begin(t) - first_, begin, end), stop = std::clamp(sequence_.end(t) - first_, seen, end);
    if (bias_) {
      const Strides& strides = attention_.bias.strides;
      const C* const bias = loops::load(bias_ + t * strides[2] + (first_ + seen) * strides[3], strides[3], stop - seen, buffer_);
#pragma omp simd
      for (std::int64_t i = 0; i < stop - seen; ++i) scores[seen + i] += bias_in_base_2(bias[i]);
    }
    if (padding_) {
#pragma omp simd
      for (std::int64_t i = seen; i < stop; ++i) scores[i] = tile_padding_[i] == -infinity<C> ? -infinity<C> : scores[i] + tile_padding_[i];
    }
    std::fill(scores + begin, scores + seen, -infinity<C>);
    std::fill(scores + stop, scores + end, -infinity<C>);
  }

 private:
  static constexpr C log2_e = std::numbers::log2e_v<C>;
  const Attention& attention_;
  const Sequence& sequence_;
  const S* bias_ = nullptr;
  const C* padding_ = nullptr;
  std::int64_t first_ = 0;
  alignas(64) C tile_padding_[tile_keys], buffer_[tile_keys];
};

}  // namespace tern::flash
