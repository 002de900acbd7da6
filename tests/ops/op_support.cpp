// How the table's inputs are made, laid out in memory and compared.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "op_cases.h"
#include "tensor/dispatch.h"

namespace tern::op_cases {

namespace {

double unit(std::uint64_t seed, std::uint64_t i) { return unit_float(philox(seed, i, 99).words[0]); }

/// A tensor of any dtype from whole or broken numbers.
Tensor from_doubles(const std::vector<double>& values, const Shape& shape, DType dtype) {
  return dispatch_all(dtype, [&]<class T>() {
    const auto converted = std::make_unique<T[]>(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bool>) converted[i] = values[i] != 0;
      else if constexpr (std::is_arithmetic_v<T>) converted[i] = static_cast<T>(values[i]);
      else converted[i] = T(static_cast<float>(values[i]));
    }
    return Tensor::from(std::span<const T>(converted.get(), values.size()), shape);
  });
}

}  // namespace

Tensor make_input(const Input& input, DType dtype, std::size_t position) {
  dtype = input.dtype.value_or(dtype);
  const auto count = static_cast<std::size_t>(numel(input.shape));
  const std::uint64_t seed = 17 * position + count;
  std::vector<double> values(count);
  std::vector<std::size_t> order(input.distinct ? count : 0);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[philox(seed, i, 98).words[0] % i]);
  for (std::size_t i = 0; i < count; ++i) {
    const double u = input.distinct ? (static_cast<double>(order[i]) + 0.5) / static_cast<double>(count) : unit(seed, i);
    double v = input.low + (input.high - input.low) * u;
    for (double kink : input.kinks)
      if (std::abs(v - kink) < 0.1) v = kink + (v < kink ? -0.1 : 0.1);
    if (input.whole || !is_floating(dtype)) v = std::floor(v);
    if (dtype == DType::u8) v = std::abs(v);
    if (dtype == DType::boolean) v = u < 0.5;
    values[i] = v;
  }
  return from_doubles(values, input.shape, dtype);
}

reference::Array read(const Tensor& x) {
  reference::Array result{x.shape(), x.dtype(), {}};
  dispatch_all(x.dtype(), [&]<class T>() {
    for (const T value : x.to_vector<T>()) result.values.push_back(static_cast<double>(value));
  });
  return result;
}

Tolerance Tolerance::operator*(double factor) const { return {relative * factor, absolute * factor}; }

Tolerance tolerance(DType dtype, double slack, double roundings) {
  switch (dtype) {
    case DType::f64: return {1e-12 * slack, 0};
    case DType::f32: return {2e-6 * slack, 0};
    // Half a unit in the last place, and half the smallest number.
    case DType::f16: return {2e-6 * slack + 0x1p-11 * roundings, 0x1p-25 * roundings};
    case DType::bf16: return {2e-6 * slack + 0x1p-8 * roundings, 0};
    default: return {};
  }
}
Tolerance forward_tolerance(const Row& row, DType dtype) { return tolerance(dtype, row.slack, row.roundings); }
Tolerance gradient_tolerance(const Row& row, DType dtype) { return tolerance(dtype, 6 * row.slack, row.gradient_roundings); }

std::string difference(const reference::Array& got, const reference::Array& want, const Tolerance& tolerance) {
  if (got.dtype != want.dtype) return fmt::format("expected {} but got {}", name(want.dtype), name(got.dtype));
  if (got.shape != want.shape) return fmt::format("expected shape {} but got {}", to_string(want.shape), to_string(got.shape));
  if (got.values.size() != want.values.size()) return "expected as many elements as the shape says";
  double scale = 0;
  for (const double w : want.values)
    if (std::isfinite(w)) scale = std::max(scale, std::abs(w));
  scale = std::clamp(scale, 0.25, 1.0);
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    const double g = got.values[i], w = want.values[i];
    const bool same = g == w || (std::isnan(g) && std::isnan(w));
    if (!same && !(std::abs(g - w) <= tolerance.relative * (scale + std::abs(w)) + tolerance.absolute))
      return fmt::format("element {} of {}: expected {:.17g} but got {:.17g}", i, to_string(want.shape), w, g);
  }
  return "";
}

std::string difference(const Tensor& got, const reference::Array& want, const Tolerance& tolerance) {
  if (!got.defined()) return "expected a tensor but got an undefined one";
  return difference(read(got), want, tolerance);
}

std::string difference(const Tensor& got, const Tensor& want, const Tolerance& tolerance) {
  if (got.defined() != want.defined()) return "one is undefined";
  return got.defined() ? difference(read(got), read(want), tolerance) : "";
}

std::string describe(const Row& row, const Case& op, std::size_t number, DType dtype) {
  std::string shapes;
  for (const Input& input : op.inputs) shapes += " " + to_string(input.shape);
  return fmt::format("{}{} #{} {}{}", row.name, row.is_plain ? " (plain)" : "", number, name(dtype), shapes);
}

Row plain(Row row) {
  row.is_plain = true;
  for (Case& op : row.cases)
    op.call = [call = op.call](In in) {
      const PlainKernels scope;
      return call(in);
    };
  for (Mistake& mistake : row.mistakes)
    mistake.call = [call = mistake.call] {
      const PlainKernels scope;
      call();
    };
  return row;
}

Reference composed(Call call) {
  return [call = std::move(call)](Ref in) {
    const PlainKernels scope;
    Arguments exact{{}, DType::f64, cpu};
    for (A x : in.inputs) exact.inputs.push_back(from_doubles(x.values, x.shape, is_floating(x.dtype) ? DType::f64 : x.dtype));
    reference::Arrays result;
    for (T y : call(exact)) {
      result.push_back(read(y));
      if (is_floating(y.dtype())) result.back().dtype = in.dtype;
    }
    return result;
  };
}

static std::int64_t elements_of(const Case& op) {
  std::int64_t elements = 0;
  for (const Input& input : op.inputs) elements = std::max(elements, numel(input.shape));
  return elements;
}
bool is_huge(const Case& op) { return elements_of(op) > huge_case; }

std::vector<DType> dtypes_of(const Row& row, const Case& op, Device device) {
  if (is_huge(op) && device == cpu) return {};
  const std::vector<DType>& all = op.dtypes.empty() ? row.dtypes : op.dtypes;
  if (elements_of(op) <= large_case) return all;
  std::vector<DType> some;
  for (const DType dtype : all)
    if (dtype == DType::f32 || (dtype == DType::bf16 && device != cpu)) some.push_back(dtype);
  return some.empty() ? std::vector{all.front()} : some;
}

Tensor sample(const Shape& shape, DType dtype) {
  return from_doubles(std::vector<double>(static_cast<std::size_t>(numel(shape))), shape, dtype);
}

const char* name(Layout layout) {
  constexpr const char* names[] = {"contiguous", "offset", "apart", "transposed", "stepped", "reversed"};
  return names[static_cast<int>(layout)];
}

Tensor with_layout(const Tensor& x, Layout layout) {
  if (layout == Layout::contiguous) return x;
  constexpr std::int64_t margin = 3;  // not a multiple of a vector's width
  Shape places = x.shape();
  if (layout == Layout::stepped && x.dims() > 0) places[x.dims() - 1] = 2 * places.back() + 1;
  if (layout == Layout::apart && x.dims() > 0) places[x.dims() - 1] += 5;
  Strides strides = contiguous_strides(places);
  std::int64_t offset = margin;
  if (layout == Layout::transposed) {
    std::int64_t stride = 1;
    for (int i = 0; i < x.dims(); ++i) {
      strides[i] = stride;
      stride *= std::max<std::int64_t>(x.shape()[i], 1);
    }
  } else if (layout == Layout::stepped && x.dims() > 0) {
    strides.back() = 2;
    ++offset;
  } else if (layout == Layout::reversed) {
    for (int i = 0; i < x.dims() && x.numel() > 0; ++i) {
      offset += (x.shape()[i] - 1) * strides[i];
      strides[i] = -strides[i];
    }
  }
  return dispatch_all(x.dtype(), [&]<class T>() {
    const auto count = static_cast<std::size_t>(numel(places) + 2 * margin);
    const auto storage = std::make_unique<T[]>(count);
    T guard{};
    if constexpr (std::is_same_v<T, bool>) guard = true;
    else if constexpr (std::is_integral_v<T>) guard = T(77);
    else guard = T(std::numeric_limits<float>::quiet_NaN());
    std::fill_n(storage.get(), count, guard);
    const std::vector<T> values = x.to_vector<T>();
    std::size_t next = 0;
    reference::each(x.shape(), [&](const Shape& index) {
      std::int64_t at = offset;
      for (int i = 0; i < index.size(); ++i) at += index[i] * strides[i];
      storage[static_cast<std::size_t>(at)] = values[next++];
    });
    const Tensor whole = Tensor::from(std::span<const T>(storage.get(), count), {static_cast<std::int64_t>(count)});
    return whole.window(x.shape(), strides, offset);
  });
}

std::vector<unsigned char> storage_bytes(const Tensor& x) {
  const auto* bytes = static_cast<const unsigned char*>(x.impl().storage->data());
  return {bytes, bytes + x.impl().storage->bytes()};
}

std::vector<unsigned char> guard_bytes(const Tensor& x) {
  std::vector<unsigned char> bytes = storage_bytes(x);
  const std::size_t width = size_of(x.dtype());
  reference::each(x.shape(), [&](const Shape& index) {
    std::int64_t at = x.offset();
    for (int i = 0; i < index.size(); ++i) at += index[i] * x.strides()[i];
    std::memset(bytes.data() + static_cast<std::size_t>(at) * width, 0, width);
  });
  return bytes;
}

}  // namespace tern::op_cases
