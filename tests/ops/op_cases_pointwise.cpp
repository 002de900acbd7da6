// Rows of ops/pointwise.h with two operands or more: arithmetic, comparisons, choices, in-place ops. Note [The table]
// in op_cases.h.
#include <cmath>

#include "op_cases.h"
#include "ops/elementwise.h"
#include "ops/operators.h"

namespace tern::op_cases {

using namespace reference;

namespace {

/// Pairs of shapes that broadcast.
const std::vector<std::pair<Shape, Shape>> pairs = {{{0}, {0}},
                                                    {{1}, {1}},
                                                    {{31}, {31}},
                                                    {{33}, {33}},
                                                    {{1025}, {1025}},
                                                    {{}, {}},
                                                    {{3, 5}, {3, 5}},
                                                    {{4, 1}, {1, 5}},
                                                    {{}, {7}},
                                                    {{3, 4}, {4}},
                                                    {{2, 1, 3}, {5, 1}},
                                                    {{0, 3}, {1, 3}},
                                                    {{33}, {1}},
                                                    {{1025}, {}},
                                                    {{33, 31}, {31}},
                                                    {{33, 31}, {33, 1}},
                                                    {{1, 2, 1, 2, 1, 2, 1, 2}, {2, 1, 2, 1, 2, 1}}};
const std::vector<Shape> shapes = {{0}, {1}, {31}, {33}, {1025}, {}, {3, 5}, {2, 0, 3}, {1, 2, 1, 2, 1, 2, 1, 2}};

Input like(Input input, const Shape& shape) {
  input.shape = shape;
  return input;
}

DType same(DType dtype) { return dtype; }
DType numeric(DType dtype) { return dtype == DType::boolean ? DType::i64 : dtype; }
DType divided(DType dtype) { return is_floating(dtype) ? dtype : DType::f32; }
DType boolean(DType) { return DType::boolean; }

using Cases = std::vector<Case>;

/// Cases of f(a, b) for every pair of shapes.
template <class F, class G>
Cases two(F f, G g, DType (*result)(DType), const Input& a, const Input& b, std::vector<DType> dtypes = {}) {
  Cases cases;
  for (const auto& [sa, sb] : pairs)
    cases.push_back({{like(a, sa), like(b, sb)},
                     [=](const Arguments& in) -> Tensors { return {f(in[0], in[1])}; },
                     [=](const References& in) { return one(zip(in[0], in[1], result(in.dtype), g)); },
                     dtypes});
  return cases;
}

/// Cases of f(x), with a number as the other operand, for every shape.
template <class F, class G>
Cases with_number(F f, G g, DType (*result)(DType), const Input& x, std::vector<DType> dtypes = {}) {
  Cases cases;
  for (const Shape& shape : shapes)
    cases.push_back({{like(x, shape)},
                     [=](const Arguments& in) -> Tensors { return {f(in[0])}; },
                     [=](const References& in) { return one(map(in[0], result(in.dtype), g)); },
                     dtypes});
  return cases;
}

Cases joined(std::initializer_list<Cases> lists) {
  Cases all;
  for (const Cases& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<Mistake> misfits(Tensor (*f)(const Tensor&, const Tensor&)) {
  return {{[=] { f(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
          {[=] { f(sample({2, 3}), sample({2})); }, {"(2, 3)", "(2,)"}},
          {[=] { f(sample({0}), sample({3})); }, {"(0,)", "(3,)"}}};
}

const Input any = value({});
const Input nonzero = positive({});

Row arithmetic(const char* name, Tensor (*f)(T, T), double (*g)(double, double), const Input& a, const Input& b, Cases more,
               Mistake unheld) {
  Row row{name, joined({two(f, g, numeric, a, b), std::move(more)})};
  row.dtypes = all_dtypes;
  row.mistakes = misfits(f);
  row.mistakes.push_back(std::move(unheld));
  return row;
}

void add_arithmetic(Rows& rows) {
  const auto plus = [](double a, double b) { return a + b; };
  const auto minus = [](double a, double b) { return a - b; };
  const auto times = [](double a, double b) { return a * b; };
  const auto over = [](double a, double b) { return a / b; };
  const auto less = [](double a, double b) { return a < b ? a : b; };
  const auto more = [](double a, double b) { return a > b ? a : b; };

  // With integers a whole number keeps the dtype, another one gives f32.
  rows.push_back(arithmetic("add", add, plus, any, any,
                            joined({with_number([](T x) { return add(x, 3); }, [](double x) { return x + 3; }, numeric, any),
                                    with_number([](T x) { return add(x, -1); }, [](double x) { return x - 1; }, numeric, any,
                                                {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64, DType::boolean}),
                                    with_number([](T x) { return add(x, 0.5); }, [](double x) { return x + 0.5; }, divided, any)}),
                            {[] { add(sample({3}, DType::u8), -1); }, {"u8", "-1"}}));
  rows.push_back(arithmetic("sub", sub, minus, any, any,
                            joined({with_number([](T x) { return sub(x, 1); }, [](double x) { return x - 1; }, numeric, any),
                                    with_number([](T x) { return sub(x, 0.5); }, [](double x) { return x - 0.5; }, divided, any),
                                    with_number([](T x) { return sub(2, x); }, [](double x) { return 2 - x; }, numeric, any),
                                    with_number([](T x) { return sub(0.25, x); }, [](double x) { return 0.25 - x; }, divided, any)}),
                            {[] { sub(256, sample({3}, DType::u8)); }, {"u8", "256"}}));
  rows.push_back(arithmetic("mul", mul, times, any, any,
                            joined({with_number([](T x) { return mul(x, 3); }, [](double x) { return x * 3; }, numeric, any),
                                    with_number([](T x) { return mul(x, -0.5); }, [](double x) { return x * -0.5; }, divided, any)}),
                            {[] { mul(sample({3}, DType::i32), 1e10); }, {"i32"}}));
  rows.push_back(arithmetic(
      "minimum", minimum, less, any, any,
      with_number([](T x) { return minimum(x, 1); }, [](double x) { return std::min(x, 1.0); }, numeric, Input{{}, -2, 2, {}, {1}}),
      {[] { minimum(sample({3}, DType::u8), -3); }, {"u8", "-3"}}));
  rows.push_back(arithmetic(
      "maximum", maximum, more, any, any,
      joined({with_number([](T x) { return maximum(x, 1); }, [](double x) { return std::max(x, 1.0); }, numeric, Input{{}, -2, 2, {}, {1}}),
              with_number([](T x) { return maximum(x, 0.5); }, [](double x) { return std::max(x, 0.5); }, divided,
                          Input{{}, -2, 2, {}, {0.5}})}),
      {[] { maximum(sample({3}, DType::i64), 1e30); }, {"i64"}}));

  Row division{"div", joined({two([](T a, T b) { return div(a, b); }, over, divided, any, Input{{}, 1, 4}),
                              with_number([](T x) { return div(x, 4); }, [](double x) { return x / 4; }, divided, any),
                              with_number([](T x) { return div(3, x); }, [](double x) { return 3 / x; }, divided, Input{{}, 1, 4})})};
  division.dtypes = numbers;
  division.mistakes = misfits(div);
  rows.push_back(division);

  Row power{"pow",
            joined({two([](T a, T b) { return pow(a, b); }, [](double a, double b) { return std::pow(a, b); }, same, nonzero, any, floats),
                    two([](T a, T b) { return pow(a, b); }, [](double a, double b) { return std::pow(a, b); }, numeric, Input{{}, -3, 4},
                        Input{{}, 0, 4}, integers),
                    with_number([](T x) { return pow(x, 3); }, [](double x) { return x * x * x; }, same, any, numbers),
                    with_number([](T x) { return pow(x, 1); }, [](double x) { return x; }, same, any, floats),
                    with_number([](T x) { return pow(x, 2); }, [](double x) { return x * x; }, same, any, floats),
                    with_number([](T x) { return pow(x, -1.5); }, [](double x) { return std::pow(x, -1.5); }, same, nonzero, floats),
                    with_number([](T x) { return pow(x, -1); }, [](double x) { return 1 / x; }, divided, Input{{}, 1, 4}, integers),
                    with_number([](T x) { return pow(1.7, x); }, [](double x) { return std::pow(1.7, x); }, divided, any, floats),
                    with_number([](T x) { return pow(2, x); }, [](double x) { return std::pow(2, x); }, same, Input{{}, 0, 5}, integers)})};
  for (Case& op : with_number([](T x) { return pow(x, 0); }, [](double) { return 1.0; }, same, any, floats)) {
    op.twice = false;  // the derivative is 0 and depends on nothing
    power.cases.push_back(op);
  }
  power.slack = 4;
  power.gradient_roundings = 12;  // with a logarithm, a power and products of both
  power.mistakes = misfits(pow);
  rows.push_back(power);

  // The sign is the divisor's. Floats stay away from multiples of it, where the result jumps.
  const auto modulo = [](double a, double b) {
    const double r = b == 0 ? 0 : std::fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  };
  const auto number_modulo = [=](double x) { return modulo(x, -2); };
  const Input between{{}, 2.1, 2.9}, above{{}, 1.5, 2}, below{{}, -2, -1.5}, apart{{}, -5, 5, {}, {-4, -2, 0, 2, 4}};
  const std::vector<DType> whole_numbers = {DType::i32, DType::i64, DType::u8, DType::boolean};
  Row rest{"remainder",
           joined({two([](T a, T b) { return remainder(a, b); }, modulo, numeric, between, above, floats),
                   two([](T a, T b) { return remainder(a, b); }, modulo, numeric, between, below, floats),
                   two([](T a, T b) { return remainder(a, b); }, modulo, numeric, Input{{}, -9, 9}, Input{{}, -3, 4}, whole_numbers),
                   with_number([](T x) { return remainder(x, -2); }, number_modulo, same, apart,
                               {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64})})};
  rest.dtypes = all_dtypes;
  rest.mistakes = misfits(remainder);
  rest.mistakes.push_back({[] { remainder(sample({3}, DType::i64), 0); }, {"other than 0"}});
  rows.push_back(rest);
  Row percent{"operator%", joined({two([](T a, T b) { return a % b; }, modulo, same, between, above),
                                   with_number([](T x) { return x % -2; }, number_modulo, same, apart)})};
  percent.shown_name = "remainder";
  percent.mistakes = misfits([](T a, T b) { return a % b; });
  rows.push_back(percent);
  Row angle{"atan2", two([](T a, T b) { return atan2(a, b); }, [](double a, double b) { return std::atan2(a, b); }, divided,
                         Input{{}, -3, 3, {}, {0}}, Input{{}, -3, 3, {}, {0}})};
  angle.dtypes = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32};
  angle.slack = 4;
  angle.mistakes = misfits(atan2);
  rows.push_back(angle);

  const auto operators = [&](const char* name, const char* shown, Tensor (*f)(T, T), Cases cases) {
    Row row{name, std::move(cases)};
    row.dtypes = numbers;
    row.shown_name = shown;
    row.mistakes = misfits(f);
    rows.push_back(row);
  };
  operators(
      "operator+", "add", [](T a, T b) { return a + b; },
      joined({two([](T a, T b) { return a + b; }, plus, same, any, any),
              with_number([](T x) { return x + 3; }, [](double x) { return x + 3; }, same, any),
              with_number([](T x) { return 3 + x; }, [](double x) { return x + 3; }, same, any)}));
  operators(
      "operator-", "sub", [](T a, T b) { return a - b; },
      joined({two([](T a, T b) { return a - b; }, minus, same, any, any),
              with_number([](T x) { return x - 3; }, [](double x) { return x - 3; }, same, any),
              with_number([](T x) { return 3 - x; }, [](double x) { return 3 - x; }, same, any),
              with_number([](T x) { return -x; }, [](double x) { return -x; }, same, any)}));
  operators(
      "operator*", "mul", [](T a, T b) { return a * b; },
      joined({two([](T a, T b) { return a * b; }, times, same, any, any),
              with_number([](T x) { return x * 3; }, [](double x) { return x * 3; }, same, any),
              with_number([](T x) { return 3 * x; }, [](double x) { return x * 3; }, same, any)}));
  operators(
      "operator/", "div", [](T a, T b) { return a / b; },
      joined({two([](T a, T b) { return a / b; }, over, divided, any, Input{{}, 1, 4}),
              with_number([](T x) { return x / 4; }, [](double x) { return x / 4; }, divided, any),
              with_number([](T x) { return 3 / x; }, [](double x) { return 3 / x; }, divided, Input{{}, 1, 4})}));
}

void add_comparisons(Rows& rows) {
  const auto comparison = [&](const char* name, Tensor (*f)(T, T), Tensor (*with)(T, double), bool (*g)(double, double)) {
    // Whole numbers, so that some are equal.
    const auto number = [=](double x, double other) { return g(x, other); };
    Row row{
        name,
        joined({two(f, g, boolean, whole({}), whole({})),
                with_number([=](T x) { return with(x, 1); }, [=](double x) { return number(x, 1); }, boolean, whole({})),
                with_number([=](T x) { return with(x, -1); }, [=](double x) { return number(x, -1); }, boolean, whole({}, -2, 2)),
                with_number([=](T x) { return with(x, 0.5); }, [=](double x) { return number(x, 0.5); }, boolean, whole({})),
                with_number([=](T x) { return with(x, 1e10); }, [=](double x) { return number(x, 1e10); }, boolean, whole({}), numbers)})};
    row.dtypes = all_dtypes;
    row.differentiable = false;
    row.mistakes = misfits(f);
    rows.push_back(row);
  };
  comparison("eq", eq, eq, [](double a, double b) { return a == b; });
  comparison("ne", ne, ne, [](double a, double b) { return a != b; });
  comparison("lt", lt, lt, [](double a, double b) { return a < b; });
  comparison("le", le, le, [](double a, double b) { return a <= b; });
  comparison("gt", gt, gt, [](double a, double b) { return a > b; });
  comparison("ge", ge, ge, [](double a, double b) { return a >= b; });

  comparison(
      "operator==", [](T a, T b) { return a == b; }, [](T a, double b) { return a == b; }, [](double a, double b) { return a == b; });
  rows.back().shown_name = "eq";
  comparison(
      "operator!=", [](T a, T b) { return a != b; }, [](T a, double b) { return b != a; }, [](double a, double b) { return a != b; });
  rows.back().shown_name = "ne";
  comparison("operator<", [](T a, T b) { return a < b; }, [](T a, double b) { return b > a; }, [](double a, double b) { return a < b; });
  rows.back().shown_name = "lt";
  comparison(
      "operator<=", [](T a, T b) { return a <= b; }, [](T a, double b) { return b >= a; }, [](double a, double b) { return a <= b; });
  rows.back().shown_name = "le";
  comparison("operator>", [](T a, T b) { return a > b; }, [](T a, double b) { return b < a; }, [](double a, double b) { return a > b; });
  rows.back().shown_name = "gt";
  comparison(
      "operator>=", [](T a, T b) { return a >= b; }, [](T a, double b) { return b <= a; }, [](double a, double b) { return a >= b; });
  rows.back().shown_name = "ge";

  const auto logical = [&](const char* name, Tensor (*f)(T, T), bool (*g)(double, double)) {
    Row row{name, two(f, g, boolean, truth({}), truth({}))};
    row.dtypes = {DType::boolean};
    row.differentiable = false;
    row.mistakes = {{[=] { f(sample({3}, DType::boolean), sample({4}, DType::boolean)); }, {"(3,)", "(4,)"}},
                    {[=] { f(sample({3}), sample({3}, DType::boolean)); }, {"bool", "f32"}},
                    {[=] { f(sample({3}, DType::boolean), sample({3}, DType::i64)); }, {"bool", "i64"}}};
    rows.push_back(row);
  };
  logical("logical_and", logical_and, [](double a, double b) { return a != 0 && b != 0; });
  logical("logical_or", logical_or, [](double a, double b) { return a != 0 || b != 0; });
  logical("operator&", [](T a, T b) { return a & b; }, [](double a, double b) { return a != 0 && b != 0; });
  rows.back().shown_name = "logical_and";
  logical("operator|", [](T a, T b) { return a | b; }, [](double a, double b) { return a != 0 || b != 0; });
  rows.back().shown_name = "logical_or";
  logical("operator^", [](T a, T b) { return a ^ b; }, [](double a, double b) { return (a != 0) != (b != 0); });
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
  close.mistakes = misfits([](T a, T b) { return isclose(a, b); });
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

void add_in_place(Rows& rows) {
  const std::vector<std::pair<Shape, Shape>> targets = {{{0}, {0}}, {{1}, {1}},    {{31}, {31}},     {{33}, {33}},    {{1025}, {1025}},
                                                        {{}, {}},   {{3, 5}, {5}}, {{3, 5}, {3, 1}}, {{2, 3, 4}, {}}, {{33, 31}, {31}}};
  const auto in_place = [&](const char* name, Tensor (*f)(T, T), double (*g)(double, double), Tensor (*with)(T, double)) {
    Row row{name, {}};
    row.dtypes = numbers;
    row.differentiable = false;
    for (const auto& [target, other] : targets)
      row.cases.push_back({{edited(target), value(other)},
                           [=](const Arguments& in) -> Tensors { return {f(in[0], in[1])}; },
                           [=](const References& in) { return one(zip(in[0], in[1], in.dtype, g)); }});
    for (const auto& [target, other] : targets)
      if (with)
        row.cases.push_back({{edited(target)},
                             [=](const Arguments& in) -> Tensors { return {with(in[0], 3)}; },
                             [=](const References& in) { return one(map(in[0], in.dtype, [=](double x) { return g(x, 3); })); }});
    row.mistakes = {{[=] { f(sample({3}), sample({2, 3})); }, {"(3,)", "(2, 3)"}},
                    {[=] { f(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                    {[=] { f(sample({3}), sample({3}, DType::f64)); }, {"f32", "f64"}},
                    {[=] { f(sample({3}, DType::boolean), sample({3}, DType::boolean)); }, {"bool"}},
                    {[=] { f(sample({1}).window({3}, {0}, 0), sample({3})); }, {"share memory"}}};
    if (with) {
      row.mistakes.push_back({[=] { with(sample({3}, DType::i64), 0.5); }, {"i64", "0.5"}});
      row.mistakes.push_back({[=] { with(sample({3}, DType::boolean), 1); }, {"bool"}});
    }
    rows.push_back(row);
  };
  in_place("add_", add_, [](double a, double b) { return a + b; }, add_);
  in_place("sub_", sub_, [](double a, double b) { return a - b; }, sub_);
  in_place("mul_", mul_, [](double a, double b) { return a * b; }, mul_);
  in_place(
      "operator+=", [](T a, T b) -> Tensor { return a += b; }, [](double a, double b) { return a + b; },
      [](T a, double b) -> Tensor { return a += b; });
  rows.back().shown_name = "add_";
  in_place(
      "operator-=", [](T a, T b) -> Tensor { return a -= b; }, [](double a, double b) { return a - b; },
      [](T a, double b) -> Tensor { return a -= b; });
  rows.back().shown_name = "sub_";
  in_place(
      "operator*=", [](T a, T b) -> Tensor { return a *= b; }, [](double a, double b) { return a * b; },
      [](T a, double b) -> Tensor { return a *= b; });
  rows.back().shown_name = "mul_";

  for (const bool is_operator : {false, true}) {
    Row row{is_operator ? "operator/=" : "div_", {}};
    row.shown_name = "div_";
    row.differentiable = false;
    for (const auto& [target, other] : targets) {
      row.cases.push_back(
          {{edited(target), Input{other, 1, 4}},
           [=](const Arguments& in) -> Tensors { return {is_operator ? Tensor(in[0] /= in[1]) : div_(in[0], in[1])}; },
           [](const References& in) { return one(zip(in[0], in[1], in.dtype, [](double a, double b) { return a / b; })); }});
      row.cases.push_back({{edited(target)},
                           [=](const Arguments& in) -> Tensors { return {is_operator ? Tensor(in[0] /= 3) : div_(in[0], 3)}; },
                           [](const References& in) { return one(map(in[0], in.dtype, [](double x) { return x / 3; })); }});
    }
    row.mistakes = {{[] { div_(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                    {[] { div_(sample({3}), sample({3}, DType::f64)); }, {"f32", "f64"}},
                    {[] { sample({3}, DType::i64) /= 2; }, {"floating", "i64"}}};
    rows.push_back(row);
  }
}

void add_swiglu(Rows& rows) {
  Row row{"fused_swiglu", {}};
  for (const Shape& shape : shapes)
    row.cases.push_back({{value(shape, -9, 9), value(shape)},
                         [](const Arguments& in) -> Tensors { return {fused_swiglu(in[0], in[1])}; },
                         [](const References& in) {
                           return one(zip(in[0], in[1], in.dtype, [](double gate, double x) { return gate / (1 + std::exp(-gate)) * x; }));
                         }});
  row.roundings = 2;  // the plain form rounds the gate, too
  row.mistakes = {{[] { fused_swiglu(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                  {[] { fused_swiglu(sample({3}), sample({3}, DType::f64)); }, {"f32", "f64"}},
                  {[] { fused_swiglu(sample({3}, DType::i64), sample({3}, DType::i64)); }, {"i64"}}};
  rows.push_back(row);
}

void add_sum_to(Rows& rows) {
  Row row{"sum_to", {}};
  for (const auto& [shape, into] : std::vector<std::pair<Shape, Shape>>{{{0}, {0}},
                                                                        {{1}, {1}},
                                                                        {{31}, {1}},
                                                                        {{33}, {}},
                                                                        {{1025}, {1}},
                                                                        {{}, {}},
                                                                        {{3, 5}, {5}},
                                                                        {{3, 5}, {3, 1}},
                                                                        {{2, 3, 4}, {3, 1}},
                                                                        {{2, 3, 4}, {1, 3, 4}},
                                                                        {{0, 3}, {3}},
                                                                        {{33, 31}, {31}},
                                                                        {{2, 3, 4}, {2, 3, 4}}})
    row.cases.push_back({{value(shape)},
                         [into = into](const Arguments& in) -> Tensors { return {sum_to(in[0], into)}; },
                         [into = into](const References& in) {
                           Array y = make(into, in.dtype, [](const Shape&) { return 0; });
                           each(in[0].shape, [&](const Shape& i) { y(inside(y, i)) += in[0](i); });
                           return one(y);
                         }});
  row.slack = 10;
  row.mistakes = {{[] { sum_to(sample({3}), {4}); }, {"(3,)", "(4,)"}},
                  {[] { sum_to(sample({3}), {1, 3}); }, {"(3,)", "(1, 3)"}},
                  {[] { sum_to(sample({2, 3}), {2}); }, {"(2, 3)", "(2,)"}}};
  rows.push_back(row);
}

}  // namespace

void add_pointwise(Rows& rows) {
  add_arithmetic(rows);
  add_comparisons(rows);
  add_choices(rows);
  add_in_place(rows);
  add_swiglu(rows);
  add_sum_to(rows);
}

}  // namespace tern::op_cases
