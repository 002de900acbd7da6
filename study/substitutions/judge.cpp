#include "substitutions/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/random.h"

namespace tern::substitutions {

namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};

/// An element of the inputs of a batch's matrix.
double draw(std::uint64_t& state, std::int64_t batch, DType dtype) {
  const auto random = [&](std::uint64_t below) {
    state += 0x9E3779B97F4A7C15u;  // SplitMix64
    std::uint64_t x = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (x ^ (x >> 31)) % below;
  };
  const double sign = random(2) ? 1 : -1, u = (static_cast<double>(random(1 << 20)) + 0.5) * 0x1p-20;
  const double normal = sign * std::sqrt(-2 * std::log(u)) * std::abs(std::cos(6.2831853 * static_cast<double>(random(1 << 20)) * 0x1p-20));
  switch (batch % 4 == 0 ? 0 : random(batch % 4 == 3 ? 10 : 8)) {
    case 1: return sign * (dtype == DType::f16 ? 2e-6 : 3e-40);
    case 2: return sign * (dtype == DType::f16 ? 6e4 : 1e25);
    case 3: return sign * 1e4;
    case 4: return sign * 100 * u;
    case 5: return sign;
    case 6: return sign * 0.0;
    case 8: return sign * INFINITY;
    case 9: return NAN;
    default: return normal;
  }
}

/// One unit in the last place of the dtype, at x.
double unit(DType dtype, double x) {
  const int digits = dtype == DType::f32 ? 23 : dtype == DType::bf16 ? 7 : 10, least = dtype == DType::f16 ? -14 : -126;
  return std::ldexp(1.0, std::max(x == 0 ? least : std::ilogb(x), least) - digits);
}

/// The sum of term(0), term(1), ..., in the dtype that sums of `dtype` have.
template <class F>
Tensor added(std::int64_t count, DType dtype, const F& term) {
  const DType wide = dtype == DType::f64 ? dtype : DType::f32;
  Tensor sum = term(0, wide);
  for (std::int64_t k = 1; k < count; ++k) sum = add(sum, term(k, wide));
  return cast(sum, dtype);
}
Tensor sum_in_order(const Tensor& x) {
  return added(x.size(-1), x.dtype(), [&](std::int64_t k, DType wide) { return cast(slice(x, -1, k, k + 1), wide); });
}
Tensor product_in_order(const Tensor& x, const Tensor& y) {
  return added(x.size(-1), x.dtype(),
               [&](std::int64_t k, DType wide) { return mul(cast(slice(x, -1, k, k + 1), wide), cast(slice(y, -2, k, k + 1), wide)); });
}

std::vector<double> elements(const Tensor& x) { return cast(x, DType::f64).to_vector<double>(); }

/// A number with all digits of f32; any NaN without a sign.
std::string text(double x) { return std::isnan(x) ? "nan" : fmt::format("{:.9g}", x); }
/// A matrix of a batch: one number, or rows.
std::string text(const Tensor& batch, std::int64_t index) {
  const Tensor x = select(batch, 0, index);
  const std::vector<double> all = elements(x);
  if (all.size() == 1) return text(all[0]);
  std::string rows;
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    rows += i > 0 ? "; " : "";
    for (std::int64_t j = 0; j < x.size(1); ++j) rows += (j > 0 ? " " : "") + text(all[static_cast<std::size_t>(i * x.size(1) + j)]);
  }
  return "[" + rows + "]";
}

}  // namespace

Judge::Judge() {
  constexpr Type matrices[] = {{2, 4}, {4, 2}, {4, 4}}, columns[] = {{2, 1}, {4, 1}}, rows[] = {{1, 4}, {1, 2}};
  std::vector<std::array<Type, input_count>> all{square(1)};
  for (const Type& a : matrices)
    for (const Type& b : matrices)
      for (const Type& c : matrices)
        for (const Type& v : columns)
          for (const Type& w : rows) all.push_back({a, b, c, v, w});
  for (const DType dtype : dtypes) {
    std::map<std::pair<std::size_t, std::pair<std::int64_t, std::int64_t>>, Tensor> made;
    std::vector<Shaped>& shapes = shapes_.emplace_back();
    for (const auto& types : all) {
      Shaped shaped{types, {}, {}};
      for (std::size_t i = 0; i < input_count; ++i) {
        const auto [rows_of, columns_of, is_wide] = types[i];
        Tensor& x = made[{i, {rows_of, columns_of}}];
        if (!x.defined()) {
          const std::int64_t batches = rows_of * columns_of == 1 && types == all[0] ? 1024 : 96;
          std::vector<float> values;
          std::uint64_t state = i + 1;
          for (std::int64_t batch = 0; batch < batches; ++batch)
            for (std::int64_t k = 0; k < rows_of * columns_of; ++k) values.push_back(static_cast<float>(draw(state, batch, dtype)));
          x = cast(Tensor::from(values, {batches, rows_of, columns_of}), dtype);
        }
        shaped.low[i] = x;
        shaped.exact[i] = cast(x, DType::f64);
      }
      shapes.push_back(std::move(shaped));
    }
  }
}

Tensor Judge::compute(const Terms& terms, Id id, const std::array<Tensor, input_count>& inputs, DType low, double number, bool by_kernels) {
  std::vector<std::pair<Id, Tensor>> values;
  const auto value = [&](Id part) -> const Tensor& {
    return std::find_if(values.begin(), values.end(), [&](const auto& known) { return known.first == part; })->second;
  };
  const auto apply = [&](const Node& node) -> Tensor {
    const Tensor& x = value(node.x);
    switch (node.op) {
      case Op::add: return add(x, value(node.y));
      case Op::sub: return sub(x, value(node.y));
      case Op::mul: return mul(x, value(node.y));
      case Op::div: return div(x, value(node.y));
      case Op::max: return maximum(x, value(node.y));
      case Op::matmul: return by_kernels ? matmul(x, value(node.y)) : product_in_order(x, value(node.y));
      case Op::concat: return cat({x, value(node.y)}, -1);
      case Op::neg: return neg(x);
      case Op::exp: return exp(x);
      case Op::log: return log(x);
      case Op::sqrt: return sqrt(x);
      case Op::rsqrt: return rsqrt(x);
      case Op::relu: return relu(x);
      case Op::sum: return by_kernels ? sum(x, {-1}, true) : sum_in_order(x);
      case Op::maxr: return max(x, {-1}, true);
      case Op::transpose: return transpose(x, -2, -1);
      case Op::split0: return slice(x, -1, 0, x.size(-1) / 2);
      case Op::split1: return slice(x, -1, x.size(-1) / 2);
      case Op::scale: return mul(x, std::isnan(node.number) ? number : node.number);
      case Op::widen: return cast(x, low == DType::f64 ? low : DType::f32);
      default: return cast(x, low);
    }
  };
  for (const Id part : terms.parts(id)) values.emplace_back(part, part < input_count ? inputs[part] : apply(terms[part]));
  return value(id);
}

std::vector<std::size_t> Judge::fitting(const Terms& terms, Id left) const {
  const unsigned used = terms.inputs(left);
  std::vector<std::size_t> result;
  std::vector<std::array<Type, input_count>> seen;
  for (std::size_t i = 0; i < shapes_[0].size() && result.size() < 3; ++i) {
    auto types = shapes_[0][i].types;
    if (!terms.type(left, types)) continue;
    for (std::size_t input = 0; input < input_count; ++input)  // shapes of inputs that it lacks make no other case
      if (!(used >> input & 1)) types[input] = {};
    if (std::find(seen.begin(), seen.end(), types) != seen.end()) continue;
    seen.push_back(types), result.push_back(i);
  }
  return result;
}

Judgement Judge::operator()(const Terms& terms, Id left, Id right) const {
  const std::vector<std::size_t> fitting = this->fitting(terms, left);
  const auto shape = [](const std::optional<Type>& type) {
    return type ? fmt::format("{} x {}{}", type->rows, type->columns, type->is_wide ? " of f32" : "") : "none";
  };
  for (const std::size_t i : fitting) {
    const auto& types = shapes_[0][i].types;
    const auto of_left = terms.type(left, types), of_right = terms.type(right, types);
    if (of_left == of_right) continue;
    std::string reason;
    for (Id input = 0; input < input_count; ++input)
      if (terms.inputs(left) >> input & 1)
        reason += fmt::format("{}{} is {}", reason.empty() ? "" : ", ", name(static_cast<Op>(input)), shape(types[input]));
    return {Verdict::rejected, 0, fmt::format("{}: left {}, right {}", reason, shape(of_left), shape(of_right))};
  }
  Judgement result{fitting.empty() ? Verdict::rejected : Verdict::exact, 0, "the left side fits no inputs"};
  for (std::size_t k = 0; k < std::size(dtypes); ++k)
    for (const std::size_t i : fitting)
      for (const double number : {-3.0, 0.3}) {
        if (number > 0 && !(terms.inputs(left) >> input_count & 1)) break;
        compare(terms, left, right, dtypes[k], shapes_[k][i], number, result);
        if (result.verdict == Verdict::rejected) return result;
      }
  return result;
}

void Judge::compare(const Terms& terms, Id left, Id right, DType dtype, const Shaped& shaped, double number, Judgement& result) const {
  const Tensor of_left = compute(terms, left, shaped.low, dtype, number);
  const std::vector<double> l = elements(of_left), r = elements(compute(terms, right, shaped.low, dtype, number));
  const auto same = [](double x, double y) { return std::isnan(x) ? std::isnan(y) : x == y && std::signbit(x) == std::signbit(y); };
  if (std::equal(l.begin(), l.end(), r.begin(), same)) return;
  result.verdict = Verdict::sound;
  const std::vector<double> exact = elements(compute(terms, left, shaped.exact, DType::f64, number));
  for (std::size_t i = 0; i < l.size(); ++i) {
    if (same(l[i], r[i])) continue;
    bool holds = std::isnan(l[i]) == std::isnan(r[i]) && std::isinf(l[i]) == std::isinf(r[i]);
    if (std::isinf(l[i])) holds = l[i] == r[i];
    if (holds && std::isfinite(l[i])) {
      const double reference = std::isfinite(exact[i]) ? exact[i] : l[i], one = unit(of_left.dtype(), reference);
      const double error = std::abs(r[i] - reference);
      holds = error <= 2 * std::abs(l[i] - reference) + one;
      result.error = std::max(result.error, error / one);
    }
    if (holds) continue;
    const std::int64_t rows = of_left.size(1), columns = of_left.size(2), at = static_cast<std::int64_t>(i);
    std::string reason = name(dtype);
    for (Id input = 0; input < input_count; ++input)
      if (terms.inputs(left) >> input & 1)
        reason += fmt::format(", {} = {}", name(static_cast<Op>(input)), text(shaped.low[input], at / (rows * columns)));
    if (terms.inputs(left) >> input_count & 1) reason += fmt::format(", s = {}", number);
    reason += fmt::format(": left {}, right {}, exactly {}", text(l[i]), text(r[i]), text(exact[i]));
    if (rows * columns > 1) reason += fmt::format(", in row {}, column {}", at / columns % rows, at % columns);
    result = {Verdict::rejected, 0, reason};
    return;
  }
}

}  // namespace tern::substitutions
