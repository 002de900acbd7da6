// Rows of ops/reduce.h. Note [The table] in op_cases.h.
#include <cmath>
#include <limits>

#include "op_cases.h"
#include "ops/reduce.h"

namespace tern::op_cases {

using namespace reference;

namespace {

using Slice = const std::vector<double>&;

struct Form {
  Shape shape;
  Dims dims;
  bool keepdim = false;
};
/// One dimension, the first, the last, some in the middle, all; long and short reductions, contiguous or not.
const std::vector<Form> forms = {{{1}, {}},
                                 {{31}, {}},
                                 {{33}, {0}},
                                 {{1025}, {}, true},
                                 {{}, {}},
                                 {{3, 5}, {}},
                                 {{3, 5}, {0}},
                                 {{3, 5}, {1}},
                                 {{3, 5}, {-1}, true},
                                 {{3, 5}, {0}, true},
                                 {{33, 31}, {0}},
                                 {{33, 31}, {1}},
                                 {{2, 3, 4}, {1}},
                                 {{2, 3, 4}, {0, 2}},
                                 {{2, 3, 4}, {2, 1}, true},
                                 {{2, 3, 4}, {-1, -3}},
                                 {{1025, 3}, {0}},
                                 {{3, 1025}, {1}},
                                 {{2, 1, 3}, {1}},
                                 {{0, 3}, {1}},
                                 {{6, 7, 8, 9}, {1, 3}},
                                 {{40, 1025}, {0}},
                                 {{40, 1025}, {1}},
                                 {{3, 700, 24}, {1}},
                                 {{90000}, {}},  // in parts, on either device
                                 {{2, 45000}, {1}},
                                 {{9000, 8}, {0}},
                                 {{1, 2, 1, 2, 1, 2, 1, 2}, {1, 4, 7}},
                                 {{1, 2, 1, 2, 1, 2, 1, 2}, {}}};
/// More rows or columns than a grid of CUDA, few of either, and rows of a vocabulary.
const std::vector<Form> huge_forms = {{{3000001}, {}},      {{70000, 20}, {1}}, {{70000, 12}, {0}}, {{640, 2500}, {0}}, {{640, 2500}, {1}},
                                      {{5, 3, 20000}, {1}}, {{5120, 256}, {0}}, {{515, 260}, {0}},  {{20, 50257}, {1}}};
/// Reductions over nothing, where they have a value.
const std::vector<Form> empty_forms = {{{0}, {}}, {{0, 3}, {0}}, {{3, 0}, {1}, true}, {{2, 0, 3}, {}}};

template <class F, class G>
void add_forms(Row& row, const std::vector<Form>& list, F f, G g, DType (*result)(DType), const Input& like,
               const std::vector<DType>& dtypes = {}) {
  for (const Form& form : list) {
    Input x = like;
    x.shape = form.shape;
    row.cases.push_back({{x},
                         [=](const Arguments& in) -> Tensors { return {f(in[0], form.dims, form.keepdim)}; },
                         [=](const References& in) { return one(reduce(in[0], form.dims, form.keepdim, result(in.dtype), g)); },
                         dtypes});
  }
}

template <class F>
std::vector<Mistake> wrong_dims(F f) {
  return {{[=] { f(sample({2, 3}), Dims{2}, false); }, {"[-2, 2)", "2"}},
          {[=] { f(sample({2, 3}), Dims{-3}, false); }, {"-3"}},
          {[=] { f(sample({2, 3}), Dims{1, -1}, false); }, {"once", "(1, -1)"}},
          {[=] { f(sample({}), Dims{0}, false); }, {"0"}}};
}

template <class F, class G>
Row reduction(const char* name, F f, G g, DType (*result)(DType), const Input& like, const std::vector<DType>& dtypes, bool of_nothing) {
  Row row{name, {}};
  row.dtypes = dtypes;
  add_forms(row, forms, f, g, result, like);
  if (of_nothing) add_forms(row, empty_forms, f, g, result, like);
  row.mistakes = wrong_dims(f);
  return row;
}

DType same(DType dtype) { return dtype; }
DType counted(DType dtype) { return is_floating(dtype) ? dtype : DType::i64; }
DType boolean(DType) { return DType::boolean; }
const std::vector<DType> narrow = {DType::boolean, DType::u8};

double mean_of(Slice x) { return sum_of(x) / static_cast<double>(x.size()); }
double square_sum(Slice x) {
  const double mean = mean_of(x);
  double total = 0;
  for (double v : x) total += (v - mean) * (v - mean);
  return total;
}

double product_of(Slice x) {
  double total = 1;
  for (double v : x) total *= v;
  return total;
}
double lse(Slice x) {
  double top = -std::numeric_limits<double>::infinity(), total = 0;
  for (double v : x) top = std::max(top, v);
  for (double v : x) total += std::exp(v - top);
  return x.empty() ? top : top + std::log(total);
}

void add_arg(Rows& rows, const char* name, Tensor (*f)(T, int, bool), bool largest) {
  Row row{name, {}};
  row.dtypes = numbers;
  row.differentiable = false;
  struct Along {
    Shape shape;
    int dim;
    bool keepdim = false;
  };
  for (const Along& form : {Along{{1}, 0},
                            {{31}, -1},
                            {{33}, 0, true},
                            {{1025}, 0},
                            {{3, 5}, 0},
                            {{3, 5}, 1},
                            {{2, 3, 4}, 1, true},
                            {{0, 3}, 1},
                            {{3, 1025}, -1},
                            {{1025, 3}, 0},
                            {{9, 35, 66}, 1},
                            {{3, 10000}, 1},
                            {{10000, 3}, 0},
                            {{70000, 5}, 1}})
    // Whole numbers tie: the first of them wins.
    for (const Input& like : {value({}), whole({})}) {
      Input x = like;
      x.shape = form.shape;
      row.cases.push_back({{x},
                           [=](const Arguments& in) -> Tensors { return {f(in[0], form.dim, form.keepdim)}; },
                           [=](const References& in) {
                             return one(reduce(in[0], {form.dim}, form.keepdim, DType::i64, [=](Slice s) {
                               return double((largest ? std::max_element(s.begin(), s.end()) : std::min_element(s.begin(), s.end())) -
                                             s.begin());
                             }));
                           }});
    }
  row.mistakes = {{[=] { f(sample({2, 3}), 2, false); }, {"2"}},
                  {[=] { f(sample({2, 0}), 1, false); }, {"(2, 0)"}},
                  {[=] { f(sample({0}), 0, false); }, {"(0,)"}},
                  {[=] { f(sample({3}, DType::boolean), 0, false); }, {"bool"}},
                  {[=] { f(sample({}), 0, false); }, {"0"}}};
  rows.push_back(row);
}

}  // namespace

static void add_cumulative(Rows& rows) {
  Row running{"cumsum", {}}, running_max{"cummax", {}};
  running.dtypes = all_dtypes;
  running.slack = 30;
  running_max.dtypes = numbers;
  for (const auto& [shape, dim] : std::vector<std::pair<Shape, int>>{{{0}, 0},
                                                                     {{1}, 0},
                                                                     {{31}, -1},
                                                                     {{33}, 0},
                                                                     {{1025}, 0},
                                                                     {{3, 5}, 0},
                                                                     {{3, 5}, 1},
                                                                     {{2, 3, 4}, 1},
                                                                     {{0, 3}, 1},
                                                                     {{3, 0}, 1},
                                                                     {{33, 31}, 0},
                                                                     {{3, 1025}, 1},
                                                                     {{256}, 0},
                                                                     {{257}, 0},
                                                                     {{20, 35, 26}, 1},
                                                                     {{3, 9000}, 1},
                                                                     {{9000, 40}, 0}}) {
    running_max.cases.push_back({{value(shape)},
                                 [dim = dim](const Arguments& in) -> Tensors { return {cummax(in[0], dim)}; },
                                 [dim = dim](const References& in) {
                                   return one(along(in[0], dim, [](std::vector<double> s) {
                                     for (std::size_t i = 1; i < s.size(); ++i)
                                       if (!(s[i] > s[i - 1]) && s[i] == s[i]) s[i] = s[i - 1];
                                     return s;
                                   }));
                                 }});
    running.cases.push_back({{value(shape)},
                             [dim = dim](const Arguments& in) -> Tensors { return {cumsum(in[0], dim)}; },
                             [dim = dim](const References& in) {
                               Array y = along(in[0], dim, [](std::vector<double> s) {
                                 for (std::size_t i = 1; i < s.size(); ++i) s[i] += s[i - 1];
                                 return s;
                               });
                               y.dtype = counted(in.dtype);
                               return one(y);
                             }});
  }
  running_max.mistakes = {{[] { cummax(sample({2, 3}), 2); }, {"2"}}, {[] { cummax(sample({2}, DType::boolean), 0); }, {"bool"}}};
  rows.push_back(running_max);
  running.mistakes = {{[] { cumsum(sample({2, 3}), 2); }, {"2"}}, {[] { cumsum(sample({}), 0); }, {"0"}}};
  rows.push_back(running);
}

void add_reduce(Rows& rows) {
  const auto largest = [](Slice x) { return *std::max_element(x.begin(), x.end()); };
  const auto smallest = [](Slice x) { return *std::min_element(x.begin(), x.end()); };
  const auto any_of = [](Slice x) { return std::any_of(x.begin(), x.end(), [](double v) { return v != 0; }); };
  const auto all_of = [](Slice x) { return std::all_of(x.begin(), x.end(), [](double v) { return v != 0; }); };
  const auto floats_only = [](auto f) { return Mistake{[=] { f(sample({3}, DType::i64), Dims{}, false); }, {"floating", "i64"}}; };

  rows.push_back(reduction("sum", sum, sum_of, counted, value({}), all_dtypes, true));
  add_forms(rows.back(), huge_forms, sum, sum_of, counted, value({}, -1, 2));
  rows.back().slack = 20;
  rows.push_back(reduction("mean", mean, mean_of, same, value({}), floats, true));
  rows.back().slack = 5;
  rows.back().mistakes.push_back(floats_only(mean));

  const auto plain_var = [](T x, const Dims& dims, bool keepdim) { return var(x, dims, 1, keepdim); };
  Row variance{"var", {}};
  variance.slack = 10;
  add_forms(
      variance, forms, plain_var, [](Slice x) { return x.size() > 1 ? square_sum(x) / double(x.size() - 1) : std::nan(""); }, same,
      value({}));
  add_forms(variance, empty_forms, plain_var, [](Slice) { return std::nan(""); }, same, value({}));
  add_forms(
      variance, forms, [](T x, const Dims& dims, bool keepdim) { return var(x, dims, 0, keepdim); },
      [](Slice x) { return square_sum(x) / double(x.size()); }, same, value({}));
  // Without a degree of freedom the result is NaN and so has no derivative to compare.
  std::erase_if(variance.cases, [](const Case& op) { return numel(op.inputs[0].shape) == 1; });
  add_forms(
      variance, {{{1}, {}}, {{}, {}}}, [](T x, const Dims& dims, bool keepdim) { return var(x, dims, 0, keepdim); },
      [](Slice) { return 0; }, same, value({}));
  std::erase_if(variance.cases, [](const Case& op) { return op.inputs[0].shape == Shape{2, 1, 3}; });
  variance.mistakes = wrong_dims(plain_var);
  variance.mistakes.push_back(floats_only(plain_var));
  rows.push_back(variance);

  // Factors near 1: a long product stays in the range of f16.
  Row product{"prod", {}};
  product.dtypes = all_dtypes;
  product.slack = 40;
  add_forms(product, forms, prod, product_of, same, Input{{}, 0.99, 1.01}, floats);
  std::erase_if(product.cases, [](const Case& op) { return numel(op.inputs[0].shape) > 50000; });  // roundings multiply, too
  add_forms(product, {{{3, 5}, {0}}, {{3, 5}, {1}}, {{3, 2}, {}}}, prod, product_of, counted, Input{{}, -2, 3});
  add_forms(product, empty_forms, prod, product_of, counted, value({}));
  product.mistakes = wrong_dims(prod);
  // The small integer case meets zeros, where the derivative is checked by a test of its own.
  for (Case& op : product.cases)
    if (op.inputs[0].low == -2) op.inputs[0].kinks = {0};
  rows.push_back(product);

  for (const bool is_max : {true, false}) {
    const auto f = is_max ? static_cast<Tensor (*)(T, const Dims&, bool)>(max) : static_cast<Tensor (*)(T, const Dims&, bool)>(min);
    rows.push_back(is_max ? reduction("max", f, largest, same, distinct({}), numbers, false)
                          : reduction("min", f, smallest, same, distinct({}), numbers, false));
    Row& row = rows.back();
    if (is_max) add_forms(row, huge_forms, f, largest, same, value({}));
    row.mistakes.push_back({[=] { f(sample({0}), {}, false); }, {"(0,)"}});
    row.mistakes.push_back({[=] { f(sample({2, 0}), {1}, false); }, {"(2, 0)"}});
    row.mistakes.push_back({[=] { f(sample({3}, DType::boolean), {}, false); }, {"bool"}});
  }

  rows.push_back(reduction("logsumexp", logsumexp, lse, same, value({}), floats, true));
  add_forms(rows.back(), huge_forms, logsumexp, lse, same, value({}));
  rows.back().mistakes.push_back(floats_only(logsumexp));
  rows.back().slack = 4;

  const auto mostly = [](double low, double high) { return whole({}, low, high); };
  rows.push_back(reduction("any", static_cast<Tensor (*)(T, const Dims&, bool)>(any), any_of, boolean, mostly(0, 1.02), all_dtypes, true));
  rows.back().differentiable = false;
  rows.push_back(reduction("all", static_cast<Tensor (*)(T, const Dims&, bool)>(all), all_of, boolean, mostly(0.98, 3), all_dtypes, true));
  rows.back().differentiable = false;
  for (Row* row : {&rows[rows.size() - 2], &rows.back()})
    add_forms(
        *row, {{{33}, {}}, {{4, 31}, {1}}},
        row->name == "any" ? static_cast<Tensor (*)(T, const Dims&, bool)>(any) : static_cast<Tensor (*)(T, const Dims&, bool)>(all),
        [=, is_any = row->name == "any"](Slice x) { return is_any ? any_of(x) : all_of(x); }, boolean, whole({}, 0, 3));

  add_arg(rows, "argmax", argmax, true);
  add_arg(rows, "argmin", argmin, false);
  add_cumulative(rows);
}

}  // namespace tern::op_cases
