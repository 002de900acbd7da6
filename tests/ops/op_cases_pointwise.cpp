// Rows of ops/pointwise.h with two operands: arithmetic, in-place ops. Note [The table] in op_cases.h.
#include <cmath>

#include "op_cases_broadcast.h"
#include "ops/pointwise.h"

namespace tern::op_cases {

using namespace reference;

namespace {

Row arithmetic(const char* name, OfOperands f, double (*g)(double, double), const Input& a, const Input& b, Cases more, Mistake unheld) {
  Row row{name, joined({two(f, g, numeric, a, b), std::move(more)})};
  row.dtypes = all_dtypes;
  row.mistakes = shape_mistakes(f);
  row.mistakes.push_back(std::move(unheld));
  row.mistakes.push_back({[=] { f(1, 2); }, {"two numbers"}});
  return row;
}

double plus(double a, double b) { return a + b; }
double minus(double a, double b) { return a - b; }
double times(double a, double b) { return a * b; }
double over(double a, double b) { return a / b; }

void add_arithmetic(Rows& rows) {
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
  division.mistakes = shape_mistakes(div);
  rows.push_back(division);
}

void add_power(Rows& rows) {
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
  power.mistakes = shape_mistakes(pow);
  rows.push_back(power);
}

/// The sign is the divisor's.
double modulo(double a, double b) {
  const double r = b == 0 ? 0 : std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
double floored(double a, double b) { return b == 0 ? 0 : std::floor(a / b); }

const std::vector<DType> whole_numbers = {DType::i32, DType::i64, DType::u8, DType::boolean};

/// Floats stay away from multiples of the divisor, where the result jumps.
void add_remainder(Rows& rows) {
  const auto number_modulo = [=](double x) { return modulo(x, -2); };
  const Input between{{}, 2.1, 2.9}, above{{}, 1.5, 2}, below{{}, -2, -1.5}, apart{{}, -5, 5, {}, {-4, -2, 0, 2, 4}};
  const std::vector<DType> signed_numbers = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64};
  Row rest{
      "remainder",
      joined({two([](T a, T b) { return remainder(a, b); }, modulo, numeric, between, above, floats),
              two([](T a, T b) { return remainder(a, b); }, modulo, numeric, between, below, floats),
              two([](T a, T b) { return remainder(a, b); }, modulo, numeric, Input{{}, -9, 9}, Input{{}, -3, 4}, whole_numbers),
              with_number([](T x) { return remainder(x, -2); }, number_modulo, same, apart, signed_numbers),
              with_number([](T x) { return remainder(5, x); }, [](double x) { return modulo(5, x); }, same, Input{{}, 1.8, 2.4}, floats),
              with_number([](T x) { return remainder(5, x); }, [](double x) { return modulo(5, x); }, numeric, Input{{}, -3, 4},
                          whole_numbers)})};
  rest.dtypes = all_dtypes;
  rest.mistakes = shape_mistakes(remainder);
  rest.mistakes.push_back({[] { remainder(sample({3}, DType::i64), 0); }, {"other than 0"}});
  rows.push_back(rest);
  Row percent{"operator%",
              joined({two([](T a, T b) { return a % b; }, modulo, same, between, above),
                      with_number([](T x) { return x % -2; }, number_modulo, same, apart),
                      with_number([](T x) { return 5 % x; }, [](double x) { return modulo(5, x); }, same, Input{{}, 1.8, 2.4})})};
  percent.shown_name = "remainder";
  percent.mistakes = shape_mistakes([](T a, T b) { return a % b; });
  rows.push_back(percent);

  Row quotient{
      "floor_divide",
      joined(
          {two([](T a, T b) { return floor_divide(a, b); }, floored, numeric, between, above, floats),
           two([](T a, T b) { return floor_divide(a, b); }, floored, numeric, between, below, floats),
           two([](T a, T b) { return floor_divide(a, b); }, floored, numeric, Input{{}, -9, 9}, Input{{}, -3, 4}, whole_numbers),
           with_number([](T x) { return floor_divide(x, -2); }, [](double x) { return std::floor(x / -2); }, same, apart, signed_numbers),
           with_number([](T x) { return floor_divide(5, x); }, [](double x) { return floored(5, x); }, same, Input{{}, 1.8, 2.4}, floats),
           with_number([](T x) { return floor_divide(5, x); }, [](double x) { return floored(5, x); }, numeric, Input{{}, -3, 4},
                       whole_numbers)})};
  for (Case& op : quotient.cases) op.twice = false;  // the derivative is 0 and depends on nothing
  quotient.dtypes = all_dtypes;
  quotient.mistakes = shape_mistakes(floor_divide);
  quotient.mistakes.push_back({[] { floor_divide(sample({3}, DType::i64), 0); }, {"other than 0"}});
  quotient.mistakes.push_back({[] { floor_divide(sample({3}, DType::u8), -1); }, {"u8", "-1"}});
  rows.push_back(quotient);
}

void add_atan2(Rows& rows) {
  Row angle{"atan2", two([](T a, T b) { return atan2(a, b); }, [](double a, double b) { return std::atan2(a, b); }, divided,
                         Input{{}, -3, 3, {}, {0}}, Input{{}, -3, 3, {}, {0}})};
  angle.dtypes = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32};
  angle.slack = 4;
  angle.mistakes = shape_mistakes(atan2);
  rows.push_back(angle);
}

void add_operators(Rows& rows) {
  const auto operators = [&](const char* name, const char* shown, Tensor (*f)(T, T), Cases cases) {
    Row row{name, std::move(cases)};
    row.dtypes = numbers;
    row.shown_name = shown;
    row.mistakes = shape_mistakes(f);
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

/// Shapes of targets, and of what broadcasts to them.
const std::vector<std::pair<Shape, Shape>> targets = {{{0}, {0}}, {{1}, {1}},    {{31}, {31}},     {{33}, {33}},    {{1025}, {1025}},
                                                      {{}, {}},   {{3, 5}, {5}}, {{3, 5}, {3, 1}}, {{2, 3, 4}, {}}, {{33, 31}, {31}}};

/// Powers, remainders and quotients in place.
void add_divided_in_place(Rows& rows) {
  const auto in_place = [&](const char* name, Tensor (*f)(T, Either), double (*g)(double, double),
                            const std::vector<std::pair<Input, Input>>& operands, double number) {
    Row row{name, {}};
    row.dtypes = numbers;
    row.differentiable = false;
    row.slack = 4;  // of a power
    for (const auto& [target, other] : targets)
      for (const bool is_whole : {false, true}) {
        auto [a, b] = operands[is_whole];
        a = like(a, target), a.edited = true;
        row.cases.push_back({{a, like(b, other)},
                             [=](const Arguments& in) -> Tensors { return {f(in[0], in[1])}; },
                             [=](const References& in) { return one(zip(in[0], in[1], in.dtype, g)); },
                             is_whole ? integers : floats});
        row.cases.push_back({{a},
                             [=](const Arguments& in) -> Tensors { return {f(in[0], number)}; },
                             [=](const References& in) { return one(map(in[0], in.dtype, [=](double x) { return g(x, number); })); },
                             is_whole ? integers : floats});
      }
    row.mistakes = {{[=] { f(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                    {[=] { f(sample({3}), sample({3}, DType::f64)); }, {"f32", "f64"}},
                    {[=] { f(sample({3}, DType::i64), 0.5); }, {"i64", "0.5"}},
                    {[=] { f(sample({3}, DType::boolean), 1); }, {"bool"}}};
    rows.push_back(row);
  };
  const std::pair<Input, Input> apart = {Input{{}, 2.1, 2.9}, Input{{}, 1.5, 2}}, whole = {Input{{}, -9, 9}, Input{{}, -3, 4}};
  in_place("pow_", pow_, [](double a, double b) { return std::pow(a, b); }, {{nonzero, any}, {Input{{}, -3, 4}, Input{{}, 0, 4}}}, 3);
  rows.back().mistakes.push_back({[] { pow_(sample({3}, DType::i32), -1); }, {"0 or more", "-1"}});
  in_place("remainder_", remainder_, modulo, {apart, whole}, 3);
  rows.back().mistakes.push_back({[] { remainder_(sample({3}, DType::i32), 0); }, {"other than 0"}});
  in_place("operator%=", [](T a, Either b) -> Tensor { return a %= b; }, modulo, {apart, whole}, 3);
  rows.back().shown_name = "remainder_";
  in_place("floor_divide_", floor_divide_, floored, {apart, whole}, 3);
  rows.back().mistakes.push_back({[] { floor_divide_(sample({3}, DType::i32), 0); }, {"other than 0"}});
}

void add_in_place(Rows& rows) {
  const auto in_place = [&](const char* name, Tensor (*f)(T, Either), double (*g)(double, double)) {
    Row row{name, {}};
    row.dtypes = numbers;
    row.differentiable = false;
    for (const auto& [target, other] : targets)
      row.cases.push_back({{edited(target), value(other)},
                           [=](const Arguments& in) -> Tensors { return {f(in[0], in[1])}; },
                           [=](const References& in) { return one(zip(in[0], in[1], in.dtype, g)); }});
    for (const auto& [target, other] : targets)
      row.cases.push_back({{edited(target)},
                           [=](const Arguments& in) -> Tensors { return {f(in[0], 3)}; },
                           [=](const References& in) { return one(map(in[0], in.dtype, [=](double x) { return g(x, 3); })); }});
    row.mistakes = {{[=] { f(sample({3}), sample({2, 3})); }, {"(3,)", "(2, 3)"}},
                    {[=] { f(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                    {[=] { f(sample({3}), sample({3}, DType::f64)); }, {"f32", "f64"}},
                    {[=] { f(sample({3}, DType::boolean), sample({3}, DType::boolean)); }, {"bool"}},
                    {[=] { f(sample({1}).window({3}, {0}, 0), sample({3})); }, {"share memory"}},
                    {[=] { f(sample({3}, DType::i64), 0.5); }, {"i64", "0.5"}},
                    {[=] { f(sample({3}, DType::boolean), 1); }, {"bool"}}};
    rows.push_back(row);
  };
  in_place("add_", add_, [](double a, double b) { return a + b; });
  in_place("sub_", sub_, [](double a, double b) { return a - b; });
  in_place("mul_", mul_, [](double a, double b) { return a * b; });
  in_place("operator+=", [](T a, Either b) -> Tensor { return a += b; }, [](double a, double b) { return a + b; });
  rows.back().shown_name = "add_";
  in_place("operator-=", [](T a, Either b) -> Tensor { return a -= b; }, [](double a, double b) { return a - b; });
  rows.back().shown_name = "sub_";
  in_place("operator*=", [](T a, Either b) -> Tensor { return a *= b; }, [](double a, double b) { return a * b; });
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
  Row row{"swiglu", {}};
  for (const Shape& shape : shapes)
    row.cases.push_back({{value(shape, -9, 9), value(shape)},
                         [](const Arguments& in) -> Tensors { return {swiglu(in[0], in[1])}; },
                         [](const References& in) {
                           return one(zip(in[0], in[1], in.dtype, [](double gate, double x) { return gate / (1 + std::exp(-gate)) * x; }));
                         }});
  row.roundings = 2;  // the composition rounds the gate, too
  row.mistakes = {{[] { swiglu(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                  {[] { swiglu(sample({3}), sample({3}, DType::f64)); }, {"f32", "f64"}},
                  {[] { swiglu(sample({3}, DType::i64), sample({3}, DType::i64)); }, {"i64"}}};
  rows.push_back(row);
  rows.push_back(plain(row));
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
  add_power(rows);
  add_remainder(rows);
  add_atan2(rows);
  add_operators(rows);
  add_in_place(rows);
  add_divided_in_place(rows);
  add_swiglu(rows);
  add_sum_to(rows);
}

}  // namespace tern::op_cases
