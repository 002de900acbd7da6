// Each CPU kernel over plain Views against a naive loop in float64: sizes round the vector and chunk lengths, strided, reversed and
// broadcast operands, the dtypes, every byte round the outputs, and one thread against two.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "catch.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/functors.h"
#include "ops/kernels/index.h"
#include "ops/kernels/loss.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/optimizer.h"
#include "ops/kernels/pointwise.h"
#include "ops/kernels/random.h"
#include "ops/kernels/reduce.h"
#include "tensor/dispatch.h"

using namespace tern;
using namespace tern::kernels;

namespace {

enum class Layout { packed, transposed, spaced, reversed };
constexpr Layout layouts[] = {Layout::packed, Layout::transposed, Layout::spaced, Layout::reversed};
constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean};
constexpr DType floats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
constexpr DType numbers[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8};

/// Memory with a view on part of it. Whatever is not an element holds a pattern that kernels must leave alone.
class Array {
 public:
  explicit Array(const Shape& shape, DType dtype = DType::f32, Layout layout = Layout::packed) {
    view.shape = shape;
    view.dtype = dtype;
    view.strides = contiguous_strides(shape);
    if (layout == Layout::transposed) {
      std::int64_t step = 1;
      for (int d = 0; d < shape.size(); ++d) view.strides[d] = step, step *= std::max<std::int64_t>(shape[d], 1);
    }
    std::int64_t first = 0;
    if (layout == Layout::spaced)
      for (auto& stride : view.strides) stride *= 2;
    if (layout == Layout::reversed)
      for (int d = 0; d < shape.size(); ++d) {
        first += std::max<std::int64_t>(shape[d] - 1, 0) * view.strides[d];
        view.strides[d] = -view.strides[d];
      }
    const std::size_t size = size_of(dtype);
    memory_.assign((static_cast<std::size_t>(2 * std::max<std::int64_t>(shape.empty() ? 1 : numel(shape), 1)) + 2 * guard) * size, pattern);
    first_ = guard + static_cast<std::size_t>(first);
    bind();
  }
  Array(const Array& other) : view(other.view), memory_(other.memory_), first_(other.first_) { bind(); }
  Array& operator=(const Array&) = delete;

  std::int64_t size() const { return view.numel(); }
  std::int64_t offset(std::int64_t i) const {
    std::int64_t at = 0;
    for (int d = view.dims() - 1; d >= 0; --d) {
      at += i % view.shape[d] * view.strides[d];
      i /= view.shape[d];
    }
    return at;
  }
  double operator[](std::int64_t i) const {
    return dispatch_all(view.dtype, [&]<class T>() { return double(compute_t<T>(view.as<T>()[offset(i)])); });
  }
  /// All elements, for references that read them often.
  std::vector<double> values() const {
    std::vector<double> result;
    for (std::int64_t i = 0; i < size(); ++i) result.push_back((*this)[i]);
    return result;
  }
  void set(std::int64_t i, double value) {
    dispatch_all(view.dtype, [&]<class T>() {
      if constexpr (std::is_same_v<T, bool>) view.as<T>()[offset(i)] = value != 0;
      else view.as<T>()[offset(i)] = T(compute_t<T>(value));
    });
  }
  Array& fill(const std::function<double(std::int64_t)>& f) {
    for (std::int64_t i = 0; i < size(); ++i) set(i, f(i));
    return *this;
  }
  /// Numbers between low and high that every dtype holds closely.
  Array& random(double low, double high, unsigned seed = 1) {
    std::mt19937 engine(seed + 77u * static_cast<unsigned>(size()));
    std::uniform_real_distribution<double> draw(low, high);
    return fill([&](std::int64_t) { return is_floating(view.dtype) ? draw(engine) : std::floor(draw(engine)); });
  }
  /// The same memory, broadcast along a dimension.
  View broadcast(int dim, std::int64_t length) const {
    View result = view;
    result.shape.insert(dim, length);
    result.strides.insert(dim, 0);
    return result;
  }
  bool guards_hold() const {
    std::vector<bool> owned(memory_.size());
    const std::size_t width = size_of(view.dtype);
    for (std::int64_t i = 0; i < size(); ++i) {
      const auto byte = static_cast<std::size_t>(std::int64_t(first_) + offset(i)) * width;
      std::fill_n(owned.begin() + std::ptrdiff_t(byte), width, true);
    }
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if (!owned[i] && memory_[i] != pattern) return false;
    return true;
  }
  bool same_bytes(const Array& other) const { return memory_ == other.memory_; }

  View view;

 private:
  static constexpr std::size_t guard = 64;
  static constexpr std::uint8_t pattern = 0xA5;
  void bind() { view.data = memory_.data() + first_ * size_of(view.dtype); }

  std::vector<std::uint8_t> memory_;
  std::size_t first_ = 0;
};

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f32: return 2e-6;
    case DType::f64: return 1e-13;
    case DType::f16: return 1.5e-3;
    case DType::bf16: return 1e-2;
    default: return 0;
  }
}

bool close(double value, double expected, double bound) {
  if (std::isnan(expected)) return std::isnan(value);
  return value == expected || std::abs(value - expected) <= bound * (1 + std::abs(expected));
}

/// Fails with the first element that is further from expected(i) than the dtype's tolerance times `slack`.
void check(const Array& y, const std::function<double(std::int64_t)>& expected, double slack = 1) {
  for (std::int64_t i = 0; i < y.size(); ++i) {
    if (close(y[i], expected(i), slack * tolerance(y.view.dtype))) continue;
    CAPTURE(i, y.size(), name(y.view.dtype));
    REQUIRE(y[i] == Approx(expected(i)));
    FAIL("beyond the tolerance");
  }
  REQUIRE(y.guards_hold());
}

/// Runs f on y with one thread and with two, which must give the same bytes.
void run(Array& y, const std::function<void(const View&)>& f) {
  Array other = y;
  omp_set_num_threads(1);
  f(y.view);
  omp_set_num_threads(2);
  f(other.view);
  REQUIRE(y.same_bytes(other));
}

const std::vector<Shape> shapes = {{}, {0}, {1}, {31}, {33}, {1025}, {3, 0, 2}, {5, 33}, {7, 1, 31}, {2, 3, 4, 5}, {40, 1025}};

/// The largest shape is for sharing among threads, which one dtype shows.
bool skips(const Shape& shape, DType dtype, Layout layout = Layout::packed) {
  return numel(shape) > 2000 && (dtype != DType::f32 || layout != Layout::packed);
}

Shape reduced(Shape shape, const std::vector<int>& dims) {
  for (int d : dims) shape[d] = 1;
  return shape;
}

}  // namespace

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
          if (heads[((b * 8 + h) * 40 + t) * 32 + d] != expected || keys[((b * 8 + h) * 32 + d) * 40 + t] != expected) FAIL("permuted wrongly");
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
  for (int f = 0; f <= int(Unary::clamp); ++f) {
    const auto function = Unary(f);
    const UnaryParams params{-0.5, 0.75};
    const bool positive = function == Unary::log || function == Unary::sqrt || function == Unary::rsqrt || function == Unary::reciprocal;
    for (DType dtype : numbers) {
      if (!is_floating(dtype) && !functors::takes_integers(function)) continue;
      for (const Shape& shape : shapes)
        for (Layout layout : {Layout::packed, Layout::reversed}) {
          if (skips(shape, dtype, layout)) continue;
          const Layout other = layout == Layout::packed ? Layout::packed : Layout::spaced;
          Array x(shape, dtype, layout), y(shape, dtype, other), g(shape, dtype, layout), dx(shape, dtype, other);
          x.random(positive ? 0.1 : -4, 4);
          if (dtype == DType::u8) x.random(0, 15);
          g.random(-1, 1, 2);
          CAPTURE(f, name(dtype));
          run(y, [&](const View& v) { unary(Cpu{}, function, x.view, v, params); });
          functors::visit(function, params, [&](auto functor) {
            const double slack = function == Unary::reciprocal ? 2 : 1;
            if (is_floating(dtype)) check(y, [&](std::int64_t i) { return functor(x[i]); }, slack);
            else if (dtype != DType::u8 && function != Unary::clamp) check(y, [&](std::int64_t i) { return functor(x[i]); });
            if (!is_floating(dtype)) return;
            run(dx, [&](const View& v) { unary_grad(Cpu{}, function, g.view, x.view, y.view, v, params); });
            check(dx, [&](std::int64_t i) { return g[i] * functor.grad(x[i], y[i]); }, 4);
          });
        }
    }
  }
}

TEST_CASE("vector math agrees with the functors everywhere") {
  // Wide and special arguments, where a polynomial goes wrong first. Bounds are in units of the last place.
  std::vector<double> arguments = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e-45, -1e-45, 1e-40, 3e38, -3e38, 88.7, 88.8, -87.5, -103, -103.9, -104, 1, -1, 0.625};
  std::mt19937 engine(3);
  for (double scale : {1e-6, 1e-2, 1.0, 10.0, 100.0, 1e6})
    for (int i = 0; i < 4000; ++i) arguments.push_back(scale * std::uniform_real_distribution<double>(-1, 1)(engine));
  const auto n = static_cast<std::int64_t>(arguments.size());
  Array x({n}), y({n});
  x.fill([&](std::int64_t i) { return arguments[static_cast<std::size_t>(i)]; });
  const auto worst = [&](Unary f, auto functor, bool relative, double smallest = 0x1p-149) {
    unary(Cpu{}, f, x.view, y.view, {});
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
  CHECK(worst(Unary::exp, functors::Exp{}, true) <= 2);
  CHECK(worst(Unary::log, functors::Log{}, true) <= 2);
  CHECK(worst(Unary::tanh, functors::Tanh{}, true) <= 2);
  // e^-x overflows before 1 / e^-x leaves the normal numbers.
  CHECK(worst(Unary::sigmoid, functors::Sigmoid{}, true, 0x1p-126) <= 4);
  CHECK(worst(Unary::gelu, functors::Gelu{}, false) <= 8);
  CHECK(worst(Unary::gelu_tanh, functors::GeluTanh{}, false) <= 2);
  CHECK(worst(Unary::silu, functors::Silu{}, false) <= 4);
}

TEST_CASE("binary functions over views and numbers") {
  for (int f = 0; f <= int(Binary::maximum); ++f)
    functors::visit(Binary(f), [&](auto functor) {
      for (DType dtype : numbers)
        for (const Shape& shape : shapes)
          for (Layout layout : layouts) {
            if (skips(shape, dtype, layout)) continue;
            Array a(shape, dtype, layout), b(shape, dtype, Layout::packed), y(shape, dtype, Layout::transposed);
            a.random(1, 4);
            b.random(1, 4, 2);
            CAPTURE(f, name(dtype));
            const bool truncates = !is_floating(dtype);
            const auto expected = [&](double p, double q) {
              const double value = functor(p, q);
              return dtype == DType::u8 ? double(std::uint8_t(int(value))) : truncates ? std::trunc(value) : value;
            };
            run(y, [&](const View& v) { binary(Cpu{}, Binary(f), a.view, b.view, v); });
            check(y, [&](std::int64_t i) { return expected(a[i], b[i]); }, 2);
            run(y, [&](const View& v) { binary(Cpu{}, Binary(f), a.view, 2.0, v); });
            check(y, [&](std::int64_t i) { return expected(a[i], 2); }, 2);
            run(y, [&](const View& v) { binary(Cpu{}, Binary(f), 3.0, b.view, v); });
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
    binary(Cpu{}, Binary::add, v, row.broadcast(0, 37), v);
    binary(Cpu{}, Binary::mul, column.broadcast(1, 1100), v, v);
  });
  check(y, [&](std::int64_t i) { return column[i / 1100] * (before[i] + row[i % 1100]); });
}

TEST_CASE("integer division and power have no traps") {
  Array a({4}, DType::i32), b({4}, DType::i32), y({4}, DType::i32);
  const std::int32_t least = std::numeric_limits<std::int32_t>::min();
  a.fill([&](std::int64_t i) { return i == 0 ? 7 : i == 1 ? double(least) : i == 2 ? -7 : -1; });
  b.fill([](std::int64_t i) { return i == 0 ? 0 : i == 1 ? -1 : i == 2 ? 2 : -3; });
  binary(Cpu{}, Binary::div, a.view, b.view, y.view);
  CHECK(y[0] == 0);
  CHECK(y[1] == double(least));
  CHECK(y[2] == -3);
  binary(Cpu{}, Binary::pow, a.view, b.view, y.view);
  CHECK(y[0] == 1);
  CHECK(y[2] == 49);
  CHECK(y[3] == -1);
}

TEST_CASE("minimum and maximum give NaN where an operand is NaN") {
  Array a({40}), b({40}), y({40});
  a.fill([](std::int64_t i) { return i % 3 == 0 ? NAN : 1; });
  b.fill([](std::int64_t i) { return i % 5 == 0 ? NAN : 2; });
  for (Binary f : {Binary::minimum, Binary::maximum}) {
    binary(Cpu{}, f, a.view, b.view, y.view);
    check(y, [&](std::int64_t i) { return i % 3 == 0 || i % 5 == 0 ? NAN : f == Binary::minimum ? 1 : 2; });
  }
}

TEST_CASE("compare") {
  for (int f = 0; f <= int(Compare::ge); ++f)
    functors::visit(Compare(f), [&](auto functor) {
      for (DType dtype : all_dtypes)
        for (const Shape& shape : shapes) {
          if (skips(shape, dtype)) continue;
          Array a(shape, dtype, Layout::reversed), b(shape, dtype), y(shape, DType::boolean, Layout::spaced);
          a.random(0, 3);
          b.random(0, 3, 2);
          run(y, [&](const View& v) { compare(Cpu{}, Compare(f), a.view, b.view, v); });
          check(y, [&](std::int64_t i) { return functor(a[i], b[i]); });
          // A number that the dtype does not hold is compared as it is.
          for (double number : {1.0, 1.5, 300.0, -1.0}) {
            run(y, [&](const View& v) { compare(Cpu{}, Compare(f), a.view, number, v); });
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

/// Where element i of x lands in y, whose reduced dimensions have size 1.
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
    {{1}, {0}},          {{31}, {0}},          {{33}, {0}},          {{1025}, {0}},         {{4, 1025}, {1}},     {{1025, 4}, {0}},
    {{33, 31}, {0}},     {{33, 31}, {1}},      {{33, 31}, {0, 1}},   {{5, 6, 7}, {1}},      {{5, 6, 7}, {0, 2}},  {{5, 6, 7}, {}},
    {{2, 3, 4, 5}, {1, 3}}, {{0, 5}, {1}},     {{1, 9}, {0}},        {{300, 1100}, {0}},    {{300, 1100}, {0, 1}}, {{2, 90000}, {1}},
};

}  // namespace

TEST_CASE("reduce") {
  for (const auto& [shape, dims] : reduce_cases)
    for (int f = 0; f <= int(Reduce::all); ++f) {
      const auto function = Reduce(f);
      for (DType dtype : all_dtypes) {
        const bool logical = function == Reduce::any || function == Reduce::all;
        if (dtype == DType::boolean && !logical) continue;
        if (!is_floating(dtype) && function == Reduce::logsumexp) continue;
        for (Layout layout : layouts) {
          if (numel(shape) > 20000 && (layout == Layout::spaced || dtype != DType::f32)) continue;
          Array x(shape, dtype, layout), y(reduced(shape, dims), logical ? DType::boolean : dtype, Layout::spaced);
          x.random(-2, 2);
          if (function == Reduce::prod) x.random(0.95, 1.05);
          if (!is_floating(dtype)) x.random(0, 2);
          const double scale = is_floating(dtype) ? 0.25 : 1;
          CAPTURE(f, name(dtype), numel(shape), int(layout));
          run(y, [&](const View& v) { reduce(Cpu{}, function, x.view, v, scale); });
          const auto expected = groups(x, y);
          double slack = 1;
          if (function == Reduce::sum || function == Reduce::prod) slack = 8;
          check(y, [&](std::int64_t i) {
            const double value = fold(function, expected[static_cast<std::size_t>(i)]) * (function == Reduce::sum ? scale : 1);
            return dtype == DType::u8 ? double(std::uint8_t(std::int64_t(value))) : value;
          }, slack);
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
  View tall = x.view, wide;
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
  for (DType dtype : numbers)
    for (Layout layout : layouts)
      for (const Shape& shape : {Shape{0}, Shape{1025}, Shape{33, 40}, Shape{3, 4, 5}})
        for (int dim = 0; dim < shape.size(); ++dim)
          for (bool reverse : {false, true}) {
            Array x(shape, dtype, layout), y(shape, dtype, Layout::transposed);
            x.random(0, 2);
            run(y, [&](const View& v) { cumsum(Cpu{}, x.view, v, dim, reverse); });
            std::int64_t inner = 1;
            for (int d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
            check(y, [&](std::int64_t i) {
              double sum = 0;
              const std::int64_t at = i / inner % shape[dim];
              for (std::int64_t j = reverse ? at : 0; j < (reverse ? shape[dim] : at + 1); ++j) sum += x[i + (j - at) * inner];
              return dtype == DType::u8 ? double(std::uint8_t(int(sum))) : sum;
            });
          }
}

TEST_CASE("matmul") {
  struct Case {
    std::int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Case{0, 3, 2}, {3, 0, 2}, {3, 4, 0}, {1, 1, 1}, {1, 33, 31}, {33, 1, 1025}, {31, 33, 7}, {40, 40, 32}, {65, 129, 300}, {13, 600, 1025}, {300, 17, 65}, {8, 700, 200}, {700, 20, 200}})
    for (DType dtype : floats)
      for (bool a_columns : {false, true})
        for (bool b_columns : {false, true})
          for (std::int64_t batch : {1, 3}) {
            if (m * n * k > 1000000 && (batch > 1 || dtype == DType::f16)) continue;
            Array a({batch, m, k}, dtype), b({batch, k, n}, dtype), c({batch, m, n + 3}, dtype);
            a.random(-1, 1);
            b.random(-1, 1, 2);
            c.random(-1, 1, 3);
            // The transposed operand holds the same numbers, read in the other order.
            const auto transpose = [](View& view) { view.strides[1] = 1, view.strides[2] = std::max<std::int64_t>(view.shape[1], 1); };
            if (a_columns) transpose(a.view), a.random(-1, 1);
            if (b_columns) transpose(b.view), b.random(-1, 1, 2);
            std::vector<double> products(static_cast<std::size_t>(batch * m * n));
            const auto left = a.values(), right = b.values();
            for (std::int64_t i = 0; i < batch * m; ++i)
              for (std::int64_t j = 0; j < k; ++j)
                for (std::int64_t column = 0; column < n; ++column)
                  products[static_cast<std::size_t>(i * n + column)] +=
                      left[static_cast<std::size_t>(i * k + j)] * right[static_cast<std::size_t>((i / m * k + j) * n + column)];
            for (Write write : {Write::overwrite, Write::accumulate}) {
              Array y = c;
              run(y, [&](const View& v) {
                View out = v;
                out.shape[2] = n;
                matmul(Cpu{}, a.view, b.view, out, 0.5, write);
              });
              CAPTURE(m, n, k, name(dtype), a_columns, b_columns, batch, int(write));
              check(y, [&](std::int64_t i) {
                const std::int64_t column = i % (n + 3);
                if (column >= n) return c[i];
                return 0.5 * products[static_cast<std::size_t>(i / (n + 3) * n + column)] + (write == Write::accumulate ? c[i] : 0);
              }, dtype == DType::f32 || dtype == DType::f64 ? 8 : 2);
            }
          }
}

TEST_CASE("matmul broadcasts over batches and takes heads from strided views") {
  // Keys and queries of 4 heads straight out of a (batch, time, 3 * 4 * 8) projection.
  const std::int64_t B = 3, T = 21, H = 4, D = 8, row = 3 * H * D;
  Array qkv({B, T, row}), scores({B, H, T, T});
  qkv.random(-1, 1);
  View q = qkv.view, k = qkv.view;
  q.shape = {B, H, T, D};
  q.strides = {T * row, D, row, 1};
  k.shape = {B, H, D, T};
  k.strides = {T * row, D, 1, row};
  k.data = qkv.view.as<float>() + H * D;
  run(scores, [&](const View& v) { matmul(Cpu{}, q, k, v, 1, Write::overwrite); });
  check(scores, [&](std::int64_t i) {
    const std::int64_t t = i % T, s = i / T % T, h = i / T / T % H, b = i / T / T / H;
    double sum = 0;
    for (std::int64_t d = 0; d < D; ++d) sum += qkv[(b * T + s) * row + h * D + d] * qkv[(b * T + t) * row + H * D + h * D + d];
    return sum;
  }, 4);

  Array x({5, 6, 7}), w({7, 9}), y({5, 6, 9});
  x.random(-1, 1);
  w.random(-1, 1, 2);
  run(y, [&](const View& v) { matmul(Cpu{}, x.view, w.broadcast(0, 5), v, 1, Write::overwrite); });
  check(y, [&](std::int64_t i) {
    double sum = 0;
    for (std::int64_t j = 0; j < 7; ++j) sum += x[i / 9 * 7 + j] * w[j * 9 + i % 9];
    return sum;
  }, 4);
}

TEST_CASE("gather and scatter_add") {
  for (DType dtype : numbers)
    for (Layout layout : layouts)
      for (int dim : {0, 1, 2}) {
        const Shape shape{5, 40, 33};
        Shape x_shape = shape;
        x_shape[dim] = 9;
        Array x(x_shape, dtype, layout), index(shape, DType::i64, layout), y(shape, dtype), source(shape, dtype, layout), sum(x_shape, dtype, layout);
        x.random(0, 9);
        source.random(0, 2, 3);
        sum.random(0, 2, 4);
        index.random(0, 9, 2);
        const auto at = [&](std::int64_t i) {
          const std::int64_t p[] = {i / (40 * 33), i / 33 % 40, i % 33};
          std::int64_t result = 0;
          for (int d = 0; d < 3; ++d) result = result * x_shape[d] + (d == dim ? std::int64_t(index[i]) : p[d]);
          return result;
        };
        run(y, [&](const View& v) { gather(Cpu{}, x.view, index.view, v, dim); });
        check(y, [&](std::int64_t i) { return x[at(i)]; });
        std::vector<double> expected;
        for (std::int64_t i = 0; i < sum.size(); ++i) expected.push_back(sum[i]);
        for (std::int64_t i = 0; i < source.size(); ++i) expected[static_cast<std::size_t>(at(i))] += source[i];
        run(sum, [&](const View& v) { scatter_add(Cpu{}, v, index.view, source.view, dim); });
        check(sum, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 8);
      }
}

TEST_CASE("index_select and index_add") {
  for (DType dtype : numbers)
    for (Layout layout : layouts)
      for (std::int64_t width : {1, 33, 256}) {
        const std::int64_t A = 2, N = 17, I = 150;
        Array x({A, N, width}, dtype, layout), index({I}, DType::i64, layout), y({A, I, width}, dtype, layout), sum({A, N, width}, dtype, layout);
        x.random(0, 9);
        index.random(0, 17);
        sum.random(0, 2, 4);
        const auto at = [&](std::int64_t i) { return (i / width / I * N + std::int64_t(index[i / width % I])) * width + i % width; };
        run(y, [&](const View& v) { index_select(Cpu{}, x.view, index.view, v); });
        check(y, [&](std::int64_t i) { return x[at(i)]; });
        y.random(0, 2);
        std::vector<double> expected;
        for (std::int64_t i = 0; i < sum.size(); ++i) expected.push_back(sum[i]);
        for (std::int64_t i = 0; i < y.size(); ++i) expected[static_cast<std::size_t>(at(i))] += y[i];
        run(sum, [&](const View& v) { index_add(Cpu{}, v, index.view, y.view); });
        check(sum, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 16);
      }
}

TEST_CASE("an index outside the range throws before anything is written") {
  Array x({2, 3, 4}), index({5}, DType::i64), y({2, 5, 4}), lines({2, 3, 1}, DType::i64), z({2, 3, 1});
  index.fill([](std::int64_t i) { return i == 4 ? 3 : 1; });
  lines.fill([](std::int64_t i) { return i == 5 ? -1 : 1; });
  for (Array* out : {&x, &y, &z}) out->fill([](std::int64_t i) { return double(i); });
  const Array x_before = x, y_before = y, z_before = z;
  CHECK_THROWS_WITH(index_select(Cpu{}, x.view, index.view, y.view), "[index_select] expected indices from 0 to 2 but got 3");
  CHECK_THROWS_WITH(index_add(Cpu{}, x.view, index.view, y.view), "[index_add] expected indices from 0 to 2 but got 3");
  CHECK_THROWS_WITH(gather(Cpu{}, x.view, lines.view, z.view, 2), "[gather] expected indices from 0 to 3 but got -1");
  CHECK_THROWS_WITH(scatter_add(Cpu{}, x.view, lines.view, z.view, 2), "[scatter_add] expected indices from 0 to 3 but got -1");
  CHECK((x.same_bytes(x_before) && y.same_bytes(y_before) && z.same_bytes(z_before)));
}

TEST_CASE("sort is stable, with NaN largest") {
  for (DType dtype : numbers)
    for (Layout layout : layouts)
      for (std::int64_t n : {0, 1, 31, 33, 1025})
        for (bool descending : {false, true}) {
          Array x({3, n}, dtype, layout), values({3, n}, dtype), indices({3, n}, DType::i64);
          x.random(dtype == DType::u8 ? 0 : -9, 9);
          if (is_floating(dtype) && n > 9) {
            x.set(2, NAN);
            x.set(7, -NAN);
            x.set(4, 0.0);
            x.set(5, -0.0);
            x.set(8, -INFINITY);
          }
          run(values, [&](const View& v) { sort(Cpu{}, x.view, v, indices.view, descending); });
          std::vector<std::int64_t> order(static_cast<std::size_t>(n));
          for (std::int64_t row = 0; row < 3; ++row) {
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
              const double p = x[row * n + (descending ? j : i)], q = x[row * n + (descending ? i : j)];
              return p < q || (!std::isnan(p) && std::isnan(q));
            });
            for (std::int64_t i = 0; i < n; ++i) {
              const std::int64_t from = order[static_cast<std::size_t>(i)];
              if (indices[row * n + i] != double(from) || !close(values[row * n + i], x[row * n + from], 0)) FAIL("sorted wrongly at " << i);
            }
          }
          CHECK((values.guards_hold() && indices.guards_hold()));
        }
}

TEST_CASE("random draws are the documented function of seed and position") {
  const std::uint64_t base = 5;
  const PhiloxState state{0x123456789abcdefull, 0xffffffff - 20, &base};
  const auto word = [&](std::int64_t i) { return philox(state.seed, state.offset + base + std::uint64_t(i / 4)).words[i % 4]; };
  for (std::int64_t n : {0, 1, 31, 33, 1025, 20000}) {
    for (DType dtype : floats) {
      Array y({n}, dtype), x({n}, dtype);
      run(y, [&](const View& v) { uniform(Cpu{}, v, -2, 3, state); });
      check(y, [&](std::int64_t i) { return -2 + 5 * double(unit_float(word(i))); });
      run(y, [&](const View& v) { normal(Cpu{}, v, 0.5, 2, state); });
      check(y, [&](std::int64_t i) {
        const std::int64_t first = i / 2 * 2;
        const double u1 = (double(word(first) >> 8) + 0.5) * 0x1p-24, u2 = double(unit_float(word(first + 1)));
        const double radius = std::sqrt(-2 * std::log(dtype == DType::f64 ? u1 : double(float(u1)))), angle = 2 * M_PI * u2;
        return 0.5 + 2 * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
      }, 2);
      x.random(-1, 1);
      const double kept = 1 - 0.3;
      run(y, [&](const View& v) { dropout(Cpu{}, x.view, v, 0.3, state); });
      check(y, [&](std::int64_t i) { return double(unit_float(word(i))) < 0.3 ? 0 : x[i] / kept; });
      run(x, [&](const View& v) { dropout(Cpu{}, v, v, 0.3, state); });
      check(x, [&](std::int64_t i) { return y[i]; });
    }
    for (DType dtype : all_dtypes) {
      Array y({n}, dtype);
      for (double p : {0.0, 0.3, 0.5, 1.0}) {
        run(y, [&](const View& v) { bernoulli(Cpu{}, v, p, state); });
        check(y, [&](std::int64_t i) { return double(unit_float(word(i))) < p; });
      }
    }
    Array y({n}, DType::i64);
    run(y, [&](const View& v) { permutation(Cpu{}, v, state); });
    std::vector<std::pair<std::uint64_t, std::int64_t>> keys;
    for (std::int64_t i = 0; i < n; ++i) {
      const PhiloxBlock block = philox(state.seed, state.offset + base + std::uint64_t(i));
      keys.emplace_back(std::uint64_t(block.words[1]) << 32 | block.words[0], i);
    }
    std::sort(keys.begin(), keys.end());
    check(y, [&](std::int64_t i) { return double(keys[static_cast<std::size_t>(i)].second); });
  }
}

TEST_CASE("cross_entropy and its gradient") {
  for (DType dtype : floats)
    for (std::int64_t columns : {1, 31, 33, 1025, 3000})
      for (double smoothing : {0.0, 0.1})
        for (bool weighted : {false, true}) {
          const std::int64_t rows = 9, ignored = -100;
          const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
          Array memory({rows, columns + 2}, dtype), lse({rows}, wide), targets({rows}, DType::i64), weights({rows}, wide), losses({rows}, wide);
          Array g({rows}, wide), dx({rows, columns}, dtype);
          memory.random(-4, 4);
          View x = memory.view;
          x.shape[1] = columns;
          const auto at = [&](std::int64_t n, std::int64_t v) { return memory[n * (columns + 2) + v]; };
          targets.random(0, double(columns)).set(3, double(ignored));
          weights.random(0.5, 2);
          g.random(-1, 1);
          lse.fill([&](std::int64_t n) {
            double sum = 0;
            for (std::int64_t v = 0; v < columns; ++v) sum += std::exp(at(n, v));
            return std::log(sum);
          });
          const View none, &w = weighted ? weights.view : none;
          run(losses, [&](const View& y) { cross_entropy(Cpu{}, x, lse.view, targets.view, w, y, smoothing, ignored); });
          check(losses, [&](std::int64_t n) {
            if (n == 3) return 0.0;
            double mean = 0;
            for (std::int64_t v = 0; v < columns; ++v) mean += at(n, v) / double(columns);
            const double loss = (1 - smoothing) * (lse[n] - at(n, std::int64_t(targets[n]))) + smoothing * (lse[n] - mean);
            return loss * (weighted ? weights[n] : 1);
          });
          for (bool shared : {false, true}) {
            View gradient = g.view;
            if (shared) gradient.strides[0] = 0;
            run(dx, [&](const View& y) { cross_entropy_grad(Cpu{}, x, lse.view, targets.view, w, gradient, y, smoothing, ignored); });
            check(dx, [&](std::int64_t i) {
              const std::int64_t n = i / columns, v = i % columns;
              if (n == 3) return 0.0;
              const double hit = v == std::int64_t(targets[n]) ? 1 - smoothing : 0;
              return g[shared ? 0 : n] * (weighted ? weights[n] : 1) * (std::exp(at(n, v) - lse[n]) - hit - smoothing / double(columns));
            });
          }
          if (columns == 31) {
            targets.set(8, 31);
            CHECK_THROWS_AS(cross_entropy(Cpu{}, x, lse.view, targets.view, w, losses.view, smoothing, ignored), Error);
            CHECK_THROWS_AS(cross_entropy_grad(Cpu{}, x, lse.view, targets.view, w, g.view, dx.view, smoothing, ignored), Error);
          }
        }
}

TEST_CASE("adam and sgd") {
  for (DType dtype : {DType::f32, DType::f64})
    for (std::int64_t n : {0, 1, 31, 33, 1025, 70000})
      for (bool variant : {false, true}) {
        Array p({n}, dtype), g({n}, dtype), m({n}, dtype), v({n}, dtype), lr({1}), step({1});
        p.random(-1, 1);
        g.random(-1, 1, 2);
        m.random(-1, 1, 3);
        v.random(0, 1, 4);
        lr.fill([](std::int64_t) { return 0.125; });
        step.fill([](std::int64_t) { return 3; });
        Array p1 = p, m1 = m, v1 = v;
        run(p1, [&](const View& out) {
          Array m2 = m, v2 = v;
          adam(Cpu{}, {out, g.view, m2.view, v2.view, lr.view, step.view, 0.9, 0.99, 1e-6, 0.1, variant});
          std::memcpy(m1.view.data, m2.view.data, static_cast<std::size_t>(n) * size_of(dtype));
          std::memcpy(v1.view.data, v2.view.data, static_cast<std::size_t>(n) * size_of(dtype));
        });
        const auto gradient = [&](std::int64_t i) { return g[i] + (variant ? 0 : 0.1 * p[i]); };
        const auto first = [&](std::int64_t i) { return 0.9 * m[i] + (1 - 0.9) * gradient(i); };
        const auto second = [&](std::int64_t i) { return 0.99 * v[i] + (1 - 0.99) * gradient(i) * gradient(i); };
        check(m1, first);
        check(v1, second);
        check(p1, [&](std::int64_t i) {
          const double decayed = variant ? p[i] * (1 - 0.125 * 0.1) : p[i];
          return decayed - 0.125 * (first(i) / (1 - std::pow(0.9, 3))) / (std::sqrt(second(i) / (1 - std::pow(0.99, 3))) + 1e-6);
        }, 8);

        Array p3 = p, buffer = m;
        run(p3, [&](const View& out) {
          Array momentum = m;
          sgd(Cpu{}, {out, g.view, momentum.view, lr.view, 0.75, 0.5, variant});
          std::memcpy(buffer.view.data, momentum.view.data, static_cast<std::size_t>(n) * size_of(dtype));
        });
        const auto decayed = [&](std::int64_t i) { return g[i] + 0.5 * p[i]; };
        const auto velocity = [&](std::int64_t i) { return 0.75 * m[i] + decayed(i); };
        check(buffer, velocity);
        check(p3, [&](std::int64_t i) { return p[i] - 0.125 * (variant ? decayed(i) + 0.75 * velocity(i) : velocity(i)); });
        Array p4 = p;
        run(p4, [&](const View& out) { sgd(Cpu{}, {out, g.view, {}, lr.view, 0, 0.5, false}); });
        check(p4, [&](std::int64_t i) { return p[i] - 0.125 * decayed(i); });
      }
}
