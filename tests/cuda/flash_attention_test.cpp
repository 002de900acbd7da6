// Flash attention by mma, called by itself, since a Hopper GPU's op takes other kernels: against the definition in float64, in loops.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "catch.h"
#include "cuda/attention/attention.h"
#include "dropout_reference.h"
#include "ops/kernels/attention.h"
#include "tensor/random.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

/// Sizes, masks and dropout of an attention call.
struct AttentionCase {
  const char* name;
  std::int64_t sequences, queries, keys, heads, kv_heads, head_dim;
  bool causal = false;
  std::int64_t window = 0;
  bool has_lengths = false, has_prefix = false, has_padding = false, is_packed = false;
  double dropout = 0;
  bool has_bias = false;
  int shift = 0;     ///< of addresses and strides from multiples of 16 bytes, in elements
  double scale = 1;  ///< times 1 / sqrt(D)
};

/// A tensor (B, T, H, D) whose rows lie apart, as in a packed projection.
Twin heads_of(DType dtype, std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t head_dim, int shift = 0) {
  const std::int64_t pitch = 3 * heads * head_dim + shift;
  return Twin(dtype, {batch, rows, heads, head_dim}, {rows * pitch, pitch, head_dim, 1}, shift);
}

/// The inputs of a case, and what attention makes of them in float64, in loops.
struct AttentionProblem {
  const AttentionCase& c;
  std::vector<std::int64_t> query_starts{0}, key_starts{0};
  Twin q, k, v, g, lengths, prefix, padding, q_starts, k_starts, bias;  ///< bias: (H, T, S), for all sequences
  kernels::Attention attention;
  std::vector<double> y, log_sums, dq, dk, dv;

  std::int64_t batch() const { return c.is_packed ? 1 : c.sequences; }
  static std::int64_t total(const AttentionCase& c, std::int64_t longest) {
    std::int64_t sum = 0;
    for (std::int64_t n = 0; n < c.sequences; ++n) sum += length_of(n, longest);
    return c.is_packed ? sum : longest;
  }
  /// Of a packed sequence.
  static std::int64_t length_of(std::int64_t n, std::int64_t longest) { return n % 2 ? longest : longest / 3 + 1; }

  AttentionProblem(const AttentionCase& c_, DType dtype)
      : c(c_),
        q(heads_of(dtype, batch(), total(c, c.queries), c.heads, c.head_dim, c.shift)),
        k(heads_of(dtype, batch(), total(c, c.keys), c.kv_heads, c.head_dim, c.shift)),
        v(heads_of(dtype, batch(), total(c, c.keys), c.kv_heads, c.head_dim, c.shift)),
        g(heads_of(dtype, batch(), total(c, c.queries), c.heads, c.head_dim, c.shift)),
        lengths(DType::i64, {c.sequences}),
        prefix(DType::i64, {c.sequences}),
        padding(DType::f32, {c.sequences, c.keys}),
        q_starts(DType::i64, {c.sequences + 1}),
        k_starts(DType::i64, {c.sequences + 1}),
        bias(dtype, {c.heads, c.queries, c.keys}, {c.queries * c.keys, 1, c.queries}) {
    q.randomize(1, -1, 1).upload();
    k.randomize(2, -1, 1).upload();
    v.randomize(3, -1, 1).upload();
    g.randomize(4, -1, 1).upload();
    bias.randomize(5, -1, 1).upload();
    for (std::int64_t n = 0; n < c.sequences; ++n) {
      lengths.set(n, static_cast<double>(n % 3 == 2 ? 0 : c.keys * (n + 1) / 4));
      prefix.set(n, static_cast<double>(c.keys * n / 3));
      for (std::int64_t s = 0; s < c.keys; ++s) padding.set(n * c.keys + s, s % 5 == 1 ? -1e30 : 0.25 * static_cast<double>(s % 7));
      query_starts.push_back(query_starts.back() + length_of(n, c.queries));
      key_starts.push_back(key_starts.back() + length_of(n, c.keys));
    }
    for (std::int64_t n = 0; n <= c.sequences; ++n) {
      q_starts.set(n, static_cast<double>(query_starts[std::size_t(n)]));
      k_starts.set(n, static_cast<double>(key_starts[std::size_t(n)]));
    }
    for (Twin* twin : {&lengths, &prefix, &padding, &q_starts, &k_starts}) twin->upload();
    attention.scale = c.scale / std::sqrt(static_cast<double>(c.head_dim));
    attention.dropout = c.dropout;
    attention.draws = {7, static_cast<std::uint64_t>(4 + c.heads % 2), nullptr};  // at the begin of a block or in its middle
    attention.mask.causal = c.causal;
    attention.mask.window = c.window;
    if (c.has_lengths) attention.mask.key_lengths = lengths.device();
    if (c.has_prefix) attention.mask.prefix = prefix.device();
    if (c.has_padding) attention.mask.padding = padding.device();
    if (c.has_bias) {
      attention.bias = bias.device();
      attention.bias.shape.insert(0, c.sequences);
      attention.bias.strides.insert(0, 0);
    }
    if (c.is_packed) {
      attention.query_starts = q_starts.device();
      attention.key_starts = k_starts.device();
      attention.max_queries = c.queries;
      attention.max_keys = c.keys;
    }
    for (std::vector<double>* result : {&y, &dq}) result->resize(static_cast<std::size_t>(q.host().numel()));
    for (std::vector<double>* result : {&dk, &dv}) result->resize(static_cast<std::size_t>(k.host().numel()));
    // With a bias there are two, of which the second is what rounding takes from the first: 0 within the tolerance.
    log_sums.assign(static_cast<std::size_t>((c.has_bias ? 2 : 1) * batch() * c.heads * total(c, c.queries)), 0);
    for (std::int64_t n = 0; n < c.sequences; ++n)
      for (std::int64_t h = 0; h < c.heads; ++h) attend(n, h);
  }

  bool is_visible(std::int64_t n, std::int64_t t, std::int64_t s, std::int64_t offset) const {
    return (!c.has_lengths || static_cast<double>(s) < lengths.get(n)) && (!c.has_padding || padding.get(n * c.keys + s) > -1e4) &&
           (!c.causal || s <= t + offset || (c.has_prefix && static_cast<double>(s) < prefix.get(n))) &&
           (c.window == 0 || s > t + offset - c.window);
  }

  void attend(std::int64_t n, std::int64_t h) {
    const std::int64_t d_count = c.head_dim, kv = h / (c.heads / c.kv_heads);
    const auto index = static_cast<std::size_t>(n);
    const std::int64_t queries = c.is_packed ? query_starts[index + 1] - query_starts[index] : c.queries,
                       keys = c.is_packed ? key_starts[index + 1] - key_starts[index] : c.keys,
                       first_query = c.is_packed ? query_starts[index] : n * c.queries,
                       first_key = c.is_packed ? key_starts[index] : n * c.keys;
    for (std::int64_t t = 0; t < queries; ++t) {
      const std::int64_t query = ((first_query + t) * c.heads + h) * d_count;
      const auto key = [&](std::int64_t s) { return ((first_key + s) * c.kv_heads + kv) * d_count; };
      std::vector<double> p(static_cast<std::size_t>(keys)), kept(p.size(), 1);
      double sum = 0, delta = 0;
      for (std::int64_t s = 0; s < keys; ++s) {
        double score = 0;
        for (std::int64_t d = 0; d < d_count; ++d) score += q.get(query + d) * k.get(key(s) + d);
        score = score * attention.scale + (c.has_padding ? padding.get(n * c.keys + s) : 0) +
                (c.has_bias ? bias.get((h * c.queries + t) * c.keys + s) : 0);
        sum += p[std::size_t(s)] = is_visible(n, t, s, keys - queries) ? std::exp(score) : 0;
        if (c.dropout > 0) {
          const auto element = static_cast<std::uint64_t>(((n * c.heads + h) * c.queries + t) * c.keys + s);
          kept[std::size_t(s)] = is_dropped(7, attention.draws.offset, element, c.dropout) ? 0 : 1 / (1 - c.dropout);
        }
      }
      log_sums[static_cast<std::size_t>(c.is_packed ? h * total(c, c.queries) + first_query + t : (n * c.heads + h) * c.queries + t)] =
          sum > 0 ? std::log2(sum) : std::numeric_limits<double>::infinity();
      for (double& x : p) x = sum > 0 ? x / sum : 0;
      for (std::int64_t s = 0; s < keys; ++s)
        for (std::int64_t d = 0; d < d_count; ++d) {
          const double weight = p[std::size_t(s)] * kept[std::size_t(s)];
          y[std::size_t(query + d)] += weight * v.get(key(s) + d);
          dv[std::size_t(key(s) + d)] += weight * g.get(query + d);
        }
      for (std::int64_t d = 0; d < d_count; ++d) delta += y[std::size_t(query + d)] * g.get(query + d);
      for (std::int64_t s = 0; s < keys; ++s) {
        double dp = 0;
        for (std::int64_t d = 0; d < d_count; ++d) dp += g.get(query + d) * v.get(key(s) + d);
        const double ds = p[std::size_t(s)] * (dp * kept[std::size_t(s)] - delta) * attention.scale;
        for (std::int64_t d = 0; d < d_count; ++d) {
          dq[std::size_t(query + d)] += ds * k.get(key(s) + d);
          dk[std::size_t(key(s) + d)] += ds * q.get(query + d);
        }
      }
    }
  }
};

/// The CPU's copy becomes what is expected; the GPU's has been written.
std::string difference(Twin& got, const std::vector<double>& expected, double tolerance) {
  for (std::size_t i = 0; i < expected.size(); ++i) got.set(static_cast<std::int64_t>(i), expected[i]);
  return got.difference(tolerance);
}

/// Runs a case's kernels, the gradient's three times. `shift` moves addresses and strides off the alignment of vectors.
void check_kernels(const AttentionCase& c, DType dtype) {
  INFO(fmt::format("{} {} T {} S {} D {} shift {}", name(dtype), c.name, c.queries, c.keys, c.head_dim, c.shift));
  const AttentionProblem problem(c, dtype);
  REQUIRE(gpu::has_mma_attention(problem.q.device()));
  const auto like_q = [&] { return heads_of(dtype, problem.batch(), problem.total(c, c.queries), c.heads, c.head_dim, c.shift); };
  const auto like_k = [&] { return heads_of(dtype, problem.batch(), problem.total(c, c.keys), c.kv_heads, c.head_dim, c.shift); };
  Twin y = like_q(), dq = like_q(), dk = like_k(), dv = like_k(),
       log_sums(DType::f32, {(c.has_bias ? 2 : 1) * problem.batch(), c.heads, problem.total(c, c.queries)});
  for (Twin* twin : {&y, &dq, &dk, &dv, &log_sums}) twin->upload();
  const View q = problem.q.device(), k = problem.k.device(), v = problem.v.device(), g = problem.g.device();
  const kernels::AttentionGradients gradients{dq.device(), dk.device(), dv.device(), {}};
  gpu::mma_attention({q, k, v, problem.attention, y.device(), log_sums.device()});
  std::vector<std::byte> first;
  for (int run = 0; run < 3; ++run) {
    gpu::mma_attention_grad({{q, k, v, problem.attention, y.device(), log_sums.device()}, g, gradients});
    const std::vector<std::byte> now = dq.download();
    CHECK((run == 0 || now == first));
    first = now;
  }
  const double allowed = dtype == DType::f16 ? 2e-3 : 1.6e-2;
  CHECK(difference(y, problem.y, allowed) == "");
  CHECK(difference(dq, problem.dq, allowed) == "");
  CHECK(difference(dk, problem.dk, allowed) == "");
  CHECK(difference(dv, problem.dv, allowed) == "");
  CHECK(difference(log_sums, problem.log_sums, 1e-3) == "");
}

}  // namespace

TEST_CASE("flash attention by mma is attention, gradients included, and the same in every run", "[cuda]") {
  int turn = 0;
  for (const std::int64_t d : {8, 16, 24, 32, 40, 64, 80, 96, 128, 192, 256})
    for (const std::int64_t length : {1, 31, 33, 64, 65, 100}) {
      const DType dtype = turn % 2 ? DType::f16 : DType::bf16;
      const int shift = turn % 3 == 0 ? 1 + turn % 7 : 0;
      const bool is_causal = turn % 5 == 1 || turn % 5 == 2 || turn % 5 == 4;
      check_kernels({.name = "mask",
                     .sequences = 3,
                     .queries = length,
                     .keys = length,
                     .heads = 2,
                     .kv_heads = 2,
                     .head_dim = d,
                     .causal = is_causal,
                     .has_prefix = turn % 5 == 2,
                     .has_padding = turn % 5 >= 3,
                     .shift = shift},
                    dtype);
      ++turn;
    }
}

TEST_CASE("flash attention by mma takes all heads and masks", "[cuda]") {
  for (const auto& [d, dtype] : {std::pair<std::int64_t, DType>{24, DType::bf16}, {64, DType::f16}, {128, DType::bf16}, {256, DType::f16}})
    for (const AttentionCase& c : {AttentionCase{"one", 1, 1, 1, 1, 1, d, true},
                                   {"full", 2, 100, 167, 2, 2, d},
                                   {"causal", 1, 161, 161, 4, 2, d, true},
                                   {"more queries than keys", 1, 167, 100, 2, 1, d, true},
                                   {"more keys than queries", 1, 66, 250, 2, 1, d, true},
                                   {"window", 1, 200, 200, 2, 2, d, true, 50},
                                   {"lengths", 3, 150, 150, 1, 1, d, false, 0, true},
                                   {"prefix", 3, 130, 150, 1, 1, d, true, 0, true, true},
                                   {"padding", 2, 100, 150, 2, 1, d, true, 0, false, false, true},
                                   {"dropout", 1, 100, 151, 2, 2, d, true, 0, false, false, false, false, 0.1},
                                   {"packed", 4, 150, 150, 2, 1, d, true, 0, false, false, false, true},
                                   {"short packed", 4, 60, 50, 2, 2, d, true, 0, false, false, false, true},
                                   {"bias", 2, 100, 150, 4, 2, d, false, 0, false, false, false, false, 0, true},
                                   {"bias and all", 3, 50, 60, 2, 2, d, true, 20, true, false, true, false, 0.2, true},
                                   {"odd strides", 2, 100, 150, 2, 1, d, true, 0, false, false, false, false, 0, false, 1},
                                   {"negative scale", 2, 100, 100, 2, 2, d, true, 0, false, false, false, false, 0, false, 0, -1},
                                   {"zero scale", 1, 40, 40, 2, 2, d, true, 0, false, false, false, false, 0, false, 0, 0}})
      check_kernels(c, dtype);
}

TEST_CASE("flash attention by mma says what it has no kernel for", "[cuda]") {
  const auto has = [](DType dtype, std::int64_t d) {
    const Twin q(dtype, {1, 16, 2, d});
    return gpu::has_mma_attention(q.device());
  };
  CHECK(has(DType::bf16, 8));
  CHECK(has(DType::f16, 256));
  CHECK_FALSE(has(DType::f32, 64));
  CHECK_FALSE(has(DType::bf16, 60));
  CHECK_FALSE(has(DType::bf16, 264));
}

}  // namespace tern
