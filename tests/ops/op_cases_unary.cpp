// Rows of ops/pointwise.h with one operand. Note [The table] in op_cases.h.
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "op_cases.h"
#include "ops/pointwise.h"

namespace tern::op_cases {

using namespace reference;

namespace {

const std::vector<Shape> shapes = {{0}, {1}, {31}, {33}, {1025}, {}, {3, 5}, {2, 0, 3}, {33, 31}, {40, 1025}, {1, 2, 1, 2, 1, 2, 1, 2}};

struct Domain {
  double low = -3, high = 3;
  std::vector<double> kinks = {};
};

template <class F, class G>
Row unary(const char* name, F f, G g, const Domain& domain = {}, double slack = 1, const std::vector<DType>& dtypes = floats) {
  Row row{name, {}};
  for (const Shape& shape : shapes)
    row.cases.push_back({{Input{shape, domain.low, domain.high, {}, domain.kinks}},
                         [=](const Arguments& in) -> Tensors { return {f(in[0])}; },
                         [=](const References& in) { return one(map(in[0], in.dtype, g)); }});
  row.dtypes = dtypes;
  row.slack = slack;
  row.mistakes = {{[=] { f(sample({3}, DType::boolean)); }, {"dtype", "bool"}}};
  if (dtypes.size() == floats.size()) row.mistakes.push_back({[=] { f(sample({3}, DType::i64)); }, {"dtype", "i64"}});
  return row;
}

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

double softplus_of(double x, double beta) { return std::max(x, 0.0) + std::log1p(std::exp(-beta * std::abs(x))) / beta; }

}  // namespace

void add_unary(Rows& rows) {
  rows.push_back(unary("neg", neg, [](double x) { return -x; }, {}, 1, numbers));
  rows.push_back(unary("abs", static_cast<Tensor (*)(const Tensor&)>(abs), [](double x) { return std::abs(x); }, {-3, 3, {0}}, 1, numbers));
  rows.push_back(unary("sign", sign, [](double x) { return double((x > 0) - (x < 0)); }, {-3, 3, {0}}, 1, numbers));
  rows.back().twice = false;  // its derivative is 0 and depends on nothing
  rows.push_back(unary("square", square, [](double x) { return x * x; }, {}, 1, numbers));
  rows.push_back(unary("relu", relu, [](double x) { return x > 0 ? x : 0; }, {-3, 3, {0}}, 1, numbers));
  rows.push_back(unary(
      "clamp", [](const Tensor& x) { return clamp(x, -1, 2); }, [](double x) { return std::min(std::max(x, -1.0), 2.0); }, {-3, 3, {-1, 2}},
      1, numbers));
  rows.back().mistakes.push_back({[] { clamp(sample({3}), 2, 1); }, {"2", "1"}});
  rows.back().mistakes.push_back({[] { clamp(sample({3}), std::nan(""), 1); }, {"nan"}});

  rows.push_back(unary("exp", static_cast<Tensor (*)(const Tensor&)>(exp), [](double x) { return std::exp(x); }));
  rows.push_back(unary("log", static_cast<Tensor (*)(const Tensor&)>(log), [](double x) { return std::log(x); }, {0.1, 5}));
  rows.push_back(unary("sqrt", static_cast<Tensor (*)(const Tensor&)>(sqrt), [](double x) { return std::sqrt(x); }, {0.3, 5}));
  rows.push_back(unary("rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, {0.3, 5}, 4));
  rows.push_back(unary("reciprocal", reciprocal, [](double x) { return 1 / x; }, {0.3, 5}, 4));
  rows.push_back(unary("log1p", static_cast<Tensor (*)(const Tensor&)>(log1p), [](double x) { return std::log1p(x); }, {-0.7, 5}));
  rows.push_back(unary("expm1", static_cast<Tensor (*)(const Tensor&)>(expm1), [](double x) { return std::expm1(x); }));
  const std::vector<double> wholes = {-3, -2, -1, 0, 1, 2, 3}, halves = {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5};
  rows.push_back(unary("floor", static_cast<Tensor (*)(const Tensor&)>(floor), [](double x) { return std::floor(x); }, {-3, 3, wholes}));
  rows.push_back(unary("ceil", static_cast<Tensor (*)(const Tensor&)>(ceil), [](double x) { return std::ceil(x); }, {-3, 3, wholes}));
  rows.push_back(
      unary("round", static_cast<Tensor (*)(const Tensor&)>(round), [](double x) { return std::nearbyint(x); }, {-3, 3, halves}));
  for (std::size_t i = rows.size() - 3; i < rows.size(); ++i) {
    rows[i].twice = false;        // their derivative is 0 and depends on nothing
    rows[i].mistakes.pop_back();  // integers are copied (everyday_ops_test)
  }
  rows.push_back(unary("tan", static_cast<Tensor (*)(const Tensor&)>(tan), [](double x) { return std::tan(x); }, {-1.2, 1.2}, 4));
  rows.push_back(
      unary("leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.2); }, [](double x) { return x > 0 ? x : 0.2 * x; }, {-3, 3, {0}}));
  rows.push_back(
      unary("elu", [](const Tensor& x) { return elu(x, 1.5); }, [](double x) { return x > 0 ? x : 1.5 * std::expm1(x); }, {-3, 3, {0}}));
  rows.back().roundings = 3;  // of the exponential and of the product with alpha
  rows.push_back(unary("sin", static_cast<Tensor (*)(const Tensor&)>(sin), [](double x) { return std::sin(x); }, {-7, 7}));
  rows.push_back(unary("cos", static_cast<Tensor (*)(const Tensor&)>(cos), [](double x) { return std::cos(x); }, {-7, 7}));
  rows.push_back(unary("tanh", static_cast<Tensor (*)(const Tensor&)>(tanh), [](double x) { return std::tanh(x); }, {-5, 5}));
  rows.push_back(unary("erf", static_cast<Tensor (*)(const Tensor&)>(erf), [](double x) { return std::erf(x); }));
  rows.push_back(unary("sigmoid", sigmoid, sigmoid_of, {-9, 9}));
  rows.push_back(unary("silu", silu, [](double x) { return x * sigmoid_of(x); }, {-9, 9}));
  rows.push_back(unary("hardswish", hardswish, [](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); }, {-5, 5, {-3, 3}}));
  rows.push_back(unary("softplus", [](const Tensor& x) { return softplus(x); }, [](double x) { return softplus_of(x, 1); }, {-40, 40}));
  for (const double beta : {0.5, 3.0}) {
    const Row other = unary("softplus", [=](const Tensor& x) { return softplus(x, beta); }, [=](double x) { return softplus_of(x, beta); });
    rows.back().cases.insert(rows.back().cases.end(), other.cases.begin(), other.cases.end());
  }
  for (const double beta : {0.0, -1.0, std::nan(""), HUGE_VAL})
    rows.back().mistakes.push_back({[=] { softplus(sample({3}), beta); }, {"beta > 0", fmt::format("{}", beta)}});
  rows.push_back(unary("gelu", gelu, [](double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }, {-5, 5}));
  rows.push_back(unary("gelu_tanh", gelu_tanh,
                       [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))); },
                       {-5, 5}));
}

}  // namespace tern::op_cases
