#include "ops/cpu/flash_attention.h"
#include "ops/cpu/philox.h"
#include "tensor/sizes.h"

namespace tern::kernels {

using namespace flash;
using loops::Scratch;
using loops::whole_vectors;

// Backward pass of flash attention on the CPU: a thread takes tiles of keys, loops over the queries that see them, and recomputes their
// probabilities; it sums dK and dV in its tiles, and adds to dQ. Dao, "FlashAttention-2", 2023, algorithm 2.
//
// Note [Ordered sums]: results are the same bits in every run and for any number of threads. A unit of work is a key head with all its
// query heads. It is divided into parts, which take the tiles of keys in turn, by the shapes alone; each part has its own dQ, and those are
// added in order. Heads that add to the same gradient of a broadcast bias form one unit.

namespace {

/// Number of parts that are wanted in total if units are few, and the most parts of one unit: each holds a dQ.
constexpr std::int64_t wanted_parts = 16, max_parts = 8;

/// Queries of a head and their data.
template <class C>
struct QueryHead {
  C *queries, *gradients, *query_panels, *gradient_panels, *deltas,
      *sums;  ///< rows (T, pitch) and panels; delta = sum(dy y); sums: dQ of each part

  static std::int64_t rows(const Problem& problem) { return problem.query_tiles() * tile_queries + gemm::max_height; }
  static std::int64_t pitch(const Problem& problem) { return round_up(problem.width, gemm::breadth<C>); }
  static std::int64_t panels(const Problem& problem) { return Panels<C>::size(tile_queries, problem.width); }
  static std::int64_t size(const Problem& problem, std::int64_t parts) {
    return rows(problem) * pitch(problem) * (2 + parts) + problem.query_tiles() * 2 * panels(problem) + round_up(rows(problem), 64);
  }
  QueryHead(const Problem& problem, C* memory)
      : queries(memory),
        gradients(queries + rows(problem) * pitch(problem)),
        query_panels(gradients + rows(problem) * pitch(problem)),
        gradient_panels(query_panels + problem.query_tiles() * panels(problem)),
        deltas(gradient_panels + problem.query_tiles() * panels(problem)),
        sums(deltas + round_up(rows(problem), 64)) {}
};

/// Memory of a thread for a tile of keys.
template <class C>
struct KeyWork {
  C *keys_across, *values_across, *keys, *dk, *dv, *weights, *ds;  ///< panels (D, n), (D, n), (n, D); sums (n, pitch); (queries, n)

  static constexpr std::int64_t tile_size = (tile_queries + gemm::max_height) * tile_keys;
  static std::int64_t sums(const Problem& problem) { return tile_keys * QueryHead<C>::pitch(problem); }
  static std::int64_t across(const Problem& problem) { return Panels<C>::size(problem.width, tile_keys); }
  static std::int64_t size(const Problem& problem) {
    return 2 * across(problem) + Panels<C>::size(tile_keys, problem.width) + 2 * sums(problem) + 2 * tile_size;
  }
  KeyWork(const Problem& problem, C* memory)
      : keys_across(memory),
        values_across(keys_across + across(problem)),
        keys(values_across + across(problem)),
        dk(keys + Panels<C>::size(tile_keys, problem.width)),
        dv(dk + sums(problem)),
        weights(dv + sums(problem)),
        ds(weights + tile_size) {}
};

template <class C, class S>
class Backward {
 public:
  Backward(const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g, const Attention& attention,
           const AttentionGradients& gradients, C* dbias)
      : problem_(q, k, attention),
        dropout_(attention.dropout, attention.draws),
        q_(q),
        k_(k),
        v_(v),
        y_(y),
        log_sums_(log_sums),
        g_(g),
        gradients_(gradients),
        dbias_(dbias) {
    const View& bias = gradients.bias;
    for (int d = 0; dbias_ && d < 4; ++d) bias_strides_[d] = bias.shape[d] == 1 ? 0 : bias.strides[d];
    const bool shares_sequences = dbias_ && bias.shape[0] == 1, shares_heads = dbias_ && bias.shape[1] == 1;
    unit_sequences_ = shares_sequences ? problem_.sequences : 1;
    unit_heads_ = shares_heads ? problem_.kv_heads : 1;
    const std::int64_t units = this->units(), most = dbias_ && bias.shape[3] == 1 ? 1 : max_parts;
    parts_ =
        units == 0 ? 1 : std::clamp<std::int64_t>(wanted_parts / units, 1, std::max<std::int64_t>(1, std::min(most, problem_.key_tiles())));
  }

  void run() const {
    const std::int64_t key_heads = problem_.sequences * problem_.kv_heads, group = problem_.group(), tiles = problem_.query_tiles();
    const std::int64_t threads = problem_.threads(std::max<std::int64_t>(units() * parts_, 1)), work_size = KeyWork<C>::size(problem_);
    const std::int64_t head_size = QueryHead<C>::size(problem_, parts_), group_size = group * head_size;
    const Scratch<C> work(threads * work_size, g_.stream), queries((parts_ == 1 ? threads : key_heads) * group_size, g_.stream);
    const auto own = [&](std::int64_t thread) { return KeyWork<C>(problem_, work.data() + thread * work_size); };
    if (parts_ == 1) {
      loops::share_dynamically(units(), threads, [&](std::int64_t unit, std::int64_t thread) {
        C* const memory = queries.data() + thread * group_size;
        for_members(unit, [&](std::int64_t key_head) {
          for (std::int64_t i = 0; i < group * tiles; ++i) prepare(key_head, i / tiles, i % tiles, memory + i / tiles * head_size);
          for (std::int64_t tile = 0; tile < problem_.key_tiles(); ++tile) differentiate(key_head, tile, 0, memory, own(thread));
          for (std::int64_t i = 0; i < group * tiles; ++i) write_queries(key_head, i / tiles, i % tiles, memory + i / tiles * head_size);
        });
      });
      return;
    }
    const auto for_query_tiles = [&](auto f) {
      loops::share_dynamically(key_heads * group * tiles, threads, [&](std::int64_t unit, std::int64_t) {
        f(unit / (group * tiles), unit / tiles % group, unit % tiles, queries.data() + unit / tiles * head_size);
      });
    };
    for_query_tiles(
        [&](std::int64_t key_head, std::int64_t member, std::int64_t tile, C* memory) { prepare(key_head, member, tile, memory); });
    loops::share_dynamically(units() * parts_, threads, [&](std::int64_t unit, std::int64_t thread) {
      for_members(unit / parts_, [&](std::int64_t key_head) {
        for (std::int64_t tile = unit % parts_; tile < problem_.key_tiles(); tile += parts_)
          differentiate(key_head, tile, unit % parts_, queries.data() + key_head * group_size, own(thread));
      });
    });
    for_query_tiles(
        [&](std::int64_t key_head, std::int64_t member, std::int64_t tile, C* memory) { write_queries(key_head, member, tile, memory); });
  }

 private:
  using Across = gemm::ColumnsOperand<C>;
  using Along = gemm::RowsOperand<C>;

  std::int64_t units() const {
    return problem_.sequences == 0 || problem_.kv_heads == 0 ? 0 : problem_.sequences * problem_.kv_heads / (unit_sequences_ * unit_heads_);
  }
  /// Calls f with each key head of a unit.
  template <class F>
  void for_members(std::int64_t unit, F&& f) const {
    const std::int64_t across = problem_.kv_heads / unit_heads_, sequence = unit / across, kv_head = unit % across;
    for (std::int64_t i = 0; i < unit_sequences_; ++i)
      for (std::int64_t j = 0; j < unit_heads_; ++j) f((sequence + i) * problem_.kv_heads + kv_head + j);
  }
  Sequence sequence_of(std::int64_t key_head) const { return problem_.sequence(key_head / problem_.kv_heads); }
  std::int64_t head_of(std::int64_t key_head, std::int64_t member) const {
    return key_head % problem_.kv_heads * problem_.group() + member;
  }
  std::int64_t pitch() const { return QueryHead<C>::pitch(problem_); }

  /// Copies and packs a tile of queries and of their results' gradients.
  void prepare(std::int64_t key_head, std::int64_t member, std::int64_t tile, C* memory) const {
    const Sequence s = sequence_of(key_head);
    const std::int64_t head = head_of(key_head, member), first = tile * tile_queries, rows = std::min(tile_queries, s.queries - first);
    if (rows <= 0) return;
    const QueryHead<C> own(problem_, memory);
    const std::int64_t width = problem_.width, start = first * pitch();
    // A panel reads rows after the last one: if there is a next tile, they are its rows, which another thread may be copying now.
    const std::int64_t padded = first + rows < s.queries ? rows : round_up(rows, gemm::panel_height(rows));
    const Rows<const S> results(y_, s, s.first_query, head);
    copy_rows<C, S>(Rows<const S>(q_, s, s.first_query, head), first, rows, width, padded, pitch(), own.queries + start);
    copy_rows<C, S>(Rows<const S>(g_, s, s.first_query, head), first, rows, width, padded, pitch(), own.gradients + start);
    const std::int64_t panel = tile * QueryHead<C>::panels(problem_);
    Panels<C>::pack(own.queries + start, pitch(), 1, rows, width, own.query_panels + panel);
    Panels<C>::pack(own.gradients + start, pitch(), 1, rows, width, own.gradient_panels + panel);
    for (std::int64_t t = first; t < first + rows; ++t) {
      const C* const gradient = own.gradients + t * pitch();
      C sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t d = 0; d < width; ++d) sum += gradient[d] * C(results[t][d]);
      own.deltas[t] = sum;
    }
    for (std::int64_t part = 0; part < parts_; ++part) std::fill_n(sums_of(own, part) + start, rows * pitch(), C(0));
  }
  C* sums_of(const QueryHead<C>& queries, std::int64_t part) const { return queries.sums + part * QueryHead<C>::rows(problem_) * pitch(); }

  /// dK and dV of a tile of keys, and its contribution to dQ.
  void differentiate(std::int64_t key_head, std::int64_t tile, std::int64_t part, C* memory, const KeyWork<C>& own) const {
    const Sequence s = sequence_of(key_head);
    const std::int64_t kv_head = key_head % problem_.kv_heads, first = tile * tile_keys, width = problem_.width;
    const std::int64_t all = std::min(tile_keys, s.all_keys - first), n = std::clamp<std::int64_t>(s.keys - first, 0, tile_keys);
    if (all <= 0) return;
    std::fill_n(own.dk, all * pitch(), C(0));
    std::fill_n(own.dv, all * pitch(), C(0));
    if (n > 0) {
      const Rows<const S> keys(k_, s, s.first_key, kv_head), values(v_, s, s.first_key, kv_head);
      const auto keys_across = Panels<C>::pack(keys[first], 1, keys.stride, width, n, own.keys_across);
      const auto values_across = Panels<C>::pack(values[first], 1, values.stride, width, n, own.values_across);
      const auto key_panels = Panels<C>::pack(keys[first], keys.stride, 1, n, width, own.keys);
      for (std::int64_t member = 0; member < problem_.group(); ++member) {
        const QueryHead<C> queries(problem_, memory + member * QueryHead<C>::size(problem_, parts_));
        const std::int64_t head = head_of(key_head, member), end = s.queries_end(first + n);
        ScoreRows<C, S> score_rows(problem_, s, head);
        score_rows.move_to(first, n);
        for (std::int64_t query = s.queries_begin(first) / tile_queries * tile_queries; query < end; query += tile_queries) {
          probabilities(s, head, query, first, n, queries, part, keys_across, values_across, key_panels, score_rows, own);
          add_to_keys(s, query, first, n, queries, own);
        }
      }
    }
    const Rows<S> dk(gradients_.k, s, s.first_key, kv_head), dv(gradients_.v, s, s.first_key, kv_head);
    const C scale = C(problem_.attention.scale);
    for (std::int64_t i = 0; i < all; ++i) {
      C *const from_k = own.dk + i * pitch(), *const from_v = own.dv + i * pitch();
      loops::write_row(dk[first + i], width, from_k, [=](std::int64_t d) { return from_k[d] * scale; });
      loops::write_row(dv[first + i], width, from_v, [=](std::int64_t d) { return from_v[d]; });
    }
  }

  /// Probabilities of a tile and gradients of its scores, and from those a tile of dQ.
  void probabilities(const Sequence& s, std::int64_t head, std::int64_t first, std::int64_t key, std::int64_t n,
                     const QueryHead<C>& queries, std::int64_t part, const Panels<C>& keys_across, const Panels<C>& values_across,
                     const Panels<C>& keys, ScoreRows<C, S>& score_rows, const KeyWork<C>& own) const {
    const std::int64_t all_rows = std::min(tile_queries, s.queries - first), width = problem_.width, columns = whole_vectors<C>(n);
    const int height = gemm::panel_height(all_rows);
    const std::int64_t last = std::min(all_rows, s.queries_end(key + n) - first);
    const C scale = C(problem_.attention.scale);
    for (std::int64_t row = std::max<std::int64_t>(s.queries_begin(key) - first, 0) / height * height; row < last; row += height) {
      const std::int64_t rows = std::min<std::int64_t>(height, all_rows - row), t = first + row;
      const std::int64_t end = std::clamp<std::int64_t>(s.end(t + rows - 1) - key, 0, n);
      const std::int64_t begin = std::clamp<std::int64_t>(s.begin(t) - key, 0, end) / Panels<C>::breadth * Panels<C>::breadth;
      const std::int64_t whole = begin + whole_vectors<C>(end - begin);
      C *const weights = own.weights + row * tile_keys, *const ds = own.ds + row * tile_keys;
      const Part across{0, width, begin, end};
      multiply_panel(height, rows, Along{queries.queries + t * pitch(), pitch()}, keys_across, across, weights, tile_keys,
                     scale * std::numbers::log2e_v<C>, false);
      multiply_panel(height, rows, Along{queries.gradients + t * pitch(), pitch()}, values_across, across, ds, tile_keys, C(1), false);
      for (std::int64_t r = 0; r < rows; ++r) {
        C *const p = weights + r * tile_keys, *const d = ds + r * tile_keys;
        score_rows.complete(t + r, begin, whole, p);
        differentiate_row(s, head, t + r, key, begin, whole, queries.deltas[t + r], p, d);
        for (C* line : {p, d}) {
          std::fill(line, line + begin, C(0));
          std::fill(line + whole, line + std::max(whole, columns), C(0));
        }
      }
      multiply_panel(height, rows, Along{ds + begin, tile_keys}, keys, {begin, end, 0, width}, sums_of(queries, part) + t * pitch(),
                     pitch(), scale, true);
    }
  }

  /// Replaces scores by probabilities, and the gradients of probabilities by those of scores.
  void differentiate_row(const Sequence& s, std::int64_t head, std::int64_t t, std::int64_t key, std::int64_t begin, std::int64_t end,
                         C delta, C* p, C* d) const {
    const C* const kept_sum = log_sums_.as<const C>() + problem_.first_row(s, head) + t;
    C log_sum = *kept_sum;
    if (problem_.attention.bias.data) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) p[i] -= log_sum;
      log_sum = kept_sum[problem_.all_rows()];
    }
    if (dropout_.drops()) {
      alignas(64) C keeps[tile_keys];
      dropout_.mask(((s.number * problem_.heads + head) * problem_.queries + t) * problem_.keys + key + begin, end - begin, keeps);
      const C kept = C(1 / (1 - problem_.attention.dropout));
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const C weight = exp2_below_zero(p[i] - log_sum), factor = keeps[i - begin] * kept;
        d[i] = weight * (d[i] * factor - delta);
        p[i] = weight * factor;
      }
    } else {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const C weight = exp2_below_zero(p[i] - log_sum);
        d[i] = weight * (d[i] - delta);
        p[i] = weight;
      }
    }
    if (dbias_) add_to_bias(s, head, t, key, begin, std::min(end, s.keys - key), d);
  }

  void add_to_bias(const Sequence& s, std::int64_t head, std::int64_t t, std::int64_t key, std::int64_t begin, std::int64_t end,
                   const C* d) const {
    const std::int64_t* const strides = bias_strides_;
    C* const to = dbias_ + s.number * strides[0] + head * strides[1] + t * strides[2] + key * strides[3];
    if (strides[3] == 0) {
      *to += loops::fold_run<loops::Sum>(d + begin, end - begin);
    } else {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) to[i] += d[i];
    }
  }

  /// dV += P^T dY and dK += dS^T Q for a tile.
  void add_to_keys(const Sequence& s, std::int64_t first, std::int64_t key, std::int64_t n, const QueryHead<C>& queries,
                   const KeyWork<C>& own) const {
    const std::int64_t rows = std::min(tile_queries, s.queries - first), panel = first / tile_queries * QueryHead<C>::panels(problem_);
    const Panels<C> query_panels{queries.query_panels + panel, rows, problem_.width},
        gradient_panels{queries.gradient_panels + panel, rows, problem_.width};
    const int height = gemm::panel_height(n);
    for (std::int64_t i = 0; i < n; i += height) {
      const std::int64_t count = std::min<std::int64_t>(height, n - i);
      const std::int64_t begin = std::clamp<std::int64_t>(s.queries_begin(key + i) - first, 0, rows);
      const std::int64_t end = std::clamp<std::int64_t>(s.queries_end(key + i + count) - first, begin, rows);
      if (begin == end) continue;
      const Part along{begin, end, 0, problem_.width};
      const std::int64_t start = begin * tile_keys + i;
      multiply_panel(height, count, Across{own.weights + start, tile_keys}, gradient_panels, along, own.dv + i * pitch(), pitch(), C(1),
                     true);
      multiply_panel(height, count, Across{own.ds + start, tile_keys}, query_panels, along, own.dk + i * pitch(), pitch(), C(1), true);
    }
  }

  void write_queries(std::int64_t key_head, std::int64_t member, std::int64_t tile, C* memory) const {
    const Sequence s = sequence_of(key_head);
    const std::int64_t first = tile * tile_queries, rows = std::min(tile_queries, s.queries - first);
    const QueryHead<C> own(problem_, memory);
    const Rows<S> dq(gradients_.q, s, s.first_query, head_of(key_head, member));
    for (std::int64_t t = first; t < first + rows; ++t) {
      C* const sums = own.sums + t * pitch();
      for (std::int64_t part = 1; part < parts_; ++part) {
        const C* const more = sums_of(own, part) + t * pitch();
#pragma omp simd
        for (std::int64_t d = 0; d < problem_.width; ++d) sums[d] += more[d];
      }
      loops::write_row(dq[t], problem_.width, sums, [=](std::int64_t d) { return sums[d]; });
    }
  }

  Problem problem_;
  loops::DropoutRuns dropout_;
  View q_, k_, v_, y_, log_sums_, g_;
  AttentionGradients gradients_;
  C* dbias_;  ///< sums in the compute type; null if not needed
  std::int64_t bias_strides_[4] = {};
  std::int64_t unit_sequences_ = 1, unit_heads_ = 1, parts_ = 1;
};

}  // namespace

void FlashAttentionGrad::run(Cpu) const {
  dispatch_floats(q.dtype, "flash_attention_grad", [&]<class S>() {
    using C = compute_t<S>;
    const std::int64_t count = gradients.bias.data ? gradients.bias.numel() : 0;
    const bool in_place = std::is_same_v<S, C>;
    const Scratch<C> sums(in_place ? 0 : count, g.stream);
    C* const dbias = count == 0 ? nullptr : in_place ? gradients.bias.as<C>() : sums.data();
    std::fill_n(dbias, count, C(0));
    Backward<C, S>(q, k, v, y, log_sums, g, attention, gradients, dbias).run();
    if constexpr (!std::is_same_v<S, C>) loops::convert_run(dbias, gradients.bias.as<S>(), count);
  });
}

}  // namespace tern::kernels
