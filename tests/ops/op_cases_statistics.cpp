// Rows of ops/reduce.h, ops/matmul.h, ops/loss.h and of linspace and eye. Note [The table] in op_cases.h.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "op_cases.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

namespace tern::op_cases {

using namespace reference;

namespace {

using Slice = const std::vector<double>&;

void add_reductions(Rows& rows) {
  struct Form {
    Shape shape;
    Dims dims;
    bool keepdim = false;
  };
  const std::vector<Form> forms = {{{31}, {}},  {{33}, {0}, true},         {{1025}, {}}, {{3, 5}, {1}},
                                   {{3, 5}, 0}, {{2, 3, 4}, {0, 2}, true}, {{0, 3}, {1}}};
  const auto mean_of = [](Slice x) { return sum_of(x) / double(x.size()); };
  Row row{"stddev", {}};
  row.slack = 10;
  const auto deviation = [=](Slice x, std::int64_t correction) {
    double total = 0;
    for (double v : x) total += (v - mean_of(x)) * (v - mean_of(x));
    return std::sqrt(total / double(std::int64_t(x.size()) - correction));
  };
  for (const std::int64_t correction : {0, 1})
    for (const Form& f : forms)
      row.cases.push_back(
          {{value(f.shape)},
           [=](In in) -> Tensors { return {stddev(in[0], f.dims, correction, f.keepdim)}; },
           [=](Ref in) { return one(reduce(in[0], f.dims, f.keepdim, in.dtype, [=](Slice x) { return deviation(x, correction); })); }});
  row.cases.push_back({{value({1, 3})},
                       [](In in) -> Tensors { return {stddev(in[0], 1)}; },
                       [=](Ref in) { return one(reduce(in[0], {1}, false, in.dtype, [=](Slice x) { return deviation(x, 1); })); }});
  row.mistakes = {{[] { stddev(sample({3}, DType::i64)); }, {"floating", "i64"}}, {[] { stddev(sample({3}), 1); }, {"1"}, "var"}};
  rows.push_back(row);

  row = {"norm", {}};
  row.slack = 10;
  const double infinity = INFINITY;
  for (const double p : {2.0, 1.0, 3.0, 0.5, infinity, -infinity})
    for (const Form& f : forms) {
      Input x = distinct(f.shape);
      x.kinks = {0};
      if (p == 0.5 || std::isinf(p))
        x.low = 0.5;  // powers of small numbers have steep derivatives, and equal ones share that of an extreme
      row.cases.push_back({{x},
                           [=](In in) -> Tensors { return {norm(in[0], f.dims, p, f.keepdim)}; },
                           [=](Ref in) {
                             return one(reduce(in[0], f.dims, f.keepdim, in.dtype, [=](Slice v) {
                               double total = 0, top = 0, low = infinity;
                               for (double e : v) {
                                 total += std::pow(std::abs(e), std::isinf(p) ? 1 : p);
                                 top = std::max(top, std::abs(e));
                                 low = std::min(low, std::abs(e));
                               }
                               return std::isinf(p) ? (p > 0 ? top : low) : std::pow(total, 1 / p);
                             }));
                           },
                           // Half of a million is beyond f16.
                           p == 0.5 ? std::vector{DType::f64, DType::f32} : floats});
    }
  row.cases.push_back({{Input{whole({3, 5})}},
                       [](In in) -> Tensors { return {norm(in[0], 1, 0)}; },
                       [](Ref in) {
                         return one(reduce(in[0], {1}, false, in.dtype, [](Slice v) {
                           return double(std::count_if(v.begin(), v.end(), [](double e) { return e != 0; }));
                         }));
                       }});
  row.cases.back().inputs[0].differentiable = false;
  row.cases.push_back({{value({1, 4})},
                       [](In in) -> Tensors { return {norm(in[0])}; },
                       [](Ref in) {
                         return one(reduce(in[0], {}, false, in.dtype,
                                           [](Slice v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); }));
                       }});
  row.mistakes = {{[] { norm(sample({3}, DType::i64)); }, {"floating", "i64"}}, {[] { norm(sample({3}), {}, std::nan("")); }, {"NaN"}}};
  rows.push_back(row);

  row = {"median", {}};
  row.dtypes = numbers;
  for (const Form& f : {Form{{1}, 0}, {{31}, 0}, {{33}, 0, true}, {{1025}, 0}, {{3, 5}, 1}, {{4, 3}, 0, true}, {{0, 3}, 1}, {{2, 6}, 1}})
    row.cases.push_back({{distinct(f.shape)},
                         [=](In in) -> Tensors { return {median(in[0], f.dims[0], f.keepdim)}; },
                         [=](Ref in) {
                           return one(reduce(in[0], f.dims, f.keepdim, in.dtype, [](std::vector<double> v) {
                             std::sort(v.begin(), v.end());
                             return v[(v.size() - 1) / 2];
                           }));
                         }});
  row.mistakes = {{[] { median(sample({3}), 1); }, {"1"}},
                  {[] { median(sample({2, 0}), 1); }, {"(2, 0)"}},
                  {[] { median(sample({3}, DType::boolean)); }, {"bool"}}};
  rows.push_back(row);
}

void add_cumprod(Rows& rows) {
  Row row{"cumprod", {}};
  row.slack = 40;
  for (const auto& [shape, dim] :
       std::vector<std::pair<Shape, int>>{{{0}, 0}, {{1}, 0}, {{31}, -1}, {{33}, 0}, {{1025}, 0}, {{3, 5}, 0}, {{3, 5}, 1}, {{2, 3, 4}, 1}})
    for (const bool has_zeros : {false, true}) {
      // Products of many whole numbers leave every range.
      if (has_zeros && numel(shape) > 15) continue;
      row.cases.push_back({{has_zeros ? whole(shape, -2, 3) : Input{shape, 0.99, 1.01}},
                           [dim = dim](In in) -> Tensors { return {cumprod(in[0], dim)}; },
                           [dim = dim](Ref in) {
                             return one(along(in[0], dim, [](std::vector<double> s) {
                               for (std::size_t i = 1; i < s.size(); ++i) s[i] *= s[i - 1];
                               return s;
                             }));
                           }});
    }
  for (const auto& [shape, dim] : std::vector<std::pair<Shape, int>>{{{3, 5}, 1}, {{12}, 0}, {{2, 0}, 1}})
    row.cases.push_back({{value(shape, -3, 4)},
                         [dim = dim](In in) -> Tensors { return {cumprod(in[0], dim)}; },
                         [dim = dim](Ref in) {
                           Array y = along(in[0], dim, [](std::vector<double> s) {
                             for (std::size_t i = 1; i < s.size(); ++i) s[i] *= s[i - 1];
                             return s;
                           });
                           y.dtype = DType::i64;
                           return one(y);
                         },
                         {DType::i32, DType::i64, DType::u8, DType::boolean}});
  row.mistakes = {{[] { cumprod(sample({3}), 1); }, {"1"}}};
  rows.push_back(row);
}

void add_multinomial(Rows& rows) {
  // A weight that is alone in its row is drawn, whatever the numbers are; frequencies are in everyday_ops_test.cpp.
  Row row{"multinomial", {}};
  row.differentiable = false;
  for (const Shape& shape : {Shape{1}, {31}, {33}, {1025}, {0, 3}, {2, 3, 4}})
    for (const bool replacement : {false, true})
      row.cases.push_back({{value(shape, 0.5, 2)},
                           [=](In in) -> Tensors {
                             // Of the weights only the largest stays, the first of equal ones.
                             const Tensor one_left = mul(one_hot(argmax(in[0], -1), in[0].size(-1), in.dtype), in[0]);
                             return {multinomial(one_left, 1, replacement)};
                           },
                           [](Ref in) {
                             return one(reduce(in[0], {-1}, true, DType::i64,
                                               [](Slice v) { return double(std::max_element(v.begin(), v.end()) - v.begin()); }));
                           }});
  for (Case& op : row.cases) op.inputs[0] = distinct(op.inputs[0].shape), op.inputs[0].low = 0.5;
  row.dtypes = {DType::f64, DType::f32};
  row.mistakes = {{[] { multinomial(sample({3}), 4); }, {"[0, 3]", "4"}},
                  {[] { multinomial(sample({2, 0}), 1); }, {"(2, 0)"}},
                  {[] { multinomial(sample({3}, DType::i64), 1); }, {"floating", "i64"}},
                  {[] { multinomial(full({3}, -1), 1); }, {"finite weights >= 0", "-1"}},
                  {[] { multinomial(full({3}, std::nan("")), 1, true); }, {"finite weights >= 0", "nan"}},
                  {[] { multinomial(full({2, 3}, INFINITY), 1); }, {"finite weights >= 0", "inf"}},
                  {[] { multinomial(full({3}, 0), 1, true); }, {"1 or more weights beyond 0", "0"}},
                  {[] { multinomial(one_hot(full({2}, 1, DType::i64), 3), 2); }, {"2 or more weights beyond 0", "1"}}};
  rows.push_back(row);
}

/// The sum over all values of all letters, and of digits, which stand for the dimensions of an ellipsis: their sizes are broadcast.
Arrays summed(const std::vector<std::string>& operands, const std::string& result, Ref in) {
  std::string letters;
  Shape sizes;
  for (std::size_t k = 0; k < operands.size(); ++k)
    for (std::size_t d = 0; d < operands[k].size(); ++d)
      if (const std::size_t at = letters.find(operands[k][d]); at == std::string::npos) {
        letters += operands[k][d];
        sizes.push_back(in[k].shape[int(d)]);
      } else if (sizes[int(at)] == 1) {
        sizes[int(at)] = in[k].shape[int(d)];
      }
  const auto picked = [&](const std::string& labels, const Shape& at) {
    Shape index;
    for (char label : labels) index.push_back(at[int(letters.find(label))]);
    return index;
  };
  const bool is_sum = operands.size() == 1 && result.size() < letters.size() && !is_floating(in.dtype);
  const DType dtype = is_sum ? DType::i64 : in.dtype;
  Array y = make(picked(result, sizes), dtype, [](const Shape&) { return 0; });
  each(sizes, [&](const Shape& at) {
    double product = 1;
    for (std::size_t k = 0; k < operands.size(); ++k) {
      Shape index = picked(operands[k], at);
      for (int d = 0; d < index.size(); ++d)
        if (in[k].shape[d] == 1) index[d] = 0;
      product *= in[k](index);
    }
    y(picked(result, at)) += product;
  });
  for (double& v : y.values) v = held(dtype, v);
  return one(y);
}

void add_products_by_subscripts(Rows& rows) {
  Row row{"einsum", {}};
  row.slack = 20;
  row.dtypes = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8};
  struct Expression {
    const char* text;
    std::vector<std::string> operands;
    std::string result;
    std::vector<Shape> shapes;
  };
  for (const Expression& e : {Expression{"ij,jk->ik", {"ij", "jk"}, "ik", {{3, 5}, {5, 2}}},
                              {"bij , bjk", {"bij", "bjk"}, "ik", {{2, 3, 4}, {2, 4, 2}}},
                              {"bij,bkj->kbi", {"bij", "bkj"}, "kbi", {{2, 3, 2}, {2, 4, 2}}},
                              {"i,j->ji", {"i", "j"}, "ji", {{3}, {4}}},
                              {"ii->i", {"ii"}, "i", {{4, 4}}},
                              {"iji->j", {"iji"}, "j", {{3, 2, 3}}},
                              {"ij->", {"ij"}, "", {{3, 4}}},
                              {"ji", {"ji"}, "ij", {{3, 4}}},
                              {"ijk->ki", {"ijk"}, "ki", {{2, 3, 4}}},
                              {"ij,jk,kl->il", {"ij", "jk", "kl"}, "il", {{2, 3}, {3, 2}, {2, 4}}},
                              {"ab,ac,ad->bcd", {"ab", "ac", "ad"}, "bcd", {{2, 3}, {2, 2}, {2, 3}}},
                              {",i->i", {"", "i"}, "i", {{}, {3}}},
                              {"ii->", {"ii"}, "", {{4, 4}}},
                              {"...ij,jk->...ik", {"10ij", "jk"}, "10ik", {{2, 3, 2, 4}, {4, 2}}},
                              {"...ij,...jk->...ik", {"0ij", "10jk"}, "10ik", {{3, 2, 4}, {2, 1, 4, 2}}},
                              {"b...,...b", {"b10", "0b"}, "10", {{3, 2, 1}, {4, 3}}},
                              {"...,...->", {"10", "0"}, "", {{2, 3}, {1}}},
                              {"...ij->j...", {"0ij"}, "j0", {{2, 3, 4}}},
                              {"...ii->...i", {"0ii"}, "0i", {{2, 3, 3}}},
                              {"...ij->ij", {"0ij"}, "ij", {{2, 3, 4}}},
                              {"...ij,...j->...i", {"ij", "0j"}, "0i", {{2, 3}, {0, 3}}},
                              {"...i,...i->...i", {"i", "i"}, "i", {{3}, {3}}},
                              {"i,i->", {"i", "i"}, "", {{0}, {0}}},
                              {"i,i->", {"i", "i"}, "", {{1}, {1}}},
                              {"i,i->i", {"i", "i"}, "i", {{31}, {31}}},
                              {"i,i->", {"i", "i"}, "", {{33}, {33}}},
                              {"i,i->", {"i", "i"}, "", {{1025}, {1025}}}}) {
    Case op;
    for (const Shape& shape : e.shapes) op.inputs.push_back(value(shape));
    op.call = [=](In in) -> Tensors { return {einsum(e.text, in.inputs)}; };
    op.reference = [=](Ref in) { return summed(e.operands, e.result, in); };
    row.cases.push_back(op);
  }
  for (Case& op : row.cases)
    if (op.inputs.size() == 3) op.dtypes = {DType::f64, DType::f32, DType::i64};  // 16 bits round what is between two products
  row.mistakes = {{[] { einsum("ij,jk->ik", {sample({2, 3})}); }, {"2 operands", "1"}},
                  {[] { einsum("ij->ij", {sample({2})}); }, {"2 dimensions", "(2,)"}},
                  {[] { einsum("ij,jk->ik", {sample({2, 3}), sample({2, 3})}); }, {"3 and 2", "j"}},
                  {[] { einsum("ij->ijk", {sample({2, 3})}); }, {"no operand"}},
                  {[] { einsum("ij->ii", {sample({2, 3})}); }, {"twice"}},
                  {[] { einsum("..i->i", {sample({2, 3})}); }, {"letters", "..i->i"}},
                  {[] { einsum("...i...->i", {sample({2, 3})}); }, {"two ellipses"}},
                  {[] { einsum("...ijk->i", {sample({2, 3})}); }, {"3 dimensions or more", "(2, 3)"}},
                  {[] { einsum("...i,...i", {sample({2, 3}), sample({3, 3})}); }, {"...", "2 and 3"}}};
  rows.push_back(row);

  row = {"dot", {}};
  row.slack = 20;
  for (const std::int64_t n : sizes)
    row.cases.push_back({{value({n}), value({n})},
                         [](In in) -> Tensors { return {dot(in[0], in[1])}; },
                         [](Ref in) { return summed({"i", "i"}, "", in); }});
  row.cases.push_back(
      {{value({4}), value({4})}, [](In in) -> Tensors { return {dot(in[0], in[1])}; }, [](Ref in) { return summed({"i", "i"}, "", in); }});
  row.mistakes = {{[] { dot(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                  {[] { dot(sample({3, 1}), sample({3})); }, {"(3, 1)", "(3,)"}}};
  rows.push_back(row);

  row = {"outer", {}};
  for (const std::int64_t n : sizes)
    row.cases.push_back({{value({n}), value({3})},
                         [](In in) -> Tensors { return {outer(in[0], in[1])}; },
                         [](Ref in) { return summed({"i", "j"}, "ij", in); }});
  row.cases.push_back({{value({4}), value({3})},
                       [](In in) -> Tensors { return {outer(in[0], in[1])}; },
                       [](Ref in) { return summed({"i", "j"}, "ij", in); }});
  row.mistakes = {{[] { outer(sample({3, 1}), sample({3})); }, {"(3, 1)", "(3,)"}}};
  rows.push_back(row);

  row = {"trace", {}};
  row.slack = 20;
  for (const Shape& shape : {Shape{0, 0}, {1, 1}, {31, 33}, {33, 31}, {1025, 2}, {3, 4}, {2, 3, 3}})
    row.cases.push_back({{value(shape)},
                         [](In in) -> Tensors { return {trace(in[0])}; },
                         [](Ref in) {
                           Shape result = in[0].shape;
                           const std::int64_t n = std::min(in[0].size(-1), in[0].size(-2));
                           result.pop_back();
                           result.pop_back();
                           return one(make(result, in.dtype, [&](Shape i) {
                             double total = 0;
                             i.push_back(0);
                             i.push_back(0);
                             for (std::int64_t k = 0; k < n; ++k) {
                               i[i.size() - 1] = i[i.size() - 2] = k;
                               total += in[0](i);
                             }
                             return total;
                           }));
                         }});
  row.mistakes = {{[] { trace(sample({3})); }, {"(3,)"}}};
  rows.push_back(row);
}

Array reduced(const Array& losses, Reduction reduction, double count) {
  if (reduction == Reduction::none) return losses;
  const double total = sum_of(losses.values);
  return {{}, losses.dtype, {reduction == Reduction::sum ? total : total / count}};
}

template <class F>
Row loss(const char* name, Tensor (*f)(T, T, const LossOptions&), F g, const Input& a, const Input& b) {
  Row row{name, {}};
  row.slack = 10;
  for (const Shape& shape : {Shape{0}, {1}, {31}, {33}, {1025}, {3, 5}})
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      Input x = a, y = b;
      x.shape = y.shape = shape;
      row.cases.push_back({{x, y},
                           [=](In in) -> Tensors { return {f(in[0], in[1], {reduction})}; },
                           [=](Ref in) { return one(reduced(zip(in[0], in[1], in.dtype, g), reduction, double(in[0].values.size()))); }});
    }
  row.mistakes = {{[=] { f(sample({3}), sample({4}), {Reduction::mean}); }, {"(3,)", "(4,)"}},
                  {[=] { f(sample({3}), sample({3}, DType::i64), {Reduction::mean}); }, {"floating", "i64"}}};
  return row;
}

void add_losses(Rows& rows) {
  const auto softplus_of = [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); };
  rows.push_back(loss(
      "binary_cross_entropy", binary_cross_entropy, [](double p, double t) { return -t * std::log(p) - (1 - t) * std::log1p(-p); },
      Input{{}, 0.1, 0.9}, Input{{}, 0, 1}));
  rows.push_back(loss(
      "binary_cross_entropy_with_logits", binary_cross_entropy_with_logits,
      [=](double x, double t) { return t * softplus_of(-x) + (1 - t) * softplus_of(x); }, Input{{}, -9, 9}, Input{{}, 0, 1}));
  rows.push_back(
      loss("kl_div", kl_div, [](double x, double t) { return t == 0 ? 0 : t * (std::log(t) - x); }, Input{{}, -4, 0}, Input{{}, 0.2, 1}));
  rows.push_back(loss("l1_loss", l1_loss, [](double a, double b) { return std::abs(a - b); }, Input{{}, -2, 0}, Input{{}, 0.2, 2}));
  rows.push_back(loss(
      "huber_loss", [](T a, T b, const LossOptions& o) { return huber_loss(a, b, {1.5, o.reduction}); },
      [](double a, double b) {
        const double d = std::abs(a - b);
        return d <= 1.5 ? d * d / 2 : 1.5 * (d - 0.75);
      },
      Input{{}, -2, 2}, Input{{}, -2, 2}));
  for (const double delta : {0.0, -1.0, std::nan("")})
    rows.back().mistakes.push_back({[=] { huber_loss(sample({3}), sample({3}), {.delta = delta}); }, {"delta > 0"}});

  Row row{"nll_loss", {}};
  row.slack = 10;
  for (const Shape& shape : {Shape{0, 3}, {1, 1}, {31, 4}, {33, 3}, {3, 1025}, {2, 3, 4}, {5, 3}, {4}})
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      Shape targets = shape;
      targets.pop_back();
      // A target of 0 is ignored, where there are others.
      const std::int64_t ignored = shape.back() > 1 && numel(targets) > 1 ? 0 : -100;
      row.cases.push_back({{value(shape, -4, 0), index(targets, shape.back())},
                           [=](In in) -> Tensors { return {nll_loss(in[0], in[1], {ignored, reduction})}; },
                           [=](Ref in) {
                             double count = 0;
                             const Array losses = make(targets, in.dtype, [&](Shape i) {
                               const double target = in[1](i);
                               if (target == double(ignored)) return 0.0;
                               ++count;
                               i.push_back(std::int64_t(target));
                               return -in[0](i);
                             });
                             return one(reduced(losses, reduction, count));
                           }});
    }
  row.mistakes = {{[] { nll_loss(sample({3, 4}), sample({4}, DType::i64)); }, {"(3, 4)", "(4,)"}},
                  {[] { nll_loss(sample({3, 4}), sample({3})); }, {"i64", "f32"}},
                  {[] { nll_loss(sample({3, 4}, DType::i64), sample({3}, DType::i64)); }, {"floating", "i64"}}};
  rows.push_back(row);
}

void add_ranges(Rows& rows) {
  Row row{"linspace", {}};
  row.differentiable = false;
  for (const std::int64_t n : sizes)
    row.cases.push_back({{},
                         [=](In in) -> Tensors { return {linspace(-1, 2, n, in.dtype, in.device)}; },
                         [=](Ref in) {
                           return one(
                               make({n}, in.dtype, [=](const Shape& i) { return n == 1 ? -1 : -1 + 3 * double(i[0]) / double(n - 1); }));
                         }});
  row.mistakes = {{[] { linspace(0, 1, -1); }, {"-1"}},
                  {[] { linspace(0, INFINITY, 2); }, {"inf"}},
                  {[] { linspace(0, 1, 2, DType::i64); }, {"floating", "i64"}}};
  rows.push_back(row);

  row = {"eye", {}};
  row.dtypes = all_dtypes;
  row.differentiable = false;
  struct Square {
    std::int64_t n, m, diagonal;
  };
  for (const Square& s : {Square{0, 0, 0}, {1, 1, 0}, {31, 33, 1}, {3, 5, -2}, {4, 4, 0}, {205, 5, 0}, {31, 1, 0}, {33, 1, -3}})
    row.cases.push_back(
        {{},
         [=](In in) -> Tensors { return {eye(s.n, s.m, s.diagonal, in.dtype, in.device)}; },
         [=](Ref in) { return one(make({s.n, s.m}, in.dtype, [=](const Shape& i) { return double(i[1] - i[0] == s.diagonal); })); }});
  row.mistakes = {{[] { eye(-1); }, {"-1"}}, {[] { eye(2, -3); }, {"-3"}}};
  rows.push_back(row);
}

}  // namespace

void add_statistics(Rows& rows) {
  add_reductions(rows);
  add_cumprod(rows);
  add_multinomial(rows);
  add_products_by_subscripts(rows);
  add_losses(rows);
  add_ranges(rows);
}

}  // namespace tern::op_cases
