// Rows of ops/pointwise.h that compare, and that choose. Note [The table] in op_cases.h.
#include <cmath>

#include "op_cases_broadcast.h"
#include "ops/pointwise.h"

namespace tern::op_cases {

using namespace reference;

namespace {

using Whole = std::int64_t;

/// Cases and mistakes of an operator on the bits of integers, for a row that has those of bool, if it has any.
void add_bits(Row& row, Tensor (*f)(T, T), Tensor (*with)(T, Whole), Whole (*g)(Whole, Whole)) {
  for (Case& op : row.cases) op.dtypes = {DType::boolean};
  if (!row.cases.empty()) row.dtypes = {DType::i32, DType::i64, DType::u8, DType::boolean};
  const auto exact = [g](double a, double b) { return double(g(Whole(a), Whole(b))); };
  Cases cases = two(f, exact, same, value({}, -9, 9), value({}, -3, 70), integers);
  for (const Whole number : {Whole(0), Whole(3), Whole(31), Whole(64), Whole(-1)})
    for (const Case& op : with_number([=](T x) { return with(x, number); }, [=](double x) { return exact(x, double(number)); }, same,
                                      value({}, -9, 9), number < 0 ? std::vector{DType::i32, DType::i64} : integers))
      cases.push_back(op);
  row.cases.insert(row.cases.end(), cases.begin(), cases.end());
  row.mistakes.push_back({[=] { with(sample({3}), 1); }, {"integers", "f32"}});
  row.mistakes.push_back({[=] { with(sample({3}, DType::u8), -1); }, {"u8", "-1"}});
  row.mistakes.push_back({[=] { with(sample({3}, DType::i32), Whole(1) << 31); }, {"i32", "2147483648"}});
}

void add_comparisons(Rows& rows) {
  const auto comparison = [&](const char* name, OfOperands f, bool (*g)(double, double)) {
    Row row{name, two(f, g, boolean, whole({}), whole({}))};
    // Whole numbers, so that some are equal.
    const auto number = [&](double other, const Input& x, std::vector<DType> dtypes = {}) {
      for (const Cases& cases : {with_number([=](T a) { return f(a, other); }, [=](double a) { return g(a, other); }, boolean, x, dtypes),
                                 with_number([=](T a) { return f(other, a); }, [=](double a) { return g(other, a); }, boolean, x, dtypes)})
        row.cases.insert(row.cases.end(), cases.begin(), cases.end());
    };
    number(1, whole({})), number(-1, whole({}, -2, 2)), number(0.5, whole({})), number(1e10, whole({}), numbers);
    row.dtypes = all_dtypes;
    row.differentiable = false;
    row.mistakes = shape_mistakes(f);
    row.mistakes.push_back({[=] { f(1, 2); }, {"two numbers"}});
    rows.push_back(row);
  };
  comparison("eq", eq, [](double a, double b) { return a == b; });
  comparison("ne", ne, [](double a, double b) { return a != b; });
  comparison("lt", lt, [](double a, double b) { return a < b; });
  comparison("le", le, [](double a, double b) { return a <= b; });
  comparison("gt", gt, [](double a, double b) { return a > b; });
  comparison("ge", ge, [](double a, double b) { return a >= b; });

  comparison("operator==", [](Either a, Either b) { return a == b; }, [](double a, double b) { return a == b; });
  rows.back().shown_name = "eq";
  comparison("operator!=", [](Either a, Either b) { return a != b; }, [](double a, double b) { return a != b; });
  rows.back().shown_name = "ne";
  comparison("operator<", [](Either a, Either b) { return a < b; }, [](double a, double b) { return a < b; });
  rows.back().shown_name = "lt";
  comparison("operator<=", [](Either a, Either b) { return a <= b; }, [](double a, double b) { return a <= b; });
  rows.back().shown_name = "le";
  comparison("operator>", [](Either a, Either b) { return a > b; }, [](double a, double b) { return a > b; });
  rows.back().shown_name = "gt";
  comparison("operator>=", [](Either a, Either b) { return a >= b; }, [](double a, double b) { return a >= b; });
  rows.back().shown_name = "ge";
}

void add_logic(Rows& rows) {
  const auto logical = [&](const char* name, Tensor (*f)(T, T), bool (*g)(double, double)) {
    Row row{name, two(f, g, boolean, truth({}), truth({}))};
    row.dtypes = {DType::boolean};
    row.differentiable = false;
    row.mistakes = {{[=] { f(sample({3}, DType::boolean), sample({4}, DType::boolean)); }, {"(3,)", "(4,)"}},
                    {[=] { f(sample({3}), sample({3}, DType::boolean)); }, {"bool", "f32"}},
                    {[=] { f(sample({3}, DType::boolean), sample({3})); }, {"bool", "f32"}}};
    rows.push_back(row);
  };
  logical("logical_and", logical_and, [](double a, double b) { return a != 0 && b != 0; });
  logical("logical_or", logical_or, [](double a, double b) { return a != 0 || b != 0; });
  logical("operator&", [](T a, T b) { return a & b; }, [](double a, double b) { return a != 0 && b != 0; });
  add_bits(rows.back(), [](T a, T b) { return a & b; }, [](T a, std::int64_t b) { return a & b; }, [](Whole a, Whole b) { return a & b; });
  logical("operator|", [](T a, T b) { return a | b; }, [](double a, double b) { return a != 0 || b != 0; });
  add_bits(rows.back(), [](T a, T b) { return a | b; }, [](T a, std::int64_t b) { return a | b; }, [](Whole a, Whole b) { return a | b; });
  logical("operator^", [](T a, T b) { return a ^ b; }, [](double a, double b) { return (a != 0) != (b != 0); });
  add_bits(rows.back(), [](T a, T b) { return a ^ b; }, [](T a, std::int64_t b) { return a ^ b; }, [](Whole a, Whole b) { return a ^ b; });
  const auto shift = [&](const char* name, Tensor (*f)(T, T), Tensor (*with)(T, std::int64_t), Whole (*g)(Whole, Whole)) {
    Row row{name, {}};
    row.differentiable = false;
    row.mistakes = shape_mistakes(f);
    for (Mistake& mistake : row.mistakes) mistake.contains = {"integers", "f32"};
    row.mistakes.push_back({[=] { f(sample({3}, DType::i64), sample({4}, DType::i64)); }, {"(3,)", "(4,)"}});
    row.mistakes.push_back({[=] { f(sample({3}, DType::boolean), sample({3}, DType::i64)); }, {"integers", "bool", "i64"}});
    row.mistakes.push_back({[=] { with(sample({3}, DType::boolean), 1); }, {"integers", "bool"}});
    row.dtypes = integers;
    add_bits(row, f, with, g);
    rows.push_back(row);
  };
  // Counts of -1, and of as many bits as an element has and more, shift all of them out.
  shift(
      "operator<<", [](T a, T b) { return a << b; }, [](T a, std::int64_t b) { return a << b; },
      [](Whole a, Whole b) { return b < 0 || b > 63 ? 0 : Whole(std::uint64_t(a) << b); });
  shift(
      "operator>>", [](T a, T b) { return a >> b; }, [](T a, std::int64_t b) { return a >> b; },
      [](Whole a, Whole b) { return a >> (b < 0 || b > 63 ? 63 : b); });
  Row negation{"logical_not", with_number(logical_not, [](double x) { return double(x == 0); }, boolean, truth({}))};
  negation.dtypes = {DType::boolean};
  negation.differentiable = false;
  negation.mistakes = {{[] { logical_not(sample({3})); }, {"bool", "f32"}}};
  rows.push_back(negation);
  negation.shown_name = "logical_not";
  const std::vector<std::pair<const char*, Tensor (*)(T)>> signs = {{"operator!", [](T x) { return !x; }},
                                                                    {"operator~", [](T x) { return ~x; }}};
  for (const auto& [name, f] : signs) {
    negation.name = name;
    negation.cases = with_number(f, [](double x) { return double(x == 0); }, boolean, truth({}));
    rows.push_back(negation);
  }
  rows.back().shown_name = "operator~";
  rows.back().mistakes = {{[] { ~sample({3}); }, {"integers", "f32"}}};
  for (Case& op : rows.back().cases) op.dtypes = {DType::boolean};
  rows.back().dtypes = {DType::i32, DType::i64, DType::u8, DType::boolean};
  for (const Case& op : with_number([](T x) { return ~x; }, [](double x) { return -1 - x; }, same, value({}, -9, 9), integers))
    rows.back().cases.push_back(op);
}

void add_tests(Rows& rows) {
  // Tests for NaN and infinities are in everyday_ops_test.cpp: the table's inputs are finite.
  const auto finite = [&](const char* name, Tensor (*f)(T), bool result) {
    Row row{name, with_number(f, [result](double) { return double(result); }, boolean, any)};
    row.dtypes = numbers;
    row.differentiable = false;
    rows.push_back(row);
  };
  finite("isnan", isnan, false);
  finite("isinf", isinf, false);
  finite("isfinite", isfinite, true);
  const auto near = [](double a, double b) { return double(std::abs(a - b) <= 0.5 + 0.25 * std::abs(b)); };
  // Quarters, so that no difference is near the bound but for a rounding.
  Row close{"isclose", two([](T a, T b) { return isclose(a, b, 0.25, 0.5); }, near, boolean, whole({}, -4, 4), whole({}, -4, 4))};
  close.dtypes = numbers;
  close.differentiable = false;
  close.mistakes = shape_mistakes([](T a, T b) { return isclose(a, b); });
  close.mistakes.push_back({[] { isclose(sample({3}), sample({3}), -1); }, {"-1"}});
  rows.push_back(close);
  Row all_close{"allclose", {}};
  for (const auto& [a, b] : pairs)
    all_close.cases.push_back(
        {{value(a, -0.4, 0.4), value(b, -0.4, 0.4)},
         [](const Arguments& in) -> Tensors { return {Tensor::scalar(allclose(in[0], in[1], 0.1, 0.6), in[0].device())}; },
         [](const References& in) {
           const Array close_ones =
               zip(in[0], in[1], DType::boolean, [](double x, double y) { return std::abs(x - y) <= 0.6 + 0.1 * std::abs(y); });
           return one({{}, DType::boolean, {double(sum_of(close_ones.values) == double(close_ones.values.size()))}});
         }});
  all_close.dtypes = numbers;
  all_close.differentiable = false;
  all_close.mistakes = {{[] { allclose(sample({3}), sample({4})); }, {"(3,)", "(4,)"}, "isclose"}};
  rows.push_back(all_close);
}

void add_choices(Rows& rows) {
  Row choice{"where", {}};
  choice.dtypes = all_dtypes;
  struct Three {
    Shape condition, a, b;
  };
  for (const Three& s : {Three{{0}, {0}, {0}},
                         {{1}, {1}, {1}},
                         {{31}, {31}, {31}},
                         {{33}, {33}, {33}},
                         {{1025}, {1025}, {1025}},
                         {{}, {}, {}},
                         {{3, 4}, {3, 4}, {3, 4}},
                         {{4, 1}, {1, 5}, {}},
                         {{}, {3, 1}, {4}},
                         {{2, 3}, {3}, {2, 1}},
                         {{5}, {2, 1}, {1}}})
    choice.cases.push_back({{truth(s.condition), value(s.a), value(s.b)},
                            [](const Arguments& in) -> Tensors { return {where(in[0], in[1], in[2])}; },
                            [](const References& in) {
                              const Shape shape = joint_shape(in[0].shape, joint_shape(in[1].shape, in[2].shape));
                              return one(make(shape, in.dtype, [&](const Shape& i) {
                                return broadcast_at(in[0], i) != 0 ? broadcast_at(in[1], i) : broadcast_at(in[2], i);
                              }));
                            }});
  const auto number = [&](bool tensor_first, double other, DType (*result)(DType), std::vector<DType> dtypes) {
    for (const auto& [condition, x] : pairs)
      choice.cases.push_back(
          {{truth(condition), value(x)},
           [=](const Arguments& in) -> Tensors { return {tensor_first ? where(in[0], in[1], other) : where(in[0], other, in[1])}; },
           [=](const References& in) {
             return one(zip(in[0], in[1], result(in.dtype), [=](double c, double v) { return (c != 0) == tensor_first ? v : other; }));
           },
           dtypes});
  };
  number(true, 3, same, numbers);
  number(false, 3, same, numbers);
  number(true, 0.5, divided, numbers);
  number(true, 0, same, {DType::boolean});
  choice.mistakes = {{[] { where(sample({3}), sample({3}), sample({3})); }, {"bool", "f32"}},
                     {[] { where(sample({3}, DType::boolean), sample({4}), sample({4})); }, {"(3,)", "(4,)"}},
                     {[] { where(sample({3}, DType::boolean), sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                     {[] { where(sample({3}, DType::boolean), 1.0, sample({4})); }, {"(3,)", "(4,)"}},
                     {[] { where(sample({3}, DType::boolean), 1.0, 2.0); }, {"two numbers"}},
                     {[] { where(sample({3}, DType::u8), sample({3}), 1.0); }, {"bool", "u8"}}};
  rows.push_back(choice);

  Row fill{"masked_fill", {}};
  fill.dtypes = numbers;
  for (const auto& [shape, mask] : std::vector<std::pair<Shape, Shape>>{{{0}, {0}},
                                                                        {{1}, {1}},
                                                                        {{31}, {31}},
                                                                        {{33}, {33}},
                                                                        {{1025}, {1025}},
                                                                        {{}, {}},
                                                                        {{3, 5}, {3, 5}},
                                                                        {{3, 5}, {5}},
                                                                        {{3, 5}, {3, 1}},
                                                                        {{2, 3, 4}, {}},
                                                                        {{33, 31}, {33, 1}}})
    fill.cases.push_back(
        {{value(shape), truth(mask)},
         [](const Arguments& in) -> Tensors { return {masked_fill(in[0], in[1], 7)}; },
         [](const References& in) { return one(zip(in[0], in[1], in.dtype, [](double x, double m) { return m != 0 ? 7 : x; })); }});
  fill.mistakes = {{[] { masked_fill(sample({3}), sample({2, 3}, DType::boolean), 1); }, {"(3,)", "(2, 3)"}},
                   {[] { masked_fill(sample({3}), sample({4}, DType::boolean), 1); }, {"(3,)", "(4,)"}},
                   {[] { masked_fill(sample({3}), sample({3}), 1); }, {"bool", "f32"}}};
  rows.push_back(fill);
}

}  // namespace

void add_compare(Rows& rows) {
  add_comparisons(rows);
  add_logic(rows);
  add_tests(rows);
  add_choices(rows);
}

}  // namespace tern::op_cases
