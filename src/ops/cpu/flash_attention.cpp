#include "ops/cpu/flash_attention.h"

#include "ops/cpu/philox.h"
#include "tensor/sizes.h"

namespace tern::kernels {

using namespace flash;
using loops::Scratch;
using loops::whole_vectors;

// Forward pass of flash attention on the CPU: a thread takes a tile of queries and loops over the tiles of keys that it sees, with the
// running maximum and sum of each query (online softmax). Dao, "FlashAttention-2", 2023, algorithm 1.

namespace {

/// Packed keys and values of a tile.
template <class C>
struct KeyTile {
  Panels<C> keys, values;  ///< (D, n) and (n, D)

  static std::int64_t keys_size(const Problem& problem) { return Panels<C>::size(problem.width, tile_keys); }
  static std::int64_t size(const Problem& problem) { return keys_size(problem) + Panels<C>::size(tile_keys, problem.width); }
};

/// Memory of a thread.
template <class C>
struct Workspace {
  C *queries, *scores, *sums;  ///< (rows, pitch), (rows, tile_keys), (rows, pitch)
  std::int64_t pitch;
  alignas(64) C tops[tile_queries], totals[tile_queries];

  static std::int64_t pitch_of(const Problem& problem) { return round_up(problem.width, gemm::breadth<C>); }
  static constexpr std::int64_t rows = tile_queries + gemm::max_height;
  static std::int64_t size(const Problem& problem) { return rows * (2 * pitch_of(problem) + tile_keys); }
  Workspace(const Problem& problem, C* memory)
      : queries(memory), scores(queries + rows * pitch_of(problem)), sums(scores + rows * tile_keys), pitch(pitch_of(problem)) {}
};

template <class C, class S>
class Forward {
 public:
  Forward(const View& q, const View& k, const View& v, const Attention& attention, const View& y, const View& log_sums)
      : problem_(q, k, attention), dropout_(attention.dropout, attention.draws), q_(q), k_(k), v_(v), y_(y), log_sums_(log_sums) {}

  void run() const {
    const std::int64_t tile_size = KeyTile<C>::size(problem_), key_tiles = problem_.key_tiles(), query_tiles = problem_.query_tiles();
    const std::int64_t key_heads = problem_.sequences * problem_.kv_heads, group = problem_.group(), head_size = key_tiles * tile_size;
    const std::int64_t threads = problem_.threads(key_heads * group * query_tiles), work_size = Workspace<C>::size(problem_);
    const Scratch<C> work(threads * work_size, y_.stream);
    const auto workspace = [&](std::int64_t thread) { return Workspace<C>(problem_, work.data() + thread * work_size); };
    // Keys and values of a head are packed once for all queries that see them. If there are enough heads, each thread packs those that it
    // works on; otherwise threads share the packing, and then the tiles of queries.
    const bool alone = key_heads % threads == 0 || key_heads >= 8 * threads;
    const Scratch<C> packed((alone ? threads : key_heads) * head_size, y_.stream);
    const auto pack_tile = [&](std::int64_t key_head, std::int64_t tile, C* memory) {
      pack(problem_.sequence(key_head / problem_.kv_heads), key_head % problem_.kv_heads, tile, memory + tile * tile_size);
    };
    // With a causal mask the last tiles are the longest, so they start first.
    const auto attend_tile = [&](std::int64_t key_head, std::int64_t part, const C* memory, Workspace<C>& own) {
      const std::int64_t head = key_head % problem_.kv_heads * group + part % group, tile = query_tiles - 1 - part / group;
      attend(problem_.sequence(key_head / problem_.kv_heads), head, tile * tile_queries, memory, own);
    };
    if (alone) {
      loops::share_dynamically(key_heads, threads, [&](std::int64_t key_head, std::int64_t thread) {
        C* const memory = packed.data() + thread * head_size;
        Workspace<C> own = workspace(thread);
        for (std::int64_t tile = 0; tile < key_tiles; ++tile) pack_tile(key_head, tile, memory);
        for (std::int64_t part = 0; part < group * query_tiles; ++part) attend_tile(key_head, part, memory, own);
      });
      return;
    }
    loops::share_dynamically(key_heads * key_tiles, threads, [&](std::int64_t unit, std::int64_t) {
      pack_tile(unit / key_tiles, unit % key_tiles, packed.data() + unit / key_tiles * head_size);
    });
    loops::share_dynamically(key_heads * group * query_tiles, threads, [&](std::int64_t unit, std::int64_t thread) {
      Workspace<C> own = workspace(thread);
      attend_tile(unit % key_heads, unit / key_heads, packed.data() + unit % key_heads * head_size, own);
    });
  }

 private:
  KeyTile<C> tile_of(const Sequence& s, std::int64_t first, const C* memory) const {
    const std::int64_t n = std::min(tile_keys, s.keys - first);
    return {{memory, problem_.width, n}, {memory + KeyTile<C>::keys_size(problem_), n, problem_.width}};
  }

  void pack(const Sequence& s, std::int64_t kv_head, std::int64_t tile, C* memory) const {
    const std::int64_t first = tile * tile_keys, n = std::min(tile_keys, s.keys - first);
    if (n <= 0) return;
    const Rows<const S> keys(k_, s, s.first_key, kv_head), values(v_, s, s.first_key, kv_head);
    Panels<C>::pack(keys[first], 1, keys.stride, problem_.width, n, memory);
    Panels<C>::pack(values[first], values.stride, 1, n, problem_.width, memory + KeyTile<C>::keys_size(problem_));
  }

  /// Results of a tile of queries from `first` on; `packed` holds the tiles of its head's keys and values.
  void attend(const Sequence& s, std::int64_t head, std::int64_t first, const C* packed, Workspace<C>& own) const {
    const std::int64_t rows = std::min(tile_queries, s.queries - first);
    if (rows <= 0) return;
    const int height = gemm::panel_height(rows);
    copy_rows<C, S>(Rows<const S>(q_, s, s.first_query, head), first, rows, problem_.width, round_up(rows, height), own.pitch, own.queries);
    std::fill_n(own.sums, rows * own.pitch, C(0));
    std::fill_n(own.tops, rows, -infinity<C>);
    std::fill_n(own.totals, rows, C(0));
    ScoreRows<C, S> score_rows(problem_, s, head);
    const std::int64_t tile_size = KeyTile<C>::size(problem_), last = s.end(first + rows - 1);
    for (std::int64_t key = s.begin(first) / tile_keys * tile_keys; key < last; key += tile_keys) {
      const KeyTile<C> tile = tile_of(s, key, packed + key / tile_keys * tile_size);
      score_rows.move_to(key, tile.keys.columns);
      for (std::int64_t row = 0; row < rows; row += height)
        attend_panel(s, head, first, row, std::min<std::int64_t>(height, rows - row), height, key, tile, score_rows, own);
    }
    write(s, head, first, rows, own);
  }

  /// Adds a tile of keys to the sums of a panel of up to `height` queries.
  void attend_panel(const Sequence& s, std::int64_t head, std::int64_t first, std::int64_t row, std::int64_t rows, int height,
                    std::int64_t key, const KeyTile<C>& tile, ScoreRows<C, S>& score_rows, Workspace<C>& own) const {
    const std::int64_t end = std::clamp<std::int64_t>(s.end(first + row + rows - 1) - key, 0, tile.keys.columns);
    const std::int64_t begin = std::clamp<std::int64_t>(s.begin(first + row) - key, 0, end) / Panels<C>::breadth * Panels<C>::breadth;
    if (begin == end) return;
    const std::int64_t whole = begin + whole_vectors<C>(end - begin);
    C* const scores = own.scores + row * tile_keys;
    const C scale = C(problem_.attention.scale) * std::numbers::log2e_v<C>;
    using Operand = gemm::RowsOperand<C>;
    multiply_panel(height, rows, Operand{own.queries + row * own.pitch, own.pitch}, tile.keys, {0, problem_.width, begin, end}, scores,
                   tile_keys, scale, false);
    alignas(64) C keeps[tile_keys];
    for (std::int64_t r = 0; r < rows; ++r) {
      C* const line = scores + r * tile_keys;
      const std::int64_t t = first + row + r;
      score_rows.complete(t, begin, whole, line);
      const C factor = update_softmax(line + begin, whole - begin, own.tops[row + r], own.totals[row + r]);
      if (factor != 1) {
        C* const sums = own.sums + (row + r) * own.pitch;
#pragma omp simd
        for (std::int64_t d = 0; d < own.pitch; ++d) sums[d] *= factor;
      }
      if (!dropout_.drops()) continue;
      dropout_.mask(((s.number * problem_.heads + head) * problem_.queries + t) * problem_.keys + key + begin, end - begin, keeps);
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) line[i] *= keeps[i - begin];
    }
    // Rows of the panel after the last one hold stale numbers, finite or not: their results are not read.
    multiply_panel(height, rows, Operand{scores + begin, tile_keys}, tile.values, {begin, end, 0, problem_.width},
                   own.sums + row * own.pitch, own.pitch, C(1), true);
  }

  C* log_sums_of(const Sequence& s, std::int64_t head) const { return log_sums_.as<C>() + problem_.first_row(s, head); }
  void write(const Sequence& s, std::int64_t head, std::int64_t first, std::int64_t rows, Workspace<C>& own) const {
    const Rows<S> results(y_, s, s.first_query, head);
    const C kept = C(1 / (1 - problem_.attention.dropout));
    for (std::int64_t r = 0; r < rows; ++r) {
      const C total = own.totals[r], factor = total == 0 ? C(0) : kept / total;
      C* const sums = own.sums + r * own.pitch;
      loops::write_row(results[first + r], problem_.width, sums, [=](std::int64_t d) { return sums[d] * factor; });
      const C log_total = std::log2(total), log_sum = own.tops[r] + log_total;
      C* const kept_sum = log_sums_of(s, head) + first + r;
      *kept_sum = total == 0 ? infinity<C> : log_sum;
      if (problem_.attention.bias.data) kept_sum[problem_.all_rows()] = total == 0 ? C(0) : own.tops[r] - log_sum + log_total;
    }
  }

  Problem problem_;
  loops::DropoutRuns dropout_;
  View q_, k_, v_, y_, log_sums_;
};

}  // namespace

void FlashAttention::run(Cpu) const {
  if (log_sums.numel() == 0) return;
  dispatch_floats(q.dtype, "flash_attention", [&]<class S>() { Forward<compute_t<S>, S>(q, k, v, attention, y, log_sums).run(); });
}

// Attention of one query per sequence: bound by the bandwidth of the keys and values, which are read in place.

namespace {

/// n rows of a head from `first` on, as C: read in place, or converted into the buffer (n, D). Sets the rows' stride.
template <class C, class S>
const C* rows_as(const Rows<const S>& rows, std::int64_t first, std::int64_t n, std::int64_t width, C* buffer, std::int64_t& stride) {
  if constexpr (std::is_same_v<C, S>) {
    stride = rows.stride;
    return rows[first];
  }
  for (std::int64_t i = 0; i < n; ++i) loops::convert_run(rows[first + i], buffer + i * width, width);
  stride = width;
  return buffer;
}

/// Lane i of rows[0] becomes the sum of the lanes of rows[i], for as many rows as lanes, by halves.
template <int Step, class Vector, int... Lane>
[[gnu::always_inline]] inline void sum_rows(Vector* rows, std::integer_sequence<int, Lane...> lanes) {
  constexpr int n = sizeof...(Lane);
#pragma GCC unroll 8
  for (int i = 0; i < Step; ++i) {
    const Vector upper = rows[i], lower = rows[i + Step];
    rows[i] = __builtin_shufflevector(upper, lower, (Lane & Step ? n + Lane - Step : Lane)...) +
              __builtin_shufflevector(upper, lower, (Lane & Step ? n + Lane : Lane + Step)...);
  }
  if constexpr (Step > 1) sum_rows<Step / 2>(rows, lanes);
}

/// scores[i] = scale q k_i, for one vector of keys at a time, up to whole vectors. A head is only a few vectors wide, so summing the lanes
/// of each key by itself would cost more than its products: the lanes of a vector of keys are summed together.
template <class C>
void multiply_keys(const C* q, const C* keys, std::int64_t stride, std::int64_t n, std::int64_t width, C scale, C* scores) {
  using Vector = typename gemm::VectorOf<C>::type;
  constexpr int lanes = gemm::lanes<C>;
  const std::int64_t whole = width / lanes * lanes;
  for (std::int64_t i = 0; i < n; i += lanes) {
    Vector sums[lanes] = {};
    const std::int64_t count = std::min<std::int64_t>(lanes, n - i);
    for (std::int64_t r = 0; r < count; ++r) {
      const C* const key = keys + (i + r) * stride;
      Vector sum{};
      for (std::int64_t k = 0; k < whole; k += lanes) {
        Vector of_q, of_key;
        std::memcpy(&of_q, q + k, sizeof of_q);
        std::memcpy(&of_key, key + k, sizeof of_key);
        sum += of_q * of_key;
      }
      C rest = 0;
      for (std::int64_t k = whole; k < width; ++k) rest += q[k] * key[k];
      sum[0] += rest;
      sums[r] = sum;
    }
    sum_rows<lanes / 2>(sums, std::make_integer_sequence<int, lanes>());
    sums[0] *= scale;
    std::memcpy(scores + i, &sums[0], sizeof sums[0]);
  }
}

/// sums += weights * values, four rows at a time.
template <class C>
void add_values(const C* weights, const C* values, std::int64_t stride, std::int64_t n, std::int64_t width, C* sums) {
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const C *a = values + i * stride, *b = a + stride, *c = b + stride, *d = c + stride;
    const C wa = weights[i], wb = weights[i + 1], wc = weights[i + 2], wd = weights[i + 3];
#pragma omp simd
    for (std::int64_t k = 0; k < width; ++k) sums[k] += wa * a[k] + wb * b[k] + wc * c[k] + wd * d[k];
  }
  for (; i < n; ++i)
#pragma omp simd
    for (std::int64_t k = 0; k < width; ++k) sums[k] += weights[i] * values[i * stride + k];
}

template <class C, class S>
class Decode {
 public:
  Decode(const View& q, const View& k, const View& v, const Attention& attention, const View& y)
      : problem_(q, k, attention), q_(q), k_(k), v_(v), y_(y) {}

  void run() const {
    const std::int64_t key_heads = problem_.sequences * problem_.kv_heads, group = problem_.group(), width = problem_.width;
    const std::int64_t parts = std::max<std::int64_t>(ceil_div(problem_.keys, decode_part), 1);
    const std::int64_t units = key_heads * parts, threads = threads_for(units), entry = width + 2;
    const Scratch<C> partial(units * group * entry, y_.stream), work(threads * work_size(), y_.stream);
    const auto sums_of = [&](std::int64_t key_head, std::int64_t part, std::int64_t member) {
      return partial.data() + ((key_head * parts + part) * group + member) * entry;
    };
    loops::share_dynamically(units, threads, [&](std::int64_t unit, std::int64_t thread) {
      const std::int64_t key_head = unit / parts, part = unit % parts;
      add_part(problem_.sequence(key_head / problem_.kv_heads), key_head % problem_.kv_heads, part, work.data() + thread * work_size(),
               [&](std::int64_t member) { return sums_of(key_head, part, member); });
      if (parts == 1) write_group(key_head, sums_of);
    });
    if (parts == 1) return;
    loops::share(key_heads, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t key_head = begin; key_head < end; ++key_head) write_group(key_head, sums_of);
    });
  }

 private:
  /// Number of threads that have enough work. The sequences of a step are often a few tokens long: then the cost per head equals that of
  /// about eight times as many multiplications in a product, and the cost per key that of some more.
  std::int64_t threads_for(std::int64_t units) const {
    const std::int64_t worth = 8 * problem_.sequences * problem_.heads * (problem_.keys + 16) * problem_.width;
    return std::clamp<std::int64_t>(std::min(units, worth / gemm::product_grain), 1, num_threads());
  }
  /// Results of the query heads that share a key head, from the sums over its parts.
  template <class F>
  void write_group(std::int64_t key_head, F&& sums_of) const {
    const Sequence s = problem_.sequence(key_head / problem_.kv_heads);
    const auto [first, last] = parts_of(s);
    for (std::int64_t member = 0; member < problem_.group(); ++member) {
      C* const joined = sums_of(key_head, first, member);
      for (std::int64_t part = first + 1; part < last; ++part) join(joined, sums_of(key_head, part, member));
      if (first == last) joined[1] = 0;
      write(s, key_head % problem_.kv_heads * problem_.group() + member, joined);
    }
  }
  /// Elements of a thread's memory, in whole cache lines: its scores are read as aligned vectors for every width of a head.
  std::int64_t work_size() const { return round_up(2 * tile_keys * problem_.width + tile_keys + problem_.width, 64); }
  /// The range of parts with keys that the query sees.
  std::pair<std::int64_t, std::int64_t> parts_of(const Sequence& s) const {
    const std::int64_t begin = s.begin(0), end = s.end(0);
    return begin < end ? std::pair{begin / decode_part, (end - 1) / decode_part + 1} : std::pair<std::int64_t, std::int64_t>{0, 0};
  }

  /// Sums of a key head over one part, for each query head that shares it: an entry holds the maximum, the total and the sums.
  template <class F>
  void add_part(const Sequence& s, std::int64_t kv_head, std::int64_t part, C* work, F&& entry_of) const {
    const std::int64_t width = problem_.width, group = problem_.group();
    const std::int64_t begin = std::max(s.begin(0), part * decode_part), end = std::min(s.end(0), (part + 1) * std::int64_t(decode_part));
    if (begin >= end) return;
    C *const key_rows = work, *const value_rows = key_rows + tile_keys * width, *const scores = value_rows + tile_keys * width,
             *const query = scores + tile_keys;
    for (std::int64_t member = 0; member < group; ++member) {
      C* const entry = entry_of(member);
      entry[0] = -infinity<C>;
      std::fill_n(entry + 1, width + 1, C(0));
    }
    const Rows<const S> keys(k_, s, 0, kv_head), values(v_, s, 0, kv_head);
    const C scale = C(problem_.attention.scale) * std::numbers::log2e_v<C>;
    for (std::int64_t key = begin / tile_keys * tile_keys; key < end; key += tile_keys) {
      const std::int64_t first = std::max(key, begin), n = std::min(key + tile_keys, end) - first;
      std::int64_t key_stride, value_stride;
      const C* const k = rows_as<C, S>(keys, first, n, width, key_rows, key_stride);
      const C* const v = rows_as<C, S>(values, first, n, width, value_rows, value_stride);
      for (std::int64_t member = 0; member < group; ++member) {
        const std::int64_t head = kv_head * group + member;
        C* const entry = entry_of(member);
        loops::convert_run(Rows<const S>(q_, s, 0, head)[0], query, width);
        multiply_keys(query, k, key_stride, n, width, scale, scores);
        ScoreRows<C, S> score_rows(problem_, s, head);
        score_rows.move_to(first, n);
        score_rows.complete(0, 0, n, scores);
        std::fill(scores + n, scores + whole_vectors<C>(n), -infinity<C>);
        const C factor = update_softmax(scores, whole_vectors<C>(n), entry[0], entry[1]);
        if (factor != 1)
#pragma omp simd
          for (std::int64_t d = 0; d < width; ++d) entry[2 + d] *= factor;
        add_values(scores, v, value_stride, n, width, entry + 2);
      }
    }
  }
  /// Adds the sums of a later part to an entry.
  void join(C* entry, const C* later) const {
    const C top = std::max(entry[0], later[0]), shift = top == -infinity<C> ? C(0) : top;
    const C factor = exp2_below_zero(entry[0] - shift), of_later = exp2_below_zero(later[0] - shift);
    entry[0] = top;
#pragma omp simd
    for (std::int64_t i = 1; i < problem_.width + 2; ++i) entry[i] = entry[i] * factor + later[i] * of_later;
  }
  /// Writes the result of a query head; zeros if it sees no key.
  void write(const Sequence& s, std::int64_t head, C* entry) const {
    S* const row = Rows<S>(y_, s, 0, head)[0];
    if (entry[1] == 0) {
      std::fill_n(row, problem_.width, S());
      return;
    }
    const C factor = 1 / entry[1];
    C* const sums = entry + 2;
    loops::write_row(row, problem_.width, sums, [=](std::int64_t d) { return sums[d] * factor; });
  }

  Problem problem_;
  View q_, k_, v_, y_;
};

}  // namespace

void DecodeAttention::run(Cpu) const {
  if (y.numel() == 0) return;
  dispatch_floats(q.dtype, "decode_attention", [&]<class S>() { Decode<compute_t<S>, S>(q, k, v, attention, y).run(); });
}

AttentionWay attention_way(Cpu, const View& q, const View&, const View&, const Attention& attention, bool is_recorded) {
  return may_decode(q, attention, is_recorded) ? AttentionWay::decode : AttentionWay::flash;
}

}  // namespace tern::kernels
