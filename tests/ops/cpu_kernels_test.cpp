// The CPU's copying, pointwise and reducing kernels over plain Views against a naive loop in float64: sizes round the vector and chunk
// lengths, strided, reversed and broadcast operands, the dtypes, every byte round the outputs, and one thread against two.
#include <limits>
#include <numeric>

#include "every_function.h"
#include "kernel_array.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/pointwise.h"
#include "ops/kernels/reduce.h"

using namespace tern;
using namespace tern::kernels;
using namespace tern::test;

TEST_CASE("copy converts between all dtypes and layouts") {
  for (DType from : all_dtypes)
    for (DType to : all_dtypes)
      for (Layout layout : layouts) {
        Array x({9, 131}, from, layout), y({9, 131}, to, layout == Layout::packed ? Layout::spaced : Layout::packed);
        x.random(0, 100);
        run(y, [&](const View& v) { copy(Cpu{}, x.view, v); });
        check(y, [&](std::int64_t i) { return to == DType::boolean ? double(x[i] != 0) : is_floating(to) ? x[i] : std::trunc(x[i]); });
      }
  for (const Shape& shape : shapes)
    for (Layout from : layouts)
      for (Layout to : layouts) {
        Array x(shape, DType::f32, from), y(shape, DType::f32, to);
        x.random(-9, 9);
        run(y, [&](const View& v) { copy(Cpu{}, x.view, v); });
        check(y, [&](std::int64_t i) { return x[i]; });
      }
}

TEST_CASE("copy broadcasts, permutes and clamps") {
  Array row({65}), y({300, 65}), column({300}), z({300, 65});
  row.random(-1, 1);
  column.random(-1, 1);
  run(y, [&](const View& v) { copy(Cpu{}, row.broadcast(0, 300), v); });
  check(y, [&](std::int64_t i) { return row[i % 65]; });
  run(z, [&](const View& v) { copy(Cpu{}, column.broadcast(1, 65), v); });
  check(z, [&](std::int64_t i) { return column[i / 65]; });

  Array x({6, 40, 8, 32}), heads({6, 8, 40, 32}), keys({6, 8, 32, 40});
  x.random(-1, 1);
  View by_head = x.view, transposed = x.view;
  by_head.shape = {6, 8, 40, 32};
  by_head.strides = {x.view.strides[0], 32, 256, 1};
  transposed.shape = {6, 8, 32, 40};
  transposed.strides = {x.view.strides[0], 32, 1, 256};
  run(heads, [&](const View& v) { copy(Cpu{}, by_head, v); });
  run(keys, [&](const View& v) { copy(Cpu{}, transposed, v); });
  for (std::int64_t b = 0; b < 6; ++b)
    for (std::int64_t h = 0; h < 8; ++h)
      for (std::int64_t t = 0; t < 40; ++t)
        for (std::int64_t d = 0; d < 32; ++d) {
          const double expected = x[((b * 40 + t) * 8 + h) * 32 + d];
          if (heads[((b * 8 + h) * 40 + t) * 32 + d] != expected || keys[((b * 8 + h) * 32 + d) * 40 + t] != expected)
            FAIL("permuted wrongly");
        }

  Array wild({4}, DType::f32), whole({4}, DType::i32);
  wild.fill([](std::int64_t i) { return i == 0 ? NAN : i == 1 ? 1e20 : i == 2 ? -1e20 : -2.7; });
  copy(Cpu{}, wild.view, whole.view);
  CHECK(whole[0] == 0);
  CHECK(whole[3] == -2);
}

TEST_CASE("fill, arange and triangle") {
  for (DType dtype : all_dtypes)
    for (Layout layout : layouts)
      for (const Shape& shape : shapes) {
        if (skips(shape, dtype, layout)) continue;
        Array y(shape, dtype, layout);
        run(y, [](const View& v) { fill(Cpu{}, v, 3); });
        check(y, [&](std::int64_t) { return dtype == DType::boolean ? 1.0 : 3.0; });
      }
  for (DType dtype : numbers) {
    Array y({100}, dtype, Layout::spaced);
    run(y, [](const View& v) { arange(Cpu{}, v, 2, 1.5); });
    check(y, [&](std::int64_t i) { return is_floating(dtype) ? 2 + 1.5 * double(i) : std::floor(2 + 1.5 * double(i)); });
  }
  for (Layout layout : layouts)
    for (bool upper : {false, true})
      for (std::int64_t diagonal : {-50, -2, 0, 3, 50}) {
        Array x({3, 33, 41}, DType::f64, layout), y({3, 33, 41}, DType::f64);
        x.random(1, 2);
        run(y, [&](const View& v) { triangle(Cpu{}, x.view, v, diagonal, upper); });
        check(y, [&](std::int64_t i) {
          const std::int64_t distance = i % 41 - i / 41 % 33;
          return (upper ? distance >= diagonal : distance <= diagonal) ? x[i] : 0;
        });
      }
}

TEST_CASE("unary functions and their gradients") {
  for (const Unary& function : every_function<Unary>())
    dispatch_functor(function, [&](auto functor) {
      using F = decltype(functor);
      const bool positive = is_one_of<F, functors::Log, functors::Sqrt, functors::Rsqrt, functors::Reciprocal>;
      for (DType dtype : numbers) {
        if (!is_floating(dtype) && !functor.integral) continue;
        for (const Shape& shape : shapes)
          for (Layout layout : {Layout::packed, Layout::reversed}) {
            if (skips(shape, dtype, layout)) continue;
            const Layout other = layout == Layout::packed ? Layout::packed : Layout::spaced;
            Array x(shape, dtype, layout), y(shape, dtype, other), g(shape, dtype, layout), dx(shape, dtype, other);
            x.random(positive ? 0.1 : -4, 4);
            if (dtype == DType::u8) x.random(0, 15);
            g.random(-1, 1, 2);
            CAPTURE(function.index(), name(dtype));
            run(y, [&](const View& v) { unary(Cpu{}, function, x.view, v); });
            const double slack = std::is_same_v<F, functors::Reciprocal> ? 2 : 1;
            if (is_floating(dtype)) check(y, [&](std::int64_t i) { return functor(x[i]); }, slack);
            else if (dtype != DType::u8 && !std::is_same_v<F, functors::Clamp>) check(y, [&](std::int64_t i) { return functor(x[i]); });
            if (!is_floating(dtype)) continue;
            run(dx, [&](const View& v) { unary_grad(Cpu{}, function, g.view, x.view, y.view, v); });
            check(dx, [&](std::int64_t i) { return functors::gradient(functor, g[i], x[i], y[i]); }, 4);
          }
      }
    });
}

TEST_CASE("vector math agrees with the functors everywhere") {
  // Wide and special arguments, where a polynomial goes wrong first. Bounds are in units of the last place.
  std::vector<double> arguments = {0.0,  -0.0, INFINITY, -INFINITY, NAN,    1e-45, -1e-45, 1e-40, 3e38,  -3e38,
                                   88.7, 88.8, -87.5,    -103,      -103.9, -104,  1,      -1,    0.625, 5.6};
  std::mt19937 engine(3);
  for (double scale : {1e-6, 1e-2, 1.0, 10.0, 100.0, 1e6})
    for (int i = 0; i < 4000; ++i) arguments.push_back(scale * std::uniform_real_distribution<double>(-1, 1)(engine));
  const auto n = static_cast<std::int64_t>(arguments.size());
  Array x({n}), y({n});
  x.fill([&](std::int64_t i) { return arguments[static_cast<std::size_t>(i)]; });
  const auto worst = [&](auto functor, bool relative, double smallest = 0x1p-149) {
    unary(Cpu{}, functor, x.view, y.view);
    double result = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double expected = functor(x[i]), got = y[i];
      if (std::isnan(expected) && std::isnan(got)) continue;
      if (float(expected) == float(got)) continue;
      const double unit = relative ? std::max(std::abs(expected) * 0x1p-23, smallest) : 0x1p-23 * (1 + std::abs(expected));
      const double error = std::abs(got - expected) / unit;
      if (!(error <= result)) result = error;
    }
    return result;
  };
  CHECK(worst(functors::Exp{}, true) <= 2);
  CHECK(worst(functors::Log{}, true) <= 2);
  CHECK(worst(functors::Tanh{}, true) <= 2);
  // e^-x overflows before 1 / e^-x leaves the normal numbers.
  CHECK(worst(functors::Sigmoid{}, true, 0x1p-126) <= 4);
  CHECK(worst(functors::Gelu{}, false) <= 8);
  CHECK(worst(functors::GeluTanh{}, false) <= 2);
  CHECK(worst(functors::Silu{}, false) <= 4);
  // Likewise e^x, where it is no longer a normal number.
  for (double beta : {1.0, 0.5, 4.0}) CHECK(worst(functors::Softplus{beta}, true, 0x1p-126) <= 4);
}

TEST_CASE("binary functions over views and numbers") {
  for (const Binary& f : every_function<Binary>())
    dispatch_functor(f, [&](auto functor) {
      for (DType dtype : numbers)
        for (const Shape& shape : shapes)
          for (Layout layout : layouts) {
            if (skips(shape, dtype, layout) || (is_integral_only<decltype(functor)> && is_floating(dtype))) continue;
            Array a(shape, dtype, layout), b(shape, dtype, Layout::packed), y(shape, dtype, Layout::transposed);
            a.random(1, 4);
            b.random(1, 4, 2);
            CAPTURE(f.index(), name(dtype));
            const bool truncates = !is_floating(dtype);
            const auto expected = [&](double p, double q) {
              double value = 0;
              if constexpr (is_integral_only<decltype(functor)>) value = double(functor(std::int64_t(p), std::int64_t(q)));
              else value = functor(p, q);
              return dtype == DType::u8 ? double(std::uint8_t(int(value))) : truncates ? std::trunc(value) : value;
            };
            run(y, [&](const View& v) { binary(Cpu{}, f, a.view, b.view, v); });
            check(y, [&](std::int64_t i) { return expected(a[i], b[i]); }, 2);
            run(y, [&](const View& v) { binary(Cpu{}, f, a.view, 2.0, v); });
            check(y, [&](std::int64_t i) { return expected(a[i], 2); }, 2);
            run(y, [&](const View& v) { binary(Cpu{}, f, 3.0, b.view, v); });
            check(y, [&](std::int64_t i) { return expected(3, b[i]); }, 2);
          }
    });
  // In place, and broadcast along either dimension.
  Array row({1100}), column({37}), y({37, 1100});
  row.random(-1, 1);
  column.random(-1, 1);
  y.random(-1, 1);
  const Array before = y;
  run(y, [&](const View& v) {
    binary(Cpu{}, functors::Add{}, v, row.broadcast(0, 37), v);
    binary(Cpu{}, functors::Mul{}, column.broadcast(1, 1100), v, v);
  });
  check(y, [&](std::int64_t i) { return column[i / 1100] * (before[i] + row[i % 1100]); });
}

TEST_CASE("integer division and power have no traps") {
  Array a({4}, DType::i32), b({4}, DType::i32), y({4}, DType::i32);
  const std::int32_t least = std::numeric_limits<std::int32_t>::min();
  a.fill([&](std::int64_t i) { return i == 0 ? 7 : i == 1 ? double(least) : i == 2 ? -7 : -1; });
  b.fill([](std::int64_t i) { return i == 0 ? 0 : i == 1 ? -1 : i == 2 ? 2 : -3; });
  binary(Cpu{}, functors::Div{}, a.view, b.view, y.view);
  CHECK(y[0] == 0);
  CHECK(y[1] == double(least));
  CHECK(y[2] == -3);
  binary(Cpu{}, functors::Pow{}, a.view, b.view, y.view);
  CHECK(y[0] == 1);
  CHECK(y[2] == 49);
  CHECK(y[3] == -1);
}

TEST_CASE("minimum and maximum give NaN where an operand is NaN") {
  Array a({40}), b({40}), y({40});
  a.fill([](std::int64_t i) { return i % 3 == 0 ? NAN : 1; });
  b.fill([](std::int64_t i) { return i % 5 == 0 ? NAN : 2; });
  for (const Binary& f : {Binary(functors::Minimum{}), Binary(functors::Maximum{})}) {
    binary(Cpu{}, f, a.view, b.view, y.view);
    check(y, [&](std::int64_t i) { return i % 3 == 0 || i % 5 == 0 ? NAN : std::holds_alternative<functors::Minimum>(f) ? 1 : 2; });
  }
}

TEST_CASE("compare") {
  for (const Compare& f : every_function<Compare>())
    dispatch_functor(f, [&](auto functor) {
      for (DType dtype : all_dtypes)
        for (const Shape& shape : shapes) {
          if (skips(shape, dtype)) continue;
          Array a(shape, dtype, Layout::reversed), b(shape, dtype), y(shape, DType::boolean, Layout::spaced);
          a.random(0, 3);
          b.random(0, 3, 2);
          run(y, [&](const View& v) { compare(Cpu{}, f, a.view, b.view, v); });
          check(y, [&](std::int64_t i) { return functor(a[i], b[i]); });
          // A number that the dtype does not hold is compared as it is.
          for (double number : {1.0, 1.5, 300.0, -1.0}) {
            run(y, [&](const View& v) { compare(Cpu{}, f, a.view, number, v); });
            check(y, [&](std::int64_t i) { return functor(a[i], number); });
          }
        }
    });
}

TEST_CASE("where") {
  for (DType dtype : all_dtypes)
    for (const Shape& shape : shapes)
      for (Layout layout : layouts) {
        if (skips(shape, dtype, layout)) continue;
        Array condition(shape, DType::boolean, layout), a(shape, dtype), b(shape, dtype, layout), y(shape, dtype, Layout::transposed);
        condition.random(0, 2);
        a.random(0, 9);
        b.random(0, 9, 2);
        run(y, [&](const View& v) { where(Cpu{}, condition.view, a.view, b.view, v); });
        check(y, [&](std::int64_t i) { return condition[i] != 0 ? a[i] : b[i]; });
        run(y, [&](const View& v) { where(Cpu{}, condition.view, 1.0, b.view, v); });
        check(y, [&](std::int64_t i) { return condition[i] != 0 ? 1 : b[i]; });
        run(y, [&](const View& v) { where(Cpu{}, condition.view, 1.0, 0.0, v); });
        check(y, [&](std::int64_t i) { return condition[i] != 0 ? 1 : 0; });
      }
}

namespace {

/// The element of y that element i of x goes to, whose reduced dimensions have size 1.
std::int64_t landing(const Shape& x, const Shape& y, std::int64_t i) {
  std::int64_t at = 0, scale = 1;
  for (int d = x.size() - 1; d >= 0; --d) {
    if (y[d] == x[d]) at += i % x[d] * scale, scale *= y[d];
    i /= x[d];
  }
  return at;
}

/// The elements of x that each element of y reduces, in row-major order.
std::vector<std::vector<double>> groups(const Array& x, const Array& y) {
  std::vector<std::vector<double>> result(static_cast<std::size_t>(y.size()));
  for (std::int64_t i = 0; i < x.size(); ++i) result[static_cast<std::size_t>(landing(x.view.shape, y.view.shape, i))].push_back(x[i]);
  return result;
}

double fold(Reduce f, const std::vector<double>& values) {
  switch (f) {
    case Reduce::sum: return std::accumulate(values.begin(), values.end(), 0.0);
    case Reduce::prod: return std::accumulate(values.begin(), values.end(), 1.0, std::multiplies<>());
    case Reduce::max: return *std::max_element(values.begin(), values.end());
    case Reduce::min: return *std::min_element(values.begin(), values.end());
    case Reduce::any: return std::any_of(values.begin(), values.end(), [](double v) { return v != 0; });
    case Reduce::all: return std::all_of(values.begin(), values.end(), [](double v) { return v != 0; });
    default: break;
  }
  double sum = 0;
  for (double v : values) sum += std::exp(v);
  return std::log(sum);
}

struct ReduceCase {
  Shape shape;
  std::vector<int> dims;
};
const std::vector<ReduceCase> reduce_cases = {
    {{1}, {0}},
    {{31}, {0}},
    {{33}, {0}},
    {{1025}, {0}},
    {{4, 1025}, {1}},
    {{1025, 4}, {0}},
    {{33, 31}, {0}},
    {{33, 31}, {1}},
    {{33, 31}, {0, 1}},
    {{5, 6, 7}, {1}},
    {{5, 6, 7}, {0, 2}},
    {{5, 6, 7}, {}},
    {{2, 3, 4, 5}, {1, 3}},
    {{0, 5}, {1}},
    {{1, 9}, {0}},
    {{300, 1100}, {0}},
    {{300, 1100}, {0, 1}},
    {{2, 90000}, {1}},
};

}  // namespace

TEST_CASE("reduce") {
  for (const auto& [shape, dims] : reduce_cases)
    for (int f = 0; f <= int(Reduce::all); ++f) {
      const auto function = Reduce(f);
      for (DType dtype : all_dtypes) {
        const bool logical = function == Reduce::any || function == Reduce::all;
        const bool adds = function == Reduce::sum || function == Reduce::prod;
        if (dtype == DType::boolean && !logical && !adds) continue;
        if (!is_floating(dtype) && function == Reduce::logsumexp) continue;
        for (Layout layout : layouts) {
          if (numel(shape) > 20000 && (layout == Layout::spaced || dtype != DType::f32)) continue;
          const DType result = logical ? DType::boolean : adds && !is_floating(dtype) ? DType::i64 : dtype;
          Array x(shape, dtype, layout), y(reduced(shape, dims), result, Layout::spaced);
          x.random(-2, 2);
          if (function == Reduce::prod) x.random(0.95, 1.05);
          if (!is_floating(dtype)) x.random(0, 2);
          const double scale = is_floating(dtype) ? 0.25 : 1;
          CAPTURE(f, name(dtype), numel(shape), int(layout));
          run(y, [&](const View& v) { reduce(Cpu{}, function, x.view, v, scale); });
          const auto expected = groups(x, y);
          double slack = 1;
          if (adds) slack = 8;
          check(
              y,
              [&](std::int64_t i) { return fold(function, expected[static_cast<std::size_t>(i)]) * (function == Reduce::sum ? scale : 1); },
              slack);
        }
      }
    }
}

TEST_CASE("reduce over nothing, NaN and infinities") {
  Array nothing({3, 0}), y({3, 1}), truth({3, 1}, DType::boolean);
  reduce(Cpu{}, Reduce::sum, nothing.view, y.view, 1);
  check(y, [](std::int64_t) { return 0; });
  reduce(Cpu{}, Reduce::prod, nothing.view, y.view, 1);
  check(y, [](std::int64_t) { return 1; });
  reduce(Cpu{}, Reduce::logsumexp, nothing.view, y.view, 1);
  check(y, [](std::int64_t) { return -INFINITY; });
  reduce(Cpu{}, Reduce::any, nothing.view, truth.view, 1);
  check(truth, [](std::int64_t) { return 0; });
  reduce(Cpu{}, Reduce::all, nothing.view, truth.view, 1);
  check(truth, [](std::int64_t) { return 1; });

  for (Layout layout : {Layout::packed, Layout::transposed}) {
    Array x({4, 50}, DType::f32, layout), z({4, 1});
    x.fill([](std::int64_t i) { return i == 20 ? NAN : i / 50 == 1 ? -INFINITY : i == 130 ? INFINITY : double(i % 7); });
    for (Reduce f : {Reduce::sum, Reduce::prod, Reduce::max, Reduce::min, Reduce::logsumexp}) {
      reduce(Cpu{}, f, x.view, z.view, 1);
      CHECK(std::isnan(z[0]));
      CHECK(!std::isnan(z[3]));
    }
    reduce(Cpu{}, Reduce::logsumexp, x.view, z.view, 1);
    CHECK(z[1] == -INFINITY);
    CHECK(z[2] == INFINITY);
  }
}

TEST_CASE("sums of many equal numbers stay exact to rounding") {
  // In plain order a float32 sum of 2^21 times 0.1 is off by half a percent.
  const std::int64_t n = 1 << 21;
  Array x({n}), y({1});
  x.fill([](std::int64_t) { return 0.1; });
  run(y, [&](const View& v) { reduce(Cpu{}, Reduce::sum, x.view, v, 1); });
  CHECK(y[0] == Approx(double(0.1f) * double(n)).epsilon(1e-6));
  View tall = x.view;
  tall.shape = {n / 8, 8};
  tall.strides = {8, 1};
  Array columns({1, 8});
  run(columns, [&](const View& v) { reduce(Cpu{}, Reduce::sum, tall, v, 1); });
  check(columns, [&](std::int64_t) { return double(0.1f) * double(n / 8); });
}

TEST_CASE("arg_reduce") {
  for (DType dtype : numbers)
    for (Layout layout : layouts)
      for (const Shape& shape : {Shape{1025}, Shape{33, 40}, Shape{5, 2100}, Shape{3, 4, 5}, Shape{1, 1}})
        for (int dim = 0; dim < shape.size(); ++dim)
          for (bool largest : {true, false}) {
            Array x(shape, dtype, layout), y(reduced(shape, {dim}), DType::i64, Layout::spaced);
            x.random(0, is_floating(dtype) ? 100 : 5);
            if (is_floating(dtype) && shape.size() > 1 && shape[dim] > 2) x.set(2, NAN), x.set(x.size() - 1, NAN);
            run(y, [&](const View& v) { arg_reduce(Cpu{}, largest, x.view, v, dim); });
            const auto expected = groups(x, y);
            check(y, [&](std::int64_t i) {
              const auto& values = expected[static_cast<std::size_t>(i)];
              std::size_t best = 0;
              for (std::size_t j = 1; j < values.size(); ++j) {
                if (std::isnan(values[best])) break;
                if (std::isnan(values[j]) || (largest ? values[j] > values[best] : values[j] < values[best])) best = j;
              }
              return double(best);
            });
          }
}

TEST_CASE("cumsum") {
  for (DType dtype : all_dtypes)
    for (Layout layout : layouts)
      for (const Shape& shape : {Shape{0}, Shape{1025}, Shape{33, 40}, Shape{3, 4, 5}})
        for (int dim = 0; dim < shape.size(); ++dim)
          for (bool reverse : {false, true}) {
            Array x(shape, dtype, layout), y(shape, is_floating(dtype) ? dtype : DType::i64, Layout::transposed);
            x.random(0, 2);
            run(y, [&](const View& v) { cumsum(Cpu{}, x.view, v, dim, reverse); });
            std::int64_t inner = 1;
            for (int d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
            check(y, [&](std::int64_t i) {
              double sum = 0;
              const std::int64_t at = i / inner % shape[dim];
              for (std::int64_t j = reverse ? at : 0; j < (reverse ? shape[dim] : at + 1); ++j) sum += x[i + (j - at) * inner];
              return sum;
            });
          }
}
