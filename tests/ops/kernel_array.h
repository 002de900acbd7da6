#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "catch.h"
#include "tensor/dispatch.h"
#include "tensor/view.h"

namespace tern::test {

enum class Layout { packed, transposed, spaced, reversed };
inline constexpr Layout layouts[] = {Layout::packed, Layout::transposed, Layout::spaced, Layout::reversed};
inline constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean};
inline constexpr DType floats[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
inline constexpr DType numbers[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8};

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

inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f32: return 2e-6;
    case DType::f64: return 1e-13;
    case DType::f16: return 1.5e-3;
    case DType::bf16: return 1e-2;
    default: return 0;
  }
}

inline bool close(double value, double expected, double bound) {
  if (std::isnan(expected)) return std::isnan(value);
  return value == expected || std::abs(value - expected) <= bound * (1 + std::abs(expected));
}

/// Fails with the first element that is further from expected(i) than the dtype's tolerance times `slack`.
inline void check(const Array& y, const std::function<double(std::int64_t)>& expected, double slack = 1) {
  for (std::int64_t i = 0; i < y.size(); ++i) {
    if (close(y[i], expected(i), slack * tolerance(y.view.dtype))) continue;
    CAPTURE(i, y.size(), name(y.view.dtype));
    REQUIRE(y[i] == Approx(expected(i)));
    FAIL("beyond the tolerance");
  }
  REQUIRE(y.guards_hold());
}

/// The dtype of what a kernel keeps of rows of another one.
inline DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }
inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Normally distributed, so that rows have a unit scale.
inline Array& normal(Array& x, double mean, double deviation, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> draw(mean, deviation);
  return x.fill([&](std::int64_t) { return draw(engine); });
}

/// The largest distance from the reference as a part of the largest reference, and NaN where one of the two alone is NaN.
inline double error(const Array& y, const std::vector<double>& expected) {
  double worst = 0, scale = 0;
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const double value = y[i], reference = expected[index(i)];
    if (std::isnan(reference) && std::isnan(value)) continue;
    if (std::isnan(reference) || std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
    worst = std::max(worst, std::abs(value - reference));
    scale = std::max(scale, std::abs(reference));
  }
  return worst == 0 ? 0 : worst / scale;
}

inline void check(const Array& y, const std::vector<double>& expected, double slack = 1) {
  check(y, [&](std::int64_t i) { return expected[index(i)]; }, slack);
}

/// Runs f on y with one thread and with two, which must give the same bytes.
inline void run(Array& y, const std::function<void(const View&)>& f) {
  Array other = y;
  set_num_threads(1);
  f(y.view);
  set_num_threads(2);
  f(other.view);
  REQUIRE(y.same_bytes(other));
}

inline const std::vector<Shape> shapes = {{}, {0}, {1}, {31}, {33}, {1025}, {3, 0, 2}, {5, 33}, {7, 1, 31}, {2, 3, 4, 5}, {40, 1025}};

/// The largest shape is for sharing among threads, which one dtype shows.
inline bool skips(const Shape& shape, DType dtype, Layout layout = Layout::packed) {
  return numel(shape) > 2000 && (dtype != DType::f32 || layout != Layout::packed);
}

inline Shape reduced(Shape shape, const std::vector<int>& dims) {
  for (int d : dims) shape[d] = 1;
  return shape;
}

}  // namespace tern::test
