// Rows of ops/normalize.h, ops/attention.h and ops/attention.h. Note [The table] in op_cases.h. Both ways of an op share their
// cases.
#include <cmath>
#include <limits>
#include <tuple>

#include "dropout_reference.h"
#include "op_cases.h"
#include "ops/attention.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern::op_cases {

using namespace reference;

namespace {

std::vector<double> softmax_of(std::vector<double> s) {
  double top = -std::numeric_limits<double>::infinity(), total = 0;
  for (double v : s) top = std::max(top, v);
  for (double& v : s) total += v = std::exp(v - top);
  for (double& v : s) v /= total;
  return s;
}

void add_softmax(Rows& rows) {
  const std::vector<std::pair<Shape, int>> forms = {
      {{0}, 0},       {{1}, 0},    {{31}, -1},  {{33}, 0},     {{1025}, 0},    {{}, -1},        {{3, 5}, 0},     {{3, 5}, 1},
      {{2, 3, 4}, 1}, {{0, 3}, 1}, {{3, 0}, 1}, {{33, 31}, 0}, {{3, 1025}, 1}, {{40, 1025}, 1}, {{1025, 40}, 0}, {{20, 50257}, 1}};
  for (const bool logarithm : {false, true}) {
    const auto f = logarithm ? log_softmax : softmax;
    Row row{logarithm ? "log_softmax" : "softmax", {}};
    row.slack = 5;
    for (const auto& [shape, dim] : forms)
      row.cases.push_back({{value(shape)},
                           [f, dim = dim](In in) -> Tensors { return {f(in[0], dim)}; },
                           [logarithm, dim = dim](Ref in) {
                             if (in[0].shape.empty()) return one(Array{{}, in.dtype, {logarithm ? 0.0 : 1.0}});
                             return one(along(in[0], dim, [=](std::vector<double> s) {
                               s = softmax_of(s);
                               if (logarithm)
                                 for (double& v : s) v = std::log(v);
                               return s;
                             }));
                           }});
    row.mistakes = {{[=] { f(sample({2, 3}), 2); }, {"2"}},
                    {[=] { f(sample({3}, DType::i64), 0); }, {"floating", "i64"}},
                    {[=] { f(sample({}), 1); }, {"1"}}};
    rows.push_back(row);
  }
}

/// Which masks a case has. Padding is bool, or numbers of which those above 1 stand for a hidden key.
struct Masks {
  bool causal = false, prefix = false;
  enum Padding { none, boolean, additive } padding = none;
  std::int64_t window = 0;
  bool lengths = false;
};

/// attention_softmax as its docstring says; inputs: scores, then the padding, and the prefix or the key_lengths that there are.
Array attention_softmax_of(Ref in, const Masks& masks) {
  const Array& x = in[0];
  const std::int64_t queries = x.size(-2), keys = x.size(-1);
  const int dims = x.shape.size();
  Array y = x;
  if (x.values.empty()) return y;
  Shape starts = x.shape;
  starts[dims - 1] = 1;
  each(starts, [&](const Shape& start) {
    const std::int64_t b = start[0], t = start[dims - 2];
    std::vector<double> scores;
    for (std::int64_t s = 0; s < keys; ++s) {
      Shape at = start;
      at[dims - 1] = s;
      double score = x(at);
      const bool opened = masks.prefix && s < static_cast<std::int64_t>(in.inputs.back()({b}));
      if (masks.causal && s > t + keys - queries && !opened) score = -INFINITY;
      if (masks.window > 0 && s <= t + keys - queries - masks.window) score = -INFINITY;
      if (masks.lengths && s >= static_cast<std::int64_t>(in.inputs.back()({b}))) score = -INFINITY;
      if (masks.padding != Masks::none) {
        const double padding = in[1]({b, s});
        score += masks.padding == Masks::boolean ? (padding != 0 ? -INFINITY : 0) : padding > 1 ? -INFINITY : padding;
      }
      scores.push_back(score);
    }
    const bool sees_nothing = std::all_of(scores.begin(), scores.end(), [](double v) { return v == -INFINITY; });
    if (sees_nothing) scores.assign(scores.size(), 0);
    else scores = softmax_of(scores);
    for (std::int64_t s = 0; s < keys; ++s) {
      Shape at = start;
      at[dims - 1] = s;
      y(at) = scores[static_cast<std::size_t>(s)];
    }
  });
  return y;
}

void add_attention_softmax(Rows& rows) {
  const Masks causal{true}, prefix{true, true}, boolean{false, false, Masks::boolean}, additive{false, false, Masks::additive},
      both{true, false, Masks::boolean}, all{true, true, Masks::additive}, window{true, false, Masks::none, 2},
      lengths{true, false, Masks::additive, 3, true};
  const std::vector<std::pair<Shape, std::vector<Masks>>> forms = {
      {{3, 5}, {{}, causal}},
      {{5, 3}, {causal}},  // the first queries see nothing
      {{1, 1}, {{}, causal}},
      {{0, 3}, {{}, causal}},
      {{3, 0}, {{}, causal}},
      {{2, 3, 4}, {{}, causal, prefix, boolean, additive, both, all, window, lengths}},
      {{2, 4, 3}, {prefix, all, window, lengths}},
      {{1, 2, 3, 4}, {causal, all}},
      {{2, 2, 2, 3}, {prefix, both, all}},
      {{0, 2, 3}, {all}},
      {{2, 0, 3}, {all}},
      {{2, 3, 0}, {all}},
      {{2, 3, 31}, {{}, all}},
      {{2, 33, 33}, {causal, all}},
      {{3, 2, 1025}, {{}, boolean, additive, all}},
      {{2, 1025, 5}, {{}, all}},
      {{1, 1, 16400}, {{}, all}},
      {{3, 3, 1}, {causal, all}},
      {{3, 5, 64}, {both, all}},
      {{3, 2, 40, 40}, {{}, all, window, lengths}},
      {{2, 3, 7, 520}, {both, all}},
      {{3, 2, 129, 65}, {all, lengths}},
      {{3, 1, 2, 3000}, {{}, all, lengths}},
      {{2, 2, 20001}, {{}, all}},
      // Rows that a GPU's block, cluster and nothing hold, and more rows than its grid.
      {{2, 1, 2, 65536}, {{}, all}},
      {{3, 1, 2, 100000}, {{}, all}},
      {{2, 1, 9, 16385}, {{}, all}},
      {{70000, 1, 2, 36}, {both}},
      {{1, 70001, 5}, {{}}},
  };
  for (const bool fused : {false, true}) {
    const auto f = attention_softmax;
    Row row{"attention_softmax", {}};
    row.slack = 5;
    for (const auto& [shape, all_masks] : forms)
      for (const Masks& masks : all_masks) {
        std::vector<Input> inputs = {value(shape)};
        const Shape padded = {shape[0], shape[shape.size() - 1]};
        if (masks.padding == Masks::boolean) inputs.push_back(truth(padded));
        if (masks.padding == Masks::additive) {
          inputs.push_back(value(padded));
          inputs.back().differentiable = false;
        }
        if (masks.prefix || masks.lengths) inputs.push_back(index({shape[0]}, shape[shape.size() - 1] + 2));
        for (std::size_t i = 1; i < inputs.size(); ++i) inputs[i].optional = true;
        row.cases.push_back({inputs,
                             [=](In in) -> Tensors {
                               AttentionMask mask{.causal = masks.causal, .window = masks.window};
                               if (masks.padding == Masks::boolean) mask.padding = in[1];
                               if (masks.padding == Masks::additive)  // by -inf, and by a number that is as good
                                 mask.padding = masked_fill(masked_fill(in[1], gt(in[1], 1.0), -INFINITY), gt(in[1], 1.5), -3e4);
                               if (masks.prefix) mask.prefix = in.inputs.back();
                               if (masks.lengths) mask.key_lengths = in.inputs.back();
                               return {f(in[0], mask)};
                             },
                             [=](Ref in) { return one(attention_softmax_of(in, masks)); }});
      }
    const Tensor scores = sample({2, 3, 4});
    row.mistakes = {{[=] { f(sample({3}), {}); }, {"(3,)", "2 dimensions"}},
                    {[=] { f(sample({3, 4}), {.padding = sample({3, 4})}); }, {"(3, 4)", "3 dimensions"}},
                    {[=] { f(sample({3, 4}, DType::i64), {}); }, {"floating", "i64"}},
                    {[=] { f(scores, {.padding = sample({2, 3})}); }, {"padding (2, 4)", "(2, 3)"}},
                    {[=] { f(scores, {.padding = sample({2, 4}, DType::i64)}); }, {"bool or floats", "i64"}},
                    {[=] { f(scores, {.causal = true, .prefix = sample({3}, DType::i64)}); }, {"(2,)", "(3,)"}},
                    {[=] { f(scores, {.causal = true, .prefix = sample({2})}); }, {"i64", "f32"}},
                    {[=] { f(scores, {.prefix = sample({2}, DType::i64)}); }, {"causal = true"}},
                    {[=] { f(scores, {.key_lengths = sample({3}, DType::i64)}); }, {"key_lengths (2,)", "(3,)"}},
                    {[=] { f(scores, {.window = 3}); }, {"window 3", "causal = true"}}};
    rows.push_back(fused ? row : plain(row));
  }
}

/// The rows of x (last dimension), normalized.
Array normalized(A x, bool centered, double eps) {
  return along(x, -1, [=](std::vector<double> s) {
    const double mean = centered ? sum_of(s) / static_cast<double>(s.size()) : 0;
    double square = 0;
    for (double v : s) square += (v - mean) * (v - mean);
    for (double& v : s) v = (v - mean) / std::sqrt(square / static_cast<double>(s.size()) + eps);
    return s;
  });
}

constexpr double eps = 1e-3;
/// Without 16 bits where a composition or a sum rounds each of very many rows: in a parameter's gradient these roundings add up.
void leave_out_16_bits(Case& op) {
  if (numel(op.inputs[0].shape) > 64 * op.inputs[0].shape.back()) op.dtypes = {DType::f64, DType::f32};
}
const std::vector<Shape> norm_shapes = {{0, 3}, {1, 2}, {31}, {33}, {3, 1025}, {1025, 8}, {3, 5}, {2, 2, 4}, {1, 1}, {7, 33}, {2, 0}};
/// With all parameters: rows of whole vectors and of others, blocks of rows, rows that a GPU's warp, block and cluster hold, rows that none
/// holds, and many rows.
const std::vector<Shape> more_norm_shapes = {{3, 40},     {3, 128},    {3, 513},   {65, 255},   {3, 768},    {260, 256},
                                             {3, 1600},   {33, 2049},  {3, 4097},  {3, 5000},   {2100, 17},  {5, 8192},
                                             {133, 8192}, {3, 16385},  {5, 20480}, {70, 12290}, {5, 65536},  {70, 50257},
                                             {5, 100000}, {3, 300000}, {70000, 7}, {20000, 64}, {3000, 1024}};

double times(double a, double b) { return a * b; }
double plus(double a, double b) { return a + b; }

void add_norms(Rows& rows) {
  for (const bool centered : {true, false})
    for (const bool fused : {false, true}) {
      Row row{centered ? "layer_norm" : "rms_norm", {}};
      row.slack = 20;
      if (!fused) row.gradient_roundings = 9;  // of the normalized rows, which it keeps
      const auto f = [=](const Tensor& x, const Tensor& gamma, const Tensor& beta, double e) {
        return centered ? layer_norm(x, gamma, beta, e) : rms_norm(x, gamma, e);
      };
      const auto add = [&](const Shape& shape, bool is_whole) {
        const std::vector<Input> with = centered ? std::vector{value(shape), value({shape.back()}), value({shape.back()})}
                                                 : std::vector{value(shape), value({shape.back()})};
        for (std::size_t count = is_whole ? with.size() : 1; count <= with.size(); ++count) {
          std::vector<Input> inputs(with.begin(), with.begin() + static_cast<std::ptrdiff_t>(count));
          row.cases.push_back(
              {inputs, [=](In in) -> Tensors { return {f(in[0], count > 1 ? in[1] : Tensor(), count > 2 ? in[2] : Tensor(), eps)}; },
               [=](Ref in) {
                 Array y = normalized(in[0], centered, eps);
                 if (count > 1) y = zip(y, in[1], in.dtype, times);
                 if (count > 2) y = zip(y, in[2], in.dtype, plus);
                 return one(y);
               }});
          if (is_whole && !fused) leave_out_16_bits(row.cases.back());
        }
      };
      for (const Shape& shape : norm_shapes) add(shape, false);
      for (const Shape& shape : more_norm_shapes) add(shape, true);
      row.mistakes = {{[=] { f(sample({2, 3}), sample({2}), {}, eps); }, {"(2, 3)", "(2,)"}},
                      {[=] { f(sample({2, 3}), sample({1, 3}), {}, eps); }, {"(2, 3)", "(1, 3)"}},
                      {[=] { f(sample({}), {}, {}, eps); }, {"()"}},
                      {[=] { f(sample({3}, DType::i64), {}, {}, eps); }, {"floating", "i64"}},
                      {[=] { f(sample({3}), sample({3}, DType::f64), {}, eps); }, {"f32", "f64"}}};
      if (centered) {
        row.mistakes.push_back({[=] { f(sample({2, 3}), sample({3}), sample({2}), eps); }, {"(2, 3)", "(2,)"}});
        row.mistakes.push_back({[=] { f(sample({3}), {}, sample({3}, DType::f16), eps); }, {"f32", "f16"}});
      }
      rows.push_back(fused ? row : plain(row));
    }
}

/// Inputs of the residual norms after x and residual: the bias of the branch, gamma, beta. With gamma alone the sum is not used, so that no
/// gradient comes from it; dropped: all, and a dropout.
enum class Parameters { none, bias, gamma, all, dropped };
constexpr std::uint64_t seed = 77;
constexpr double dropout = 0.25;

void add_residual_norms(Rows& rows) {
  for (const bool centered : {true, false})
    for (const bool fused : {false, true}) {
      Row row{centered ? "residual_layer_norm" : "residual_rms_norm", {}};
      row.slack = 20;
      row.roundings = 6;  // the sum, whose rounding the norm divides by the deviation
      row.gradient_roundings = 9;
      const auto f = [=](const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, const BranchOptions& branch) {
        const ResidualNorm result =
            centered ? residual_layer_norm(x, residual, gamma, beta, eps, branch) : residual_rms_norm(x, residual, gamma, eps, branch);
        return Tensors{result.sum, result.y};
      };
      const auto add = [&](const Shape& shape, Parameters with) {
        const bool drops = with == Parameters::dropped, gamma = with >= Parameters::gamma, sum_is_used = with != Parameters::gamma;
        const bool bias = gamma ? sum_is_used : with == Parameters::bias, beta = centered && gamma && bias;
        std::vector<Input> inputs = {value(shape), value(shape)};
        for (int i = 0; i < bias + gamma + beta; ++i) inputs.push_back(value({shape.back()}));
        for (std::size_t i = 2; i < inputs.size(); ++i) inputs[i].optional = true;
        const std::size_t gamma_at = bias ? 3 : 2;
        row.cases.push_back({inputs,
                             [=](In in) -> Tensors {
                               BranchOptions branch;
                               if (bias) branch.bias = in[2];
                               if (drops) branch.dropout = dropout;
                               if (drops) manual_seed(seed);
                               const Tensors y =
                                   f(in[0], in[1], gamma ? in[gamma_at] : Tensor(), beta ? in[gamma_at + 1] : Tensor(), branch);
                               return sum_is_used ? y : Tensors{y[1]};
                             },
                             [=](Ref in) -> Arrays {
                               Array branch = bias ? zip(in[0], in[2], in.dtype, plus) : in[0];
                               for (std::size_t i = 0; drops && i < branch.values.size(); ++i)
                                 branch.values[i] = is_dropped(seed, 0, i, dropout) ? 0 : branch.values[i] / (1 - dropout);
                               const Array sum = zip(branch, in[1], in.dtype, plus);
                               Array y = normalized(sum, centered, eps);
                               if (gamma) y = zip(y, in[gamma_at], in.dtype, times);
                               if (beta) y = zip(y, in[gamma_at + 1], in.dtype, plus);
                               return sum_is_used ? Arrays{sum, y} : Arrays{y};
                             }});
        if (drops || !sum_is_used) leave_out_16_bits(row.cases.back());
      };
      for (const Shape& shape : norm_shapes)
        for (const Parameters with : {Parameters::none, Parameters::bias, Parameters::gamma, Parameters::all, Parameters::dropped})
          add(shape, with);
      for (const Shape& shape : more_norm_shapes) add(shape, Parameters::dropped);
      const Tensor x = sample({2, 3});
      const auto with = [](const Tensor& bias, double p) { return BranchOptions{.bias = bias, .dropout = p}; };
      row.mistakes = {{[=] { f(x, sample({3}), {}, {}, {}); }, {"(2, 3)", "(3,)"}},
                      {[=] { f(x, sample({2, 3}, DType::f64), {}, {}, {}); }, {"f32", "f64"}},
                      {[=] { f(x, x, sample({2}), {}, {}); }, {"(2, 3)", "(2,)"}},
                      {[=] { f(x, x, {}, {}, with(sample({2}), 0)); }, {"(2, 3)", "(2,)"}},
                      {[=] { f(x, x, {}, {}, with({}, 1)); }, {"[0, 1)", "1"}},
                      {[=] { f(x, x, {}, {}, with({}, NAN)); }, {"nan"}},
                      {[=] { f(sample({}), sample({}), {}, {}, {}); }, {"()"}},
                      {[=] { f(sample({3}, DType::i64), sample({3}, DType::i64), {}, {}, {}); }, {"floating", "i64"}}};
      rows.push_back(fused ? row : plain(row));
    }
}

void add_rope(Rows& rows) {
  Row table{"rope_table", {}};
  table.differentiable = false;
  for (const auto& [length, width, base] : {std::tuple{0, 4, 1e4}, {1, 2, 1e4}, {5, 0, 1e4}, {33, 8, 10.0}, {31, 66, 1e4}})
    table.cases.push_back({{},
                           [=](In in) -> Tensors { return {rope_table(length, width, base, in.device)}; },
                           [=](Ref) {
                             return one(make({length, width / 2, 2}, DType::f32, [=](const Shape& i) {
                               const double angle = double(i[0]) * std::pow(base, -2.0 * double(i[1]) / width);
                               return i[2] == 0 ? std::cos(angle) : std::sin(angle);
                             }));
                           },
                           {DType::f32}});
  // Llama 3.1's scaling, and that of all pairs. Frequencies of 64 elements at base 5e5 are fast, slow and between the two.
  for (const RopeScaling& scaling : {RopeScaling{.factor = 8, .original_length = 8192}, RopeScaling{.factor = 4}})
    table.cases.push_back({{},
                           [=](In in) -> Tensors { return {rope_table(300, 64, 5e5, in.device, scaling)}; },
                           [=](Ref) {
                             return one(make({300, 32, 2}, DType::f32, [=](const Shape& i) {
                               const double wave = 2 * M_PI * std::pow(5e5, 2.0 * double(i[1]) / 64);  // in positions
                               double speed = 1;
                               if (scaling.original_length == 0) speed = 1 / scaling.factor;
                               else if (wave > 8192 / 1.0) speed = 1 / scaling.factor;
                               else if (wave >= 8192 / 4.0) {
                                 const double smooth = (8192 / wave - 1) / (4 - 1);
                                 speed = (1 - smooth) / scaling.factor + smooth;
                               }
                               const double angle = double(i[0]) * speed * 2 * M_PI / wave;
                               return i[2] == 0 ? std::cos(angle) : std::sin(angle);
                             }));
                           },
                           {DType::f32}});
  const auto scaled = [](const RopeScaling& scaling) { rope_table(3, 4, 1e4, cpu, scaling); };
  table.mistakes = {{[] { rope_table(3, 5); }, {"5"}},
                    {[] { rope_table(-1, 4); }, {"-1"}},
                    {[] { rope_table(3, 4, 0); }, {"0"}},
                    {[=] { scaled({.factor = 0}); }, {"factor > 0", "0"}},
                    {[=] { scaled({.original_length = -7}); }, {"-7"}},
                    {[=] { scaled({.low_turns = 6, .high_turns = 5}); }, {"6", "5"}}};
  rows.push_back(table);

  Row row{"rope", {}};
  row.slack = 4;
  // Element i of a head of D with the other of its pair: that one's place, the pair's number and the sign of the other's sine.
  struct Partner {
    std::int64_t other, pair;
    double sign;
  };
  const auto partner_of = [](std::int64_t i, std::int64_t D, RopePairs pairs) -> Partner {
    if (pairs == RopePairs::adjacent) return {i ^ 1, i / 2, i % 2 == 0 ? -1.0 : 1.0};
    return {(i + D / 2) % D, i % (D / 2), i < D / 2 ? -1.0 : 1.0};
  };
  const auto turned = [=](Ref in, const Shape& i, std::int64_t t, RopePairs pairs) {
    const Partner partner = partner_of(i[3], in[0].shape[3], pairs);
    Shape other = i;
    other[3] = partner.other;
    return in[0](i) * in[1]({t, partner.pair, 0}) + partner.sign * in[0](other) * in[1]({t, partner.pair, 1});
  };
  constexpr RopePairs both[] = {RopePairs::adjacent, RopePairs::halves};
  // The table is any one: cosines and sines that are not of one angle show which is which.
  for (const auto& [shape, positions] : std::vector<std::pair<Shape, std::int64_t>>{{{0, 1, 2, 2}, 2},
                                                                                    {{1, 1, 1, 2}, 1},
                                                                                    {{2, 1, 3, 4}, 3},
                                                                                    {{1, 2, 2, 6}, 5},
                                                                                    {{2, 3, 33, 8}, 40},
                                                                                    {{1, 1, 3, 1026}, 3},
                                                                                    {{1, 1, 1025, 2}, 1025},
                                                                                    {{2, 2, 0, 4}, 1},
                                                                                    {{2, 1, 31, 2}, 31},
                                                                                    {{1, 2, 3, 0}, 3}}) {
    Input angles = value({positions, shape[3] / 2, 2});
    angles.differentiable = false;
    for (const RopePairs pairs : both)
      row.cases.push_back(
          {{value(shape), angles},
           [=](In in) -> Tensors { return {rope(in[0], in[1], {}, pairs)}; },
           [=](Ref in) { return one(make(in[0].shape, in.dtype, [&](const Shape& i) { return turned(in, i, i[2], pairs); })); }});
  }
  // Some heads of a projection (B, T, H, D), as a view (B, H, T, D).
  for (const auto& [shape, heads] : std::vector<std::pair<Shape, std::int64_t>>{
           {{1, 2, 3, 2}, 2}, {{2, 33, 3, 8}, 2}, {{2, 5, 3, 6}, 0}, {{1, 3, 2, 16}, 2}, {{3, 2, 0, 4}, 0}}) {
    Input angles = value({shape[1], shape[3] / 2, 2});
    angles.differentiable = false;
    for (const RopePairs pairs : both)
      row.cases.push_back(
          {{value(shape), angles},
           [=, heads = heads](In in) -> Tensors { return {transpose(rope(transpose(in[0], 1, 2), in[1], heads, pairs), 1, 2)}; },
           [=, heads = heads](Ref in) {
             return one(make(in[0].shape, in.dtype, [&](const Shape& i) { return i[2] >= heads ? in[0](i) : turned(in, i, i[1], pairs); }));
           }});
  }
  const Tensor x = sample({1, 2, 3, 4});
  row.mistakes = {{[=] { rope(x, sample({3, 2, 2}), 3); }, {"2 heads", "3"}},
                  {[=] { rope(x, sample({2, 2, 2})); }, {"(1, 2, 3, 4)", "(2, 2, 2)"}},
                  {[=] { rope(x, sample({3, 3, 2})); }, {"(3, 3, 2)"}},
                  {[] { rope(sample({1, 2, 3, 5}), sample({3, 2, 2})); }, {"(1, 2, 3, 5)"}},
                  {[] { rope(sample({2, 3, 4}), sample({3, 2, 2})); }, {"(2, 3, 4)"}},
                  {[=] { rope(sample({1, 2, 3, 4}, DType::i64), sample({3, 2, 2})); }, {"floating", "i64"}}};
  rows.push_back(row);
}

using Groups = std::vector<std::pair<Shape, std::int64_t>>;  ///< shapes of x (B, C, ...), and numbers of groups of channels

/// A norm of groups of channels, with and without its parameters by channel.
template <class F>
Row norm_of_groups(const char* name, const Groups& all, F norm) {
  Row row{name, {}};
  row.slack = 20;
  for (const auto& [shape, groups] : all)
    for (const int parameters : {0, 1, 2}) {
      std::vector<Input> inputs = {value(shape)};
      for (int i = 0; i < parameters; ++i) inputs.push_back(value({shape[1]}));
      row.cases.push_back({inputs,
                           [=, groups = groups](In in) -> Tensors {
                             return {norm(in[0], groups, parameters > 0 ? in[1] : Tensor(), parameters > 1 ? in[2] : Tensor())};
                           },
                           [=, groups = groups](Ref in) {
                             Shape by_channel = Shape::filled(in[0].shape.size(), 1);
                             by_channel[1] = in[0].size(1);
                             const std::int64_t rows_of_groups = in[0].size(0) * groups;
                             const Shape by_group = {rows_of_groups, rows_of_groups == 0 ? 0 : numel(in[0].shape) / rows_of_groups};
                             Array y = reshaped(normalized(reshaped(in[0], by_group), true, eps), in[0].shape);
                             if (parameters > 0) y = zip(y, reshaped(in[1], by_channel), in.dtype, times);
                             if (parameters > 1) y = zip(y, reshaped(in[2], by_channel), in.dtype, plus);
                             return one(y);
                           }});
    }
  return row;
}

void add_group_norms(Rows& rows) {
  Row row = norm_of_groups("group_norm",
                           {{{0, 4, 3}, 2},
                            {{2, 4, 0}, 2},
                            {{3, 1}, 1},
                            {{2, 6}, 2},
                            {{2, 6, 5}, 3},
                            {{2, 4, 3, 2}, 1},
                            {{2, 3, 7}, 3},
                            {{1, 2, 2, 1, 3}, 2},
                            {{31, 4, 2}, 2},
                            {{1, 33, 2}, 11},
                            {{1, 2, 1025}, 2}},
                           [](const Tensor& x, std::int64_t groups, const Tensor& gamma, const Tensor& beta) {
                             return group_norm(x, groups, gamma, beta, eps);
                           });
  const Tensor given = sample({2, 6, 5});
  row.mistakes = {{[=] { group_norm(given, 4, {}, {}); }, {"(2, 6, 5)", "4"}},
                  {[=] { group_norm(given, 0, {}, {}); }, {"(2, 6, 5)", "0"}},
                  {[] { group_norm(sample({6}), 2, {}, {}); }, {"(6,)"}},
                  {[=] { group_norm(given, 2, sample({5}), {}); }, {"(5,)"}},
                  {[=] { group_norm(given, 2, {}, sample({6, 1})); }, {"(6, 1)"}},
                  {[=] { group_norm(given, 2, sample({6}, DType::f64), {}); }, {"f32", "f64"}},
                  {[] { group_norm(sample({2, 6}, DType::i64), 2, {}, {}); }, {"floating", "i64"}}};
  rows.push_back(row);

  row = norm_of_groups(
      "instance_norm", {{{0, 4, 3}, 4}, {{2, 4, 0}, 4}, {{2, 3, 1}, 3}, {{31, 2, 33}, 2}, {{1, 5, 2, 1, 3}, 5}, {{2, 1, 1025}, 1}},
      [](const Tensor& x, std::int64_t, const Tensor& gamma, const Tensor& beta) { return instance_norm(x, gamma, beta, eps); });
  row.mistakes = {{[] { instance_norm(sample({2, 6})); }, {"(2, 6)"}},
                  {[] { instance_norm(sample({2, 0, 3})); }, {"(2, 0, 3)"}},
                  {[=] { instance_norm(given, sample({5})); }, {"(5,)"}},
                  {[=] { instance_norm(given, {}, {}, 0); }, {"eps > 0"}},
                  {[] { instance_norm(sample({2, 6, 3}, DType::i64)); }, {"floating", "i64"}}};
  rows.push_back(row);
}

}  // namespace

void add_normalize(Rows& rows) {
  add_rope(rows);
  add_softmax(rows);
  add_attention_softmax(rows);
  add_norms(rows);
  add_group_norms(rows);
  add_residual_norms(rows);
}

}  // namespace tern::op_cases
