// Rows of ops/matmul.h and ops/loss.h. Note [The table] in op_cases.h.
#include <cmath>
#include <limits>

#include "op_cases.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/view.h"

namespace tern::op_cases {

using namespace reference;

namespace {

/// For long sums of what was rounded before, in which the roundings of 16 bits add up.
const std::vector<DType> wide = {DType::f64, DType::f32};

Array product(A a_, A b_) {
  Array a = a_, b = b_;
  if (a.shape.size() == 1) a.shape.insert(0, 1);
  if (b.shape.size() == 1) b.shape.push_back(1);
  Shape batch = joint_shape(Shape(a.shape.begin(), a.shape.end() - 2), Shape(b.shape.begin(), b.shape.end() - 2)), shape = batch;
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  // The first element of a matrix, whose batch dimensions broadcast.
  const auto matrix = [](A x, const Shape& index) {
    const int lead = index.size() - 2 - (x.shape.size() - 2);
    std::int64_t at = 0;
    for (int i = 0; i < x.shape.size() - 2; ++i) at = at * x.shape[i] + (x.shape[i] == 1 ? 0 : index[lead + i]);
    return x.values.data() + at * x.size(-2) * x.size(-1);
  };
  const std::int64_t depth = a.size(-1), columns = b.size(-1);
  Array c = make(shape, a.dtype, [&](const Shape& i) {
    const double *row = matrix(a, i) + i[i.size() - 2] * depth, *column = matrix(b, i) + i.back();
    double total = 0;
    for (std::int64_t k = 0; k < depth; ++k) total += row[k] * column[k * columns];
    return total;
  });
  if (b_.shape.size() == 1) c.shape.erase(c.shape.size() - 1);
  if (a_.shape.size() == 1) c.shape.erase(c.shape.size() - (b_.shape.size() == 1 ? 1 : 2));
  return c;
}

void add_matmul(Rows& rows) {
  Row row{"matmul", {}};
  row.slack = 40;
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{{{1, 1}, {1, 1}},
                                                                 {{31, 33}, {33, 31}},
                                                                 {{3, 1025}, {1025, 2}},
                                                                 {{33, 2}, {2, 1025}},
                                                                 {{3}, {3}},
                                                                 {{3}, {3, 2}},
                                                                 {{2, 3}, {3}},
                                                                 {{2, 3}, {3, 4}},
                                                                 {{2, 2, 3}, {3, 2}},
                                                                 {{2, 2, 3}, {3}},
                                                                 {{3}, {2, 3, 2}},
                                                                 {{2, 2, 3}, {2, 3, 2}},
                                                                 {{2, 3}, {2, 3, 2}},
                                                                 {{2, 1, 2, 3}, {3, 3, 1}},
                                                                 {{1, 2, 3}, {4, 3, 1}},
                                                                 {{2, 1, 1, 2}, {1, 3, 2, 2}},
                                                                 {{0, 3}, {3, 2}},
                                                                 {{2, 0}, {0, 3}},
                                                                 {{2, 3}, {3, 0}},
                                                                 {{0, 2, 3}, {3, 2}},
                                                                 {{2, 2, 0}, {0, 3}},
                                                                 {{0, 2, 3}, {0, 3, 2}},
                                                                 {{1025}, {1025}},
                                                                 {{4, 17, 5}, {4, 5, 19}},
                                                                 {{3, 40, 32}, {3, 32, 40}},
                                                                 {{65, 300}, {300, 129}},
                                                                 {{13, 1025}, {1025, 90}},
                                                                 {{300, 65}, {65, 17}},
                                                                 {{8, 200}, {200, 400}},
                                                                 {{450, 200}, {200, 20}},
                                                                 {{257, 40}, {40, 129}},
                                                                 {{128, 256}, {256, 64}},
                                                                 {{1, 33}, {33, 65}},
                                                                 {{65, 33}, {33, 1}},
                                                                 {{5, 1}, {1, 7}},
                                                                 {{3, 4, 17, 8}, {3, 1, 8, 17}},
                                                                 {{3, 4, 17, 8}, {1, 4, 8, 17}},
                                                                 {{640, 300}, {300, 256}},
                                                                 {{70000, 2, 3}, {70000, 3, 2}}})
    row.cases.push_back({{value(a), value(b)},
                         [](In in) -> Tensors { return {matmul(in[0], in[1])}; },
                         [](Ref in) { return one(product(in[0], in[1])); },
                         a.size() == 4 && a[1] == 4 ? wide : std::vector<DType>{}});
  // Scores of heads that lie in a projection of queries, keys and values, (B, T, 3, H, D).
  for (const Shape& shape : {Shape{1, 2, 3, 2, 2}, Shape{3, 17, 3, 4, 8}, Shape{2, 40, 3, 2, 32}})
    row.cases.push_back(
        {{value(shape)},
         [](In in) -> Tensors { return {matmul(permute(select(in[0], 2, 0), {0, 2, 1, 3}), permute(select(in[0], 2, 1), {0, 2, 3, 1}))}; },
         [](Ref in) {
           const auto part = [&](std::int64_t i, const Dims& order) {
             const Array all = sliced(in[0], 2, i, 1);
             return permuted(reshaped(all, without(all.shape, 2)), order);
           };
           return one(product(part(0, {0, 2, 1, 3}), part(1, {0, 2, 3, 1})));
         }});
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{
           {{2, 3}, {3, 4}}, {{3}, {2, 3, 2}}, {{2, 2, 3}, {3}}, {{2, 2, 3}, {3, 2}}, {{2, 1, 3}, {2, 3, 2}}, {{2, 0}, {0, 3}}})
    row.cases.push_back({{value(a), value(b)},
                         [](In in) -> Tensors { return {matmul(in[0], in[1], -0.25)}; },
                         [](Ref in) { return one(map(product(in[0], in[1]), in.dtype, [](double x) { return -0.25 * x; })); }});
  row.mistakes = {{[] { matmul(sample({4, 8}), sample({7, 3})); }, {"(4, 8) x (7, 3)"}},
                  {[] { matmul(sample({2, 4, 8}), sample({3, 8, 3})); }, {"(2,)", "(3,)"}},
                  {[] { matmul(sample({3}), sample({4})); }, {"(3,) x (4,)"}},
                  {[] { matmul(sample({2, 3}), sample({2})); }, {"(2, 3) x (2,)"}},
                  {[] { matmul(sample({}), sample({2})); }, {"() x (2,)"}},
                  {[] { matmul(sample({2, 2, 3}), sample({2, 3})); }, {"(2, 2, 3) x (2, 3)"}},
                  {[] { matmul(sample({2, 2}, DType::boolean), sample({2, 2}, DType::boolean)); }, {"floating", "bool"}},
                  {[] { matmul(sample({2, 2}, DType::i64), sample({2, 2}, DType::i32)); }, {"i64", "i32"}},
                  {[] { matmul(sample({2, 2}, DType::i64), sample({2, 2}, DType::i64), 0.5); }, {"scale", "0.5"}},
                  {[] { matmul(sample({2, 2}), sample({2, 2}, DType::f64)); }, {"f32", "f64"}}};
  rows.push_back(row);
}

/// x times the transposed weight, plus the bias where there is one.
Array layer(const Array& x, const Array& weight, const Array* bias, DType dtype) {
  const Array y = product(x, permuted(weight, {1, 0}));
  return bias ? zip(y, *bias, dtype, [](double a, double b) { return a + b; }) : y;
}

double gelu_with_tanh(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

void add_feed_forward(Rows& rows) {
  Row row{"feed_forward_gelu", {}};
  row.slack = 40;
  row.roundings = 8;
  struct Layer {
    Shape x;
    std::int64_t in, hidden, out;
  };
  for (const Layer& l : {Layer{{1}, 1, 1, 1},
                         {{3}, 3, 2, 4},
                         {{2, 3}, 3, 4, 3},
                         {{2, 2, 3}, 3, 5, 2},
                         {{33, 5}, 5, 31, 3},
                         {{2, 3}, 3, 1025, 2},
                         {{0, 3}, 3, 2, 3},
                         {{3, 0}, 0, 2, 2},
                         {{2, 3}, 3, 0, 2},
                         {{2, 3}, 3, 2, 0},
                         {{260, 17}, 17, 136, 40},
                         {{129, 31}, 31, 193, 64},
                         {{136, 32}, 32, 64, 48},
                         {{2304, 40}, 40, 1544, 328}})
    for (const bool bias : {true, false}) {
      std::vector<Input> inputs = {value(l.x, -1, 1), value({l.hidden, l.in}, -1, 1), value({l.out, l.hidden}, -0.25, 0.25)};
      if (bias) inputs.push_back(value({l.hidden})), inputs.push_back(value({l.out}));
      if (bias) inputs[3].optional = inputs[4].optional = true;
      row.cases.push_back(
          {inputs,
           [bias](In in) -> Tensors { return {feed_forward_gelu(in[0], in[1], bias ? in[3] : Tensor(), in[2], bias ? in[4] : Tensor())}; },
           [bias](Ref in) {
             const Array hidden = map(layer(in[0], in[1], bias ? &in[3] : nullptr, in.dtype), in.dtype, gelu_with_tanh);
             return one(layer(hidden, in[2], bias ? &in[4] : nullptr, in.dtype));
           }});
      if (l.x[0] > 100) row.cases.back().dtypes = wide;
    }
  row.mistakes = {{[] { feed_forward_gelu(sample({2, 3}), sample({4, 2}), {}, sample({2, 4})); }, {"(2, 3)", "(4, 2)"}},
                  {[] { feed_forward_gelu(sample({2, 3}), sample({4, 3}), {}, sample({3, 3})); }, {"(2, 4)", "(3, 3)"}},
                  {[] { feed_forward_gelu(sample({2, 3}), sample({4, 3}), sample({3}), sample({3, 4})); }, {"(4, 3)", "(3,)"}},
                  {[] { feed_forward_gelu(sample({2, 3}), sample({4, 3}), {}, sample({3, 4}), sample({4})); }, {"(3, 4)", "(4,)"}},
                  {[] { feed_forward_gelu(sample({2, 3}), sample({4, 3}), {}, sample({3, 4}, DType::f64)); }, {"f32", "f64"}}};
  rows.push_back(row);
  rows.push_back(plain(row));
}

void add_linear(Rows& rows, bool has_gelu) {
  const auto f = [has_gelu](const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
    return (has_gelu ? linear_gelu : linear)(x, weight, bias);
  };
  Row row{has_gelu ? "linear_gelu" : "linear", {}};
  row.slack = 40;
  row.roundings = has_gelu ? 4 : 2;  // before and after the bias
  struct Layer {
    Shape x;
    std::int64_t in, out;
  };
  for (const Layer& l : {Layer{{1}, 1, 1},
                         {{3}, 3, 2},
                         {{2, 3}, 3, 4},
                         {{2, 2, 3}, 3, 2},
                         {{33, 31}, 31, 33},
                         {{2, 1025}, 1025, 3},
                         {{3, 2}, 2, 1025},
                         {{0, 3}, 3, 2},
                         {{3, 0}, 0, 2},
                         {{2, 3}, 3, 0},
                         {{2, 0}, 0, 0},
                         {{260, 40}, 40, 129},
                         {{1025, 40}, 40, 8},
                         {{160, 64}, 64, 96}})
    for (const bool bias : {true, false}) {
      std::vector<Input> inputs = {value(l.x), value({l.out, l.in})};
      if (bias) inputs.push_back(value({l.out}));
      if (bias) inputs.back().optional = true;
      row.cases.push_back({inputs, [f](In in) -> Tensors { return {f(in[0], in[1], in.inputs.size() > 2 ? in[2] : Tensor())}; },
                           [has_gelu](Ref in) {
                             const Array y = layer(in[0], in[1], in.inputs.size() > 2 ? &in[2] : nullptr, in.dtype);
                             return one(has_gelu ? map(y, in.dtype, gelu_with_tanh) : y);
                           }});
      if (has_gelu && l.x[0] > 100) row.cases.back().dtypes = wide;
    }
  row.mistakes = {{[=] { f(sample({2, 3}), sample({4, 2})); }, {"(2, 3)", "(4, 2)", "none"}},
                  {[=] { f(sample({2, 3}), sample({4, 3}), sample({3})); }, {"(2, 3)", "(4, 3)", "(3,)"}},
                  {[=] { f(sample({2, 3}), sample({3})); }, {"(3,)"}},
                  {[=] { f(sample({}), sample({3, 3})); }, {"()"}},
                  {[=] { f(sample({2, 3}), sample({4, 3}, DType::f64)); }, {"f32", "f64"}},
                  {[=] { f(sample({2, 3}), sample({4, 3}), sample({4}, DType::f64)); }, {"f32", "f64"}},
                  {[=] { f(sample({2, 3}), sample({4, 3}), sample({4}, DType::i64)); }, {"f32", "i64"}},
                  {[=] { f(sample({2, 3}, DType::i64), sample({4, 3}, DType::i64)); }, {"floating", "i64"}}};
  rows.push_back(row);
  if (has_gelu) rows.push_back(plain(row));
}

/// The losses of rows of logits x, as the definition says; weights may be null.
Arrays cross_entropy_of(A x, A targets, const Array* token_weights, DType logits_dtype, std::int64_t ignore, double smoothing,
                        Reduction reduction) {
  const DType dtype = logits_dtype == DType::f64 ? DType::f64 : DType::f32;
  const std::int64_t classes = x.shape.back();
  double total = 0, weights = 0;
  Array losses = make(targets.shape, dtype, [&](const Shape& i) {
    const auto target = static_cast<std::int64_t>(targets(i));
    if (target == ignore) return 0.0;
    Shape at = i;
    at.push_back(0);
    double sum = 0, logits = 0;
    for (std::int64_t c = 0; c < classes; ++c) {
      at.back() = c;
      sum += std::exp(x(at));
      logits += x(at);
    }
    at.back() = target;
    const double lse = std::log(sum), weight = token_weights ? (*token_weights)(i) : 1;
    const double loss = weight * ((1 - smoothing) * (lse - x(at)) + smoothing * (lse - logits / static_cast<double>(classes)));
    total += loss;
    weights += weight;
    return loss;
  });
  if (reduction == Reduction::none) return {losses};
  return {Array{{}, dtype, {reduction == Reduction::sum ? total : total / weights}}};
}

void add_loss(Rows& rows) {
  Row row{"cross_entropy", {}};
  row.slack = 10;
  for (const auto& [shape, classes] : std::vector<std::pair<Shape, std::int64_t>>{{{0}, 3},
                                                                                  {{1}, 1},
                                                                                  {{31}, 5},
                                                                                  {{33}, 3},
                                                                                  {{1025}, 3},
                                                                                  {{}, 4},
                                                                                  {{4}, 5},
                                                                                  {{2, 3}, 4},
                                                                                  {{3}, 1025},
                                                                                  {{5}, 31},
                                                                                  {{9}, 3000},
                                                                                  {{40}, 10000},
                                                                                  {{40}, 5027},
                                                                                  {{3}, 50257},
                                                                                  {{3}, 70001},
                                                                                  {{70000}, 7}})
    for (const double smoothing : {0.0, 0.1})
      for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
        for (const int variant : {0, 1, 2}) {  // plain, with ignored targets, with token weights as well
          Shape logits = shape;
          logits.push_back(classes);
          std::vector<Input> inputs = {value(logits), index(shape, classes)};
          if (variant == 2) inputs.push_back(positive(shape));
          if (variant == 2) inputs.back().differentiable = false;
          const std::int64_t ignore = variant == 0 || classes == 1 ? -100 : 2;
          row.cases.push_back({inputs,
                               [=](In in) -> Tensors {
                                 CrossEntropyOptions options;
                                 if (in.inputs.size() > 2) options.token_weights = in[2];
                                 options.ignore_index = ignore;
                                 options.label_smoothing = smoothing;
                                 options.reduction = reduction;
                                 return {cross_entropy(in[0], in[1], options)};
                               },
                               [=](Ref in) {
                                 return cross_entropy_of(in[0], in[1], in.inputs.size() > 2 ? &in[2] : nullptr, in.dtype, ignore, smoothing,
                                                         reduction);
                               }});
        }
  const auto with = [](auto set) {
    CrossEntropyOptions options;
    set(options);
    return options;
  };
  const Tensor targets = sample({2}, DType::i64);
  row.mistakes = {{[=] { cross_entropy(sample({2, 3}), sample({3}, DType::i64)); }, {"(2, 3)", "(3,)", "none"}},
                  {[=] { cross_entropy(sample({2, 3}), sample({2})); }, {"i64", "f32"}},
                  {[=] { cross_entropy(sample({2, 3}, DType::i64), targets); }, {"floating", "i64"}},
                  {[=] { cross_entropy(sample({}), sample({}, DType::i64)); }, {"()"}},
                  {[=] { cross_entropy(sample({2, 3}), targets, with([](auto& o) { o.token_weights = sample({3}); })); }, {"(3,)"}},
                  {[=] { cross_entropy(sample({2, 3}), targets, with([](auto& o) { o.label_smoothing = 1.5; })); }, {"1.5"}},
                  {[=] { cross_entropy(sample({2, 3}), targets, with([](auto& o) { o.label_smoothing = std::nan(""); })); }, {"nan"}},
                  {[=] { cross_entropy(sample({2, 3}), Tensor::from(std::vector<std::int64_t>{0, 3}, {2})); }, {"3"}},
                  {[=] { cross_entropy(sample({2, 3}), Tensor::from(std::vector<std::int64_t>{-1, 0}, {2})); }, {"-1"}}};
  rows.push_back(row);

  row = {"mse_loss", {}};
  row.slack = 8;
  for (const Shape& shape : {Shape{0}, Shape{1}, Shape{31}, Shape{33}, Shape{1025}, Shape{}, Shape{3, 5}})
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
      row.cases.push_back(
          {{value(shape), value(shape)},
           [=](In in) -> Tensors { return {mse_loss(in[0], in[1], {.reduction = reduction})}; },
           [=](Ref in) {
             const Array squares = zip(in[0], in[1], in.dtype, [](double a, double b) { return (a - b) * (a - b); });
             if (reduction == Reduction::none) return one(squares);
             const double total = sum_of(squares.values);
             return one({{}, in.dtype, {reduction == Reduction::sum ? total : total / static_cast<double>(squares.values.size())}});
           }});
  row.mistakes = {{[] { mse_loss(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                  {[] { mse_loss(sample({3}), sample({1})); }, {"(3,)", "(1,)"}},
                  {[] { mse_loss(sample({3}, DType::i64), sample({3}, DType::i64)); }, {"floating", "i64"}}};
  rows.push_back(row);
}

/// A number as the dtype keeps it: the losses, in float32, show how logits in 16 bits are rounded.
double stored(double x, DType dtype) {
  if (dtype == DType::f16) return static_cast<float>(f16(static_cast<float>(x)));
  if (dtype == DType::bf16) return static_cast<float>(bf16(static_cast<float>(x)));
  return x;
}

void add_linear_loss(Rows& rows) {
  Row row{"linear_cross_entropy", {}};
  row.slack = 40;
  struct Layer {
    Shape x;
    std::int64_t classes, chunk;
  };
  for (const Layer& l : {Layer{{1, 1}, 1, 0},
                         {{3}, 5, 0},
                         {{0, 3}, 4, 0},
                         {{2, 2, 3}, 4, 3},
                         {{33, 5}, 31, 7},
                         {{3, 2}, 1025, 2},
                         {{40, 0}, 3, 16},
                         {{5, 33}, 8, 5}})
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
      for (const int variant : {0, 1, 2}) {  // plain, with a bias and smoothing, with ignored targets and token weights
        Shape targets = l.x;
        targets.pop_back();
        if (numel(targets) == 0 && reduction == Reduction::mean) continue;  // NaN, and so are the gradients
        std::vector<Input> inputs = {value(l.x, -1, 1), value({l.classes, l.x.back()}), index(targets, l.classes)};
        if (variant == 1) inputs.push_back(value({l.classes}));
        if (variant == 2) inputs.push_back(positive(targets));
        if (variant == 2) inputs.back().differentiable = false;
        const double smoothing = variant == 1 ? 0.1 : 0;
        const std::int64_t ignore = variant < 2 || l.classes == 1 ? -100 : 2;
        row.cases.push_back({inputs,
                             [=](In in) -> Tensors {
                               CrossEntropyOptions options{.ignore_index = ignore, .label_smoothing = smoothing, .reduction = reduction};
                               if (variant == 2) options.token_weights = in[3];
                               return {linear_cross_entropy(in[0], in[1], variant == 1 ? in[3] : Tensor(), in[2], options, l.chunk)};
                             },
                             [=](Ref in) {
                               Array logits = product(in[0], permuted(in[1], {1, 0}));
                               if (variant == 1) logits = zip(logits, in[3], in.dtype, [](double a, double b) { return a + b; });
                               logits = map(logits, in.dtype, [&](double z) { return stored(z, in.dtype); });
                               return cross_entropy_of(logits, in[2], variant == 2 ? &in[3] : nullptr, in.dtype, ignore, smoothing,
                                                       reduction);
                             }});
        // In 16 bits a bias is added before the logits are rounded or after, as the device's product has it.
        if (variant == 1) row.cases.back().dtypes = {DType::f64, DType::f32};
      }
  const Tensor x = sample({2, 3}), weight = sample({4, 3}), targets = sample({2}, DType::i64);
  row.mistakes = {
      {[=] { linear_cross_entropy(x, sample({4, 2}), {}, targets); }, {"(2, 3)", "(4, 2)", "none"}},
      {[=] { linear_cross_entropy(x, weight, sample({3}), targets); }, {"(2, 3)", "(4, 3)", "(3,)"}},
      {[=] { linear_cross_entropy(x, sample({4, 3}, DType::f64), {}, targets); }, {"f32", "f64"}},
      {[=] { linear_cross_entropy(x, weight, sample({4}, DType::f64), targets); }, {"f32", "f64"}},
      {[=] { linear_cross_entropy(sample({2, 3}, DType::i64), sample({4, 3}, DType::i64), {}, targets); }, {"floating", "i64"}},
      {[=] { linear_cross_entropy(x, weight, {}, sample({3}, DType::i64)); }, {"(2, 4)", "(3,)", "none"}},
      {[=] { linear_cross_entropy(x, weight, {}, sample({2})); }, {"i64", "f32"}},
      {[=] { linear_cross_entropy(x, weight, {}, targets, {.token_weights = sample({3})}); }, {"(3,)"}},
      {[=] { linear_cross_entropy(x, weight, {}, targets, {.label_smoothing = 1.5}); }, {"1.5"}},
      {[=] { linear_cross_entropy(x, weight, {}, targets, {}, -1); }, {"-1"}},
      {[=] { linear_cross_entropy(x, weight, {}, Tensor::from(std::vector<std::int64_t>{0, 4}, {2})); }, {"4"}, "cross_entropy"}};
  rows.push_back(row);
  rows.push_back(plain(row));
}

}  // namespace

void add_products(Rows& rows) {
  add_matmul(rows);
  for (const bool has_gelu : {false, true}) add_linear(rows, has_gelu);
  add_feed_forward(rows);
  add_loss(rows);
  add_linear_loss(rows);
}

}  // namespace tern::op_cases
