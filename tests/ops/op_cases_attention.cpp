// Rows of ops/attention.h. Note [The table] in op_cases.h.
#include <cmath>

#include "dropout_reference.h"
#include "op_cases.h"
#include "ops/attention.h"
#include "ops/pointwise.h"
#include "tensor/context.h"
#include "tensor/random.h"

namespace tern::op_cases {

using namespace reference;

namespace {

using Starts = std::vector<std::int64_t>;

enum class Padding { none, boolean, additive };

/// Masks, bias and dropout of a case. Inputs are q, k, v and then, where they are there, bias, padding, prefix and key_lengths.
struct Form {
  bool causal = false;
  std::int64_t window = 0;
  Shape bias = {};  ///< empty: none
  Padding padding = Padding::none;
  bool prefix = false, lengths = false;
  std::optional<double> scale = {};
  double dropout = 0;
  Starts query_starts = {}, key_starts = {};
};

struct Shapes {
  Shape q, k;
};

constexpr std::uint64_t seed = 5;

std::int64_t longest(const Starts& starts) {
  std::int64_t most = 0;
  for (std::size_t n = 1; n < starts.size(); ++n) most = std::max(most, starts[n] - starts[n - 1]);
  return most;
}

/// The definition in loops.
Array attention_of(Ref in, const Form& form) {
  const Array &q = in[0], &k = in[1], &v = in[2];
  std::size_t next = 3;
  const Array* const bias = form.bias.empty() ? nullptr : &in[next++];
  const Array* const padding = form.padding == Padding::none ? nullptr : &in[next++];
  const Array* const prefix = form.prefix ? &in[next++] : nullptr;
  const Array* const lengths = form.lengths ? &in[next++] : nullptr;
  const bool is_packed = !form.query_starts.empty();
  const std::int64_t heads = q.size(-2), width = q.size(-1), group = heads == 0 ? 1 : heads / std::max<std::int64_t>(k.size(-2), 1);
  const std::int64_t longest_queries = is_packed ? longest(form.query_starts) : q.size(1),
                     longest_keys = is_packed ? longest(form.key_starts) : k.size(1);
  const double scale = form.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(width, 1))));
  std::vector<double> weights;  // of the keys, for one query and head: the elements of its row come one after another
  return make(q.shape, q.dtype, [&](const Shape& at) {
    std::int64_t b = at[0], t = at[1], h = at[2], queries = longest_queries, keys = longest_keys, first_key = 0;
    if (is_packed) {
      for (b = 0; form.query_starts[std::size_t(b) + 1] <= at[0];) ++b;
      const auto n = static_cast<std::size_t>(b);
      t = at[0] - form.query_starts[n], h = at[1];
      queries = form.query_starts[n + 1] - form.query_starts[n], keys = form.key_starts[n + 1] - form.key_starts[n];
      first_key = form.key_starts[n];
    }
    const auto of_key = [&](const Array& x, std::int64_t s, std::int64_t d) {
      return is_packed ? x({first_key + s, h / group, d}) : x({b, s, h / group, d});
    };
    if (at.back() == 0) {
      weights.clear();
      double top = -INFINITY, total = 0;
      for (std::int64_t s = 0; s < keys; ++s) {
        double score = 0;
        for (std::int64_t d = 0; d < width; ++d) score += (is_packed ? q({at[0], h, d}) : q({b, t, h, d})) * of_key(k, s, d);
        score *= scale;
        if (bias) score += broadcast_at(*bias, {b, h, t, s});
        const std::int64_t own = t + keys - queries;
        bool is_visible = !form.causal || s <= own || (prefix && static_cast<double>(s) < (*prefix)({b}));
        if (form.window > 0) is_visible = is_visible && s > own - form.window;
        if (lengths) is_visible = is_visible && static_cast<double>(s) < (*lengths)({b});
        if (form.padding == Padding::boolean) is_visible = is_visible && (*padding)({b, s}) == 0;
        if (form.padding == Padding::additive) {
          is_visible = is_visible && (*padding)({b, s}) <= 1;  // the call hides those above
          score += (*padding)({b, s});
        }
        weights.push_back(is_visible ? score : -INFINITY);
        top = std::max(top, weights.back());
      }
      for (double& weight : weights) total += weight = weight == -INFINITY ? 0 : std::exp(weight - top);
      for (std::int64_t s = 0; s < keys; ++s) {
        const std::int64_t element = ((b * heads + h) * longest_queries + t) * longest_keys + s;
        const bool is_kept = !is_dropped(seed, 0, static_cast<std::uint64_t>(element), form.dropout);
        double& weight = weights[static_cast<std::size_t>(s)];
        weight = is_kept && total > 0 ? weight / total / (1 - form.dropout) : 0;
      }
    }
    double result = 0;
    for (std::int64_t s = 0; s < keys; ++s) result += weights[static_cast<std::size_t>(s)] * of_key(v, s, at.back());
    return result;
  });
}

Case case_of(const Shapes& of, const Form& form) {
  const bool is_packed = !form.query_starts.empty();
  const std::int64_t rows = is_packed ? static_cast<std::int64_t>(form.query_starts.size()) - 1 : of.q[0];
  const std::int64_t keys = is_packed ? longest(form.key_starts) : of.k[1];
  std::vector<Input> inputs = {value(of.q), value(of.k), value(of.k)};
  if (!form.bias.empty()) inputs.push_back(value(form.bias));
  if (form.padding == Padding::boolean) inputs.push_back(truth({rows, keys}));
  if (form.padding == Padding::additive) {
    inputs.push_back(value({rows, keys}));
    inputs.back().differentiable = false;
  }
  if (form.prefix) inputs.push_back(index({rows}, keys + 2));
  if (form.lengths) inputs.push_back(index({rows}, keys + 2));
  for (std::size_t i = 3; i < inputs.size(); ++i) inputs[i].optional = true;
  const auto call = [=](In in) -> Tensors {
    AttentionParams params{.mask = {.causal = form.causal, .window = form.window}, .scale = form.scale, .dropout = form.dropout};
    params.training = form.dropout > 0;
    std::size_t next = 3;
    if (!form.bias.empty()) params.bias = in[next++];
    if (form.padding != Padding::none) params.mask.padding = in[next++];
    if (form.padding == Padding::additive) params.mask.padding = masked_fill(params.mask.padding, gt(params.mask.padding, 1.0), -INFINITY);
    if (form.prefix) params.mask.prefix = in[next++];
    if (form.lengths) params.mask.key_lengths = in[next++];
    if (is_packed) {
      params.query_starts = Tensor::from(form.query_starts, {rows + 1}, in.device);
      params.key_starts = Tensor::from(form.key_starts, {rows + 1}, in.device);
      params.max_queries = longest(form.query_starts), params.max_keys = longest(form.key_starts);
    }
    if (form.dropout > 0) manual_seed(seed);
    return {scaled_dot_product_attention(in[0], in[1], in[2], params)};
  };
  Case result{inputs, call, [=](Ref in) { return one(attention_of(in, form)); }};
  // A number that is added to all scores of a row has no gradient: what comes is roundings, which 16 bits have no measure for.
  if (!form.bias.empty() && form.bias.back() == 1) result.dtypes = {DType::f64, DType::f32};
  return result;
}

std::vector<std::pair<Shapes, std::vector<Form>>> forms() {
  const Form none, causal{.causal = true}, prefix{.causal = true, .prefix = true}, hidden{.padding = Padding::boolean},
      added{.padding = Padding::additive}, lengths{.lengths = true}, window{.causal = true, .window = 2},
      all{.causal = true, .padding = Padding::additive, .prefix = true, .lengths = true}, drops{.causal = true, .dropout = 0.4};
  return {
      // Small enough to be differentiated element by element.
      {{{1, 1, 1, 2}, {1, 1, 1, 2}}, {none, causal}},
      {{{1, 3, 1, 2}, {1, 3, 1, 2}}, {none, causal, prefix, hidden, added, lengths, window, all, drops, {.scale = 0.3}}},
      {{{1, 3, 1, 2}, {1, 2, 1, 2}}, {none, causal, window}},
      {{{1, 2, 2, 2}, {1, 3, 1, 2}},
       {causal, {.causal = true, .bias = {2, 2, 3}, .dropout = 0.3}, {.bias = {1, 2, 1, 3}, .lengths = true}}},
      {{{2, 2, 1, 2}, {2, 3, 1, 2}}, {{.bias = {2, 3}}, {.bias = {2, 1, 1, 1}}}},
      {{{4, 2, 2}, {3, 1, 2}},
       {{.causal = true, .bias = {2, 1, 3, 2}, .query_starts = {0, 1, 4}, .key_starts = {0, 2, 3}},
        {.query_starts = {0, 1, 4}, .key_starts = {0, 1, 3}}}},
      {{{2, 5, 3, 4}, {2, 5, 3, 4}}, {none, causal, prefix, hidden, added, lengths, window, all, drops, {.scale = 0.3}}},
      {{{2, 3, 2, 4}, {2, 7, 2, 4}}, {none, causal, prefix, window, all, drops}},
      {{{2, 7, 2, 4}, {2, 3, 2, 4}}, {causal, window, all}},  // the first queries see nothing
      {{{2, 5, 6, 3}, {2, 4, 2, 3}}, {none, causal, {.causal = true, .bias = {2, 6, 5, 4}, .lengths = true, .dropout = 0.3}}},
      {{{2, 3, 4, 2}, {2, 5, 2, 2}},
       {{.bias = {2, 4, 3, 5}},
        {.bias = {4, 3, 5}},
        {.bias = {1, 1, 3, 5}},
        {.bias = {2, 1, 1, 5}},
        {.bias = {4, 1, 1}},
        {.causal = true, .bias = {2, 4, 3, 1}},
        {.bias = {1}}}},
      {{{1, 31, 1, 4}, {1, 31, 1, 4}}, {causal, {.causal = true, .window = 9}}},
      {{{1, 33, 2, 32}, {1, 40, 1, 32}}, {none, causal}},
      {{{1025, 1, 1, 2}, {1025, 1, 1, 2}}, {causal}},
      {{{1, 100, 1, 5}, {1, 203, 1, 5}},
       {causal, {.causal = true, .window = 97}, {.causal = true, .bias = {1, 1, 1, 203}, .dropout = 0.2}}},
      {{{1, 64, 1, 64}, {1, 64, 1, 64}}, {none, causal}},
      // One query a sequence: the kernel for decoding, where no gradient is asked for.
      {{{2, 1, 6, 8}, {2, 300, 2, 8}},
       {none, causal, prefix, hidden, added, lengths, {.causal = true, .window = 280}, all, drops, {.bias = {6, 1, 300}, .scale = 0.3}}},
      {{{3, 1, 2, 64}, {3, 700, 1, 64}}, {none, lengths, {.causal = true, .window = 300}}},
      {{{1, 1, 5, 80}, {1, 97, 1, 80}}, {none, added}},
      {{{0, 3, 2, 4}, {0, 3, 2, 4}}, {causal}},
      {{{2, 0, 2, 4}, {2, 3, 2, 4}}, {causal}},
      {{{2, 3, 2, 4}, {2, 0, 2, 4}}, {causal}},
      {{{2, 3, 0, 4}, {2, 3, 0, 4}}, {causal}},
      {{{2, 3, 2, 0}, {2, 3, 2, 0}}, {causal}},
      {{{9, 4, 3}, {11, 2, 3}},
       {{.query_starts = {0, 4, 4, 9}, .key_starts = {0, 3, 5, 11}},
        {.causal = true, .query_starts = {0, 4, 4, 9}, .key_starts = {0, 3, 5, 11}},
        {.causal = true, .window = 2, .query_starts = {0, 4, 4, 9}, .key_starts = {0, 3, 5, 11}},
        {.causal = true,
         .bias = {3, 1, 5, 6},
         .padding = Padding::boolean,
         .prefix = true,
         .lengths = true,
         .dropout = 0.3,
         .query_starts = {0, 4, 4, 9},
         .key_starts = {0, 3, 5, 11}}}},
  };
}

}  // namespace

void add_attention(Rows& rows) {
  const auto f = scaled_dot_product_attention;
  Row row{"scaled_dot_product_attention", {}};
  row.slack = 40;
  row.roundings = 12;  // scores, whose roundings the exponentials multiply, and weights
  row.gradient_roundings = 7;
  for (const auto& [shapes, all] : forms())
    for (const Form& form : all) row.cases.push_back(case_of(shapes, form));
  const Tensor q = sample({2, 3, 4, 5}), k = sample({2, 6, 2, 5}), packed = sample({6, 2, 5});
  const auto starts = [](const Starts& at) { return Tensor::from(at, {static_cast<std::int64_t>(at.size())}); };
  const auto i64 = [](const Shape& shape) { return sample(shape, DType::i64); };
  row.mistakes = {
      {[=] { f(sample({2, 3, 4}), k, k, {}); }, {"(2, 3, 4)", "(B, T, H, D)"}},
      {[=] { f(q, k, sample({2, 6, 2, 4}), {}); }, {"(2, 6, 2, 5)", "(2, 6, 2, 4)"}},
      {[=] { f(q, sample({3, 6, 2, 5}), sample({3, 6, 2, 5}), {}); }, {"(3, 6, 2, 5)"}},
      {[=] { f(q, sample({2, 6, 3, 5}), sample({2, 6, 3, 5}), {}); }, {"(2, 3, 4, 5)", "(2, 6, 3, 5)", "divides"}},
      {[=] { f(i64({2, 3, 4, 5}), i64({2, 6, 2, 5}), i64({2, 6, 2, 5}), {}); }, {"floating", "i64"}},
      {[=] { f(q, k, sample({2, 6, 2, 5}, DType::f64), {}); }, {"f32", "f64"}},
      {[=] { f(q, k, k, {.bias = sample({2, 4, 3, 6}, DType::f64)}); }, {"bias", "f64"}},
      {[=] { f(q, k, k, {.bias = sample({3, 4, 3, 6})}); }, {"(2, 4, 3, 6)", "(3, 4, 3, 6)"}},
      {[=] { f(q, k, k, {.bias = sample({1, 2, 4, 3, 6})}); }, {"(1, 2, 4, 3, 6)"}},
      {[=] { f(q, k, k, {.dropout = 1}); }, {"[0, 1)", "1"}},
      {[=] { f(q, k, k, {.mask = {.padding = sample({2, 5})}}); }, {"(2, 6)", "(2, 5)"}},
      {[=] { f(q, k, k, {.mask = {.key_lengths = i64({3})}}); }, {"key_lengths (2,)", "(3,)"}},
      {[=] { f(q, k, k, {.mask = {.key_lengths = sample({2})}}); }, {"i64", "f32"}},
      {[=] { f(q, k, k, {.mask = {.prefix = i64({2})}}); }, {"causal = true", "prefix"}},
      {[=] { f(q, k, k, {.mask = {.causal = true, .prefix = i64({3})}}); }, {"prefix (2,)", "(3,)"}},
      {[=] { f(q, k, k, {.mask = {.causal = true, .padding = sample({3, 6}, DType::boolean)}}); }, {"(2, 6)", "(3, 6)"}},
      {[=] { f(q, k, k, {.mask = {.window = 2}}); }, {"window 2", "causal = true"}},
      {[=] { f(q, k, k, {.mask = {.causal = true, .window = -1}}); }, {"window -1"}},
      {[=] { f(q, k, k, {.mask = {.causal = true, .prefix = i64({2}), .window = 2}}); }, {"window 2", "without a prefix"}},
      {[=] { f(packed, packed, packed, {.query_starts = starts({0, 6}), .max_queries = 6}); }, {"key_starts"}},
      {[=] {
         f(packed, packed, packed, {.query_starts = starts({0, 6}), .key_starts = starts({0, 3, 6}), .max_queries = 6, .max_keys = 6});
       },
       {"(2,)", "(3,)"}},
      {[=] { f(q, k, k, {.query_starts = starts({0, 6}), .key_starts = starts({0, 6}), .max_queries = 6, .max_keys = 6}); },
       {"(total, H, D)", "(2, 3, 4, 5)"}},
      {[=] { f(packed, packed, packed, {.query_starts = starts({0, 6}), .key_starts = starts({0, 6}), .max_queries = 6, .max_keys = 5}); },
       {"key_starts", "by 5", "(0, 6)"}},
      {[=] { f(packed, packed, packed, {.query_starts = starts({0, 5}), .key_starts = starts({0, 6}), .max_queries = 6, .max_keys = 6}); },
       {"query_starts", "0 to 6", "(0, 5)"}}};
  rows.push_back(row);
  rows.push_back(plain(row));
}

}  // namespace tern::op_cases
