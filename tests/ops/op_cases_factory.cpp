// Rows of ops/factory.h, ops/factory.h and ops/random.h. Note [The table] in op_cases.h.
#include <cmath>
#include <numbers>
#include <numeric>

#include "dropout_reference.h"
#include "op_cases.h"
#include "ops/factory.h"
#include "ops/random.h"
#include "ops/view.h"

namespace tern::op_cases {

using namespace reference;

namespace {

const std::vector<Shape> shapes = {{0}, {1}, {31}, {33}, {1025}, {}, {3, 5}, {2, 0, 3}, {33, 31}, {40, 1025}};

Array filled(const Shape& shape, DType dtype, double value) {
  return make(shape, dtype, [=](const Shape&) { return value; });
}

void add_fills(Rows& rows) {
  const auto factory = [&](const char* name, auto f, double value) {
    Row row{name, {}};
    row.dtypes = all_dtypes;
    row.differentiable = false;
    for (const Shape& shape : shapes)
      row.cases.push_back({{},
                           [=](In in) -> Tensors { return {f(shape, in.dtype, in.device)}; },
                           [=](Ref in) { return one(filled(shape, in.dtype, value)); }});
    row.shown_name = "empty";  // which refuses shapes for all of them
    row.mistakes = {{[=] { f({2, -1}, DType::f32, cpu); }, {"(2, -1)"}},
                    {[=] { f({std::int64_t(1) << 40, std::int64_t(1) << 40}, DType::f32, cpu); }, {"(1099511627776, 1099511627776)"}}};
    rows.push_back(row);
  };
  factory("zeros", [](const Shape& s, DType t, Device d) { return zeros(s, t, d); }, 0);
  factory("ones", [](const Shape& s, DType t, Device d) { return ones(s, t, d); }, 1);
  factory("full", [](const Shape& s, DType t, Device d) { return full(s, 3, t, d); }, 3);
  rows.back().mistakes.push_back({[] { full({2}, 256, DType::u8); }, {"u8", "256"}, "full"});

  const auto alike = [&](const char* name, Tensor (*f)(T), double value) {
    Row row{name, {}};
    row.dtypes = all_dtypes;
    row.differentiable = false;
    for (const Shape& shape : shapes)
      row.cases.push_back({{tern::op_cases::value(shape)},
                           [=](In in) -> Tensors { return {f(in[0])}; },
                           [=](Ref in) { return one(filled(shape, in.dtype, value)); }});
    rows.push_back(row);
  };
  alike("zeros_like", zeros_like, 0);
  alike("ones_like", ones_like, 1);
  alike("full_like", [](T x) { return full_like(x, 3); }, 3);

  const auto in_place = [&](const char* name, Tensor (*f)(T), double value) {
    Row row{name, {}};
    row.dtypes = all_dtypes;
    row.differentiable = false;
    for (const Shape& shape : shapes)
      row.cases.push_back(
          {{edited(shape)}, [=](In in) -> Tensors { return {f(in[0])}; }, [=](Ref in) { return one(filled(shape, in.dtype, value)); }});
    row.shown_name = "fill_";
    row.mistakes = {{[=] { f(sample({1}).window({3}, {0}, 0)); }, {"share memory"}}};
    rows.push_back(row);
  };
  in_place("fill_", [](T x) { return fill_(x, 5); }, 5);
  rows.back().mistakes.push_back({[] { fill_(sample({2}, DType::i64), std::nan("")); }, {"i64", "nan"}});
  in_place("zero_", [](T x) { return zero_(x); }, 0);

  Row row{"arange", {}};
  row.dtypes = numbers;
  row.differentiable = false;
  for (const std::int64_t n : sizes)
    row.cases.push_back({{},
                         [=](In in) -> Tensors { return {arange(n, in.dtype, in.device)}; },
                         [=](Ref in) { return one(make({n}, in.dtype, [](const Shape& i) { return double(i[0]); })); },
                         n > 256 ? std::vector{DType::f64, DType::f32, DType::i32, DType::i64} : numbers});
  struct Range {
    double start, stop, step;
    std::int64_t count;
  };
  for (const Range& r : {Range{0, 10, 3, 4}, {5, 0, -2, 3}, {1, 1, 1, 0}, {3, 1, 1, 0}, {0.5, 2, 0.25, 6}, {10, 9, -0.25, 4}})
    row.cases.push_back(
        {{},
         [=](In in) -> Tensors { return {arange(r.start, r.stop, r.step, in.dtype, in.device)}; },
         [=](Ref in) { return one(make({r.count}, in.dtype, [=](const Shape& i) { return r.start + double(i[0]) * r.step; })); },
         r.step == std::floor(r.step) ? numbers : floats});
  row.mistakes = {{[] { arange(0, 3, 0); }, {}},
                  {[] { arange(0, 3, std::nan("")); }, {}},
                  {[] { arange(0, INFINITY, 1); }, {}},
                  {[] { arange(0, 3, 1, DType::boolean); }, {"bool"}},
                  {[] { arange(0, 1e300, 1); }, {}}};
  rows.push_back(row);
}

void add_copies(Rows& rows) {
  const auto copying = [&](const char* name, auto f, std::vector<Mistake> mistakes) {
    Row row{name, {}, std::move(mistakes)};
    row.dtypes = all_dtypes;
    row.on_cuda_bitwise = true;
    for (const Shape& shape : shapes)
      row.cases.push_back({{value(shape)}, [=](In in) -> Tensors { return {f(in[0])}; }, [](Ref in) { return one(in[0]); }});
    rows.push_back(row);
  };
  copying("clone", [](T x) { return clone(x); }, {});
  copying("contiguous", [](T x) { return contiguous(x); }, {});
  // By tiles, by vectors, and more rows than a grid of CUDA has.
  for (const auto& [shape, order] : std::vector<std::pair<Shape, Dims>>{{{6, 40, 72}, {0, 2, 1}},
                                                                        {{6, 40, 72}, {1, 0, 2}},
                                                                        {{6, 8, 40, 32}, {0, 2, 1, 3}},
                                                                        {{2, 3, 2, 3, 2, 3, 2, 3}, {7, 0, 6, 1, 5, 2, 4, 3}},
                                                                        {{17, 70000}, {1, 0}}})
    rows.back().cases.push_back({{value(shape)},
                                 [order = order](In in) -> Tensors { return {contiguous(permute(in[0], order))}; },
                                 [order = order](Ref in) { return one(permuted(in[0], order)); }});
  copying("to", [](T x) { return to(x, cpu); }, {});

  Row row{"cast", {}};
  row.dtypes = all_dtypes;
  for (const DType into : all_dtypes)
    for (const Shape& shape : shapes)
      row.cases.push_back(
          {{value(shape, -5, 5)},
           [=](In in) -> Tensors { return {cast(in[0], into)}; },
           [=](Ref in) {
             return one(map(in[0], into, [=](double x) { return is_floating(into) || into == DType::boolean ? x : std::trunc(x); }));
           }});
  // A negative number has no meaning as u8, an f64 that becomes f16 is no f64 any more.
  for (Case& op : row.cases) {
    const bool is_u8 = op.call({{sample({1})}, DType::f32, cpu})[0].dtype() == DType::u8;
    if (is_u8) op.inputs[0].low = 0;
  }
  // Rounding to a narrower float makes steps, which have no derivative.
  for (Case& op : row.cases) op.inputs[0].differentiable = op.call({{sample({1}, DType::f64)}, DType::f64, cpu})[0].dtype() == DType::f64;
  rows.push_back(row);

  row = {"copy_", {}};
  row.dtypes = all_dtypes;
  row.differentiable = false;
  row.on_cuda_bitwise = true;
  for (const auto& [target, source] : std::vector<std::pair<Shape, Shape>>{{{0}, {0}},
                                                                           {{1}, {1}},
                                                                           {{31}, {31}},
                                                                           {{33}, {33}},
                                                                           {{1025}, {1025}},
                                                                           {{}, {}},
                                                                           {{3, 5}, {5}},
                                                                           {{3, 5}, {3, 1}},
                                                                           {{2, 3, 4}, {}},
                                                                           {{33, 31}, {33, 31}},
                                                                           {{300, 65}, {65}},
                                                                           {{300, 65}, {300, 1}},
                                                                           {{40, 1025}, {40, 1025}}}) {
    row.cases.push_back({{edited(target), value(source)},
                         [](In in) -> Tensors { return {copy_(in[0], in[1])}; },
                         [](Ref in) { return one(make(in[0].shape, in.dtype, [&](const Shape& i) { return broadcast_at(in[1], i); })); }});
    Input whole_numbers = value(source);
    whole_numbers.dtype = DType::i32;
    row.cases.push_back(row.cases.back());
    row.cases.back().inputs[1] = whole_numbers;
    row.cases.back().dtypes = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::boolean};
  }
  row.mistakes = {{[] { copy_(sample({3}), sample({4})); }, {"(3,)", "(4,)"}},
                  {[] { copy_(sample({3}), sample({2, 3})); }, {"(3,)", "(2, 3)"}},
                  {[] { copy_(sample({1}).window({3}, {0}, 0), sample({3})); }, {"share memory"}}};
  rows.push_back(row);
}

constexpr std::uint64_t seed = 77;

/// Word i of the stream that manual_seed(seed) starts.
std::uint32_t word(std::int64_t i) { return philox(seed, static_cast<std::uint64_t>(i / 4)).words[i % 4]; }
double unit(std::int64_t i) { return double(word(i) >> 8) / 16777216.0; }
double gauss(std::int64_t i) {
  const std::int64_t pair = i / 2 * 2;
  const double radius = std::sqrt(-2 * std::log((double(word(pair) >> 8) + 0.5) / 16777216.0));
  const double angle = 2 * std::numbers::pi * (double(word(pair + 1) >> 8) / 16777216.0);
  return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

/// f(i) for the i-th element in row-major order.
template <class F>
Array counted(const Shape& shape, DType dtype, F f) {
  std::int64_t i = 0;
  return make(shape, dtype, [&](const Shape&) { return f(i++); });
}

void add_random(Rows& rows) {
  const auto drawing = [&](const char* name, auto f, auto g, std::vector<Mistake> mistakes, double slack) {
    Row row{name, {}, std::move(mistakes)};
    row.differentiable = false;
    row.slack = slack;
    for (const Shape& shape : shapes)
      row.cases.push_back({{},
                           [=](In in) -> Tensors {
                             manual_seed(seed);
                             return {f(shape, in.dtype, in.device)};
                           },
                           [=](Ref in) { return one(counted(shape, in.dtype, g)); }});
    rows.push_back(row);
  };
  drawing(
      "rand", [](const Shape& s, DType t, Device d) { return rand(s, -1, 3, t, d); }, [](std::int64_t i) { return -1 + 4 * unit(i); },
      {{[] { rand({3}, 0, 1, DType::i64); }, {"floating", "i64"}},
       {[] { rand({3}, 2, 1); }, {"low <= high", "2 and 1"}},
       {[] { rand({3}, 0, 1e5, DType::f16); }, {"finite in f16", "100000"}},
       {[] { rand({3}, -3e38, 3e38); }, {"width", "finite in f32"}}},
      2);
  drawing(
      "randn", [](const Shape& s, DType t, Device d) { return randn(s, 0.5, 2, t, d); }, [](std::int64_t i) { return 0.5 + 2 * gauss(i); },
      {{[] { randn({3}, 0, 1, DType::boolean); }, {"floating", "bool"}}}, 4);
  const auto alike = [&](const char* name, Tensor (*f)(T), double (*g)(std::int64_t), double slack) {
    Row row{name, {}, {{[=] { f(sample({3}, DType::i64)); }, {"floating", "i64"}}}};
    row.differentiable = false;
    row.slack = slack;
    row.shown_name = std::string(name, std::string_view(name).find('_'));
    for (const Shape& shape : shapes)
      row.cases.push_back({{value(shape)},
                           [=](In in) -> Tensors {
                             manual_seed(seed);
                             return {f(in[0])};
                           },
                           [=](Ref in) { return one(counted(in[0].shape, in.dtype, g)); }});
    rows.push_back(row);
  };
  alike("rand_like", rand_like, unit, 2);
  alike("randn_like", randn_like, gauss, 4);
  drawing(
      "bernoulli", [](const Shape& s, DType t, Device d) { return bernoulli(s, 0.3, t, d); },
      [](std::int64_t i) { return double(unit(i) < 0.3); },
      {{[] { bernoulli({3}, 1.5); }, {"1.5"}}, {[] { bernoulli({3}, -0.1); }, {"-0.1"}}, {[] { bernoulli({3}, std::nan("")); }, {"nan"}}},
      1);
  rows.back().dtypes = all_dtypes;
  rows.back().on_cuda_bitwise = true;

  drawing(
      "randint", [](const Shape& s, DType t, Device d) { return randint(3, 200, s, t, d); },
      [](std::int64_t i) { return double(3 + (std::uint64_t{word(i)} * 197 >> 32)); },
      {{[] { randint(0, 3, {3}, DType::f32); }, {"integer", "f32"}},
       {[] { randint(0, 2, {3}, DType::boolean); }, {"integer", "bool"}},
       {[] { randint(4, 4, {3}); }, {"low < high", "4"}},
       {[] { randint(0, 257, {3}, DType::u8); }, {"u8", "256"}},
       {[] { randint(-1, 3, {3}, DType::u8); }, {"u8", "-1"}},
       {[] { randint(0, (std::int64_t(1) << 31) + 1, {3}, DType::i32); }, {"i32", "2147483648"}}},
      1);
  rows.back().dtypes = {DType::i64, DType::i32, DType::u8};
  rows.back().on_cuda_bitwise = true;

  Row row{"randperm", {}, {{[] { randperm(-1); }, {"-1"}}}};
  row.dtypes = {DType::i64};
  row.differentiable = false;
  for (const std::int64_t n : {0, 1, 31, 33, 1025, 70000})
    row.cases.push_back({{},
                         [=](In in) -> Tensors {
                           manual_seed(seed);
                           return {randperm(n, in.device)};
                         },
                         [=](Ref) {
                           std::vector<std::pair<std::uint64_t, std::int64_t>> keys;
                           for (std::int64_t i = 0; i < n; ++i) keys.push_back({std::uint64_t(word(4 * i + 1)) << 32 | word(4 * i), i});
                           std::sort(keys.begin(), keys.end());
                           return one(
                               make({n}, DType::i64, [&](const Shape& i) { return double(keys[static_cast<std::size_t>(i[0])].second); }));
                         }});
  rows.push_back(row);

  const auto in_place = [&](const char* name, auto f, auto g, double slack) {
    Row drawn{name,
              {},
              {{[=] { f(sample({3}, DType::i64)); }, {"floating", "i64"}},
               {[=] { f(sample({2, 3}).window({3, 2}, {1, 3}, 0)); }, {"contiguous", "(1, 3)"}}}};
    drawn.differentiable = false;
    drawn.slack = slack;
    for (const Shape& shape : shapes)
      drawn.cases.push_back({{edited(shape)},
                             [=](In in) -> Tensors {
                               manual_seed(seed);
                               return {f(in[0])};
                             },
                             [=](Ref in) { return one(counted(shape, in.dtype, g)); }});
    rows.push_back(drawn);
  };
  in_place("uniform_", [](T x) { return uniform_(x, 2, 3); }, [](std::int64_t i) { return 2 + unit(i); }, 2);
  in_place("normal_", [](T x) { return normal_(x, -1, 0.5); }, [](std::int64_t i) { return -1 + 0.5 * gauss(i); }, 4);

  row = {"dropout", {}};
  for (const Shape& shape : shapes)
    row.cases.push_back({{value(shape)},
                         [](In in) -> Tensors {
                           manual_seed(seed);
                           return {dropout(in[0], 0.4)};
                         },
                         [](Ref in) {
                           return one(counted(in[0].shape, in.dtype, [&](std::int64_t i) {
                             return is_dropped(seed, 0, std::uint64_t(i), 0.4) ? 0 : in[0].values[static_cast<std::size_t>(i)] / 0.6;
                           }));
                         }});
  for (const bool training : {true, false})
    row.cases.push_back({{value({3, 5})},
                         [=](In in) -> Tensors { return {dropout(in[0], training ? 0 : 0.5, training)}; },
                         [](Ref in) { return one(in[0]); }});
  row.mistakes = {{[] { dropout(sample({3}), 1); }, {"1"}},
                  {[] { dropout(sample({3}), -0.5); }, {"-0.5"}},
                  {[] { dropout(sample({3}), std::nan("")); }, {"nan"}},
                  {[] { dropout(sample({3}, DType::i64), 0.5); }, {"floating", "i64"}}};
  rows.push_back(row);
}

}  // namespace

void add_factory(Rows& rows) {
  add_fills(rows);
  add_copies(rows);
  add_random(rows);
}

}  // namespace tern::op_cases
