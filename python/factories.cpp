// New tensors, regular and random (ops/factory.h, ops/random.h).
#include "binding.h"
#include "ops/factory.h"
#include "ops/random.h"

namespace tern::python {

namespace {

void bind_regular(nb::module_& m) {
  const auto shaped = [&](const char* name, Tensor (*f)(const Shape&, DType, Device)) {
    m.def(
        name, [f](const Shape& shape, DType dtype, const DeviceLike& device) { return f(shape, dtype, device.get()); }, "shape"_a,
        "dtype"_a = DType::f32, "device"_a = nb::none(), Released());
  };
  shaped("zeros", &zeros);
  shaped("ones", &ones);
  shaped("empty", &empty);
  m.def(
      "full",
      [](const Shape& shape, const Number& value, DType dtype, const DeviceLike& device) {
        return full(shape, value, dtype, device.get());
      },
      "shape"_a, "value"_a, "dtype"_a = DType::f32, "device"_a = nb::none(), Released());
  m.def("zeros_like", &zeros_like, "x"_a, Released());
  m.def("ones_like", &ones_like, "x"_a, Released());
  m.def("empty_like", &empty_like, "x"_a, Released());
  m.def("full_like", [](const Tensor& x, const Number& value) { return full_like(x, value); }, "x"_a, "value"_a, Released());
  // As in Python's range: one number is the end.
  using Bound = std::variant<std::int64_t, double>;
  m.def(
      "arange",
      [](const Bound& start, const std::optional<Bound>& stop, const Bound& step, std::optional<DType> dtype, const DeviceLike& device) {
        const auto is_real = [](const Bound& bound) { return std::holds_alternative<double>(bound); };
        const auto number = [](const Bound& bound) { return std::visit([](auto x) { return static_cast<double>(x); }, bound); };
        const bool has_real = is_real(start) || is_real(step) || (stop && is_real(*stop));
        return arange(stop ? number(start) : 0, number(stop.value_or(start)), number(step),
                      dtype.value_or(has_real ? DType::f32 : DType::i64), device.get());
      },
      "start"_a, "stop"_a = nb::none(), "step"_a = 1, "dtype"_a = nb::none(), "device"_a = nb::none(), Released(),
      "start, start + step, ... below stop; arange(n) is 0 .. n - 1. Of ints i64, and with a float among them f32, unless told.");
  m.def(
      "linspace",
      [](double start, double stop, std::int64_t count, DType dtype, const DeviceLike& device) {
        return linspace(start, stop, count, dtype, device.get());
      },
      "start"_a, "stop"_a, "count"_a, "dtype"_a = DType::f32, "device"_a = nb::none(), Released());
  m.def(
      "eye",
      [](std::int64_t n, std::optional<std::int64_t> columns, std::int64_t diagonal, DType dtype, const DeviceLike& device) {
        return eye(n, columns, diagonal, dtype, device.get());
      },
      "n"_a, "m"_a = nb::none(), "diagonal"_a = 0, "dtype"_a = DType::f32, "device"_a = nb::none(), Released());
}

}  // namespace

void bind_factories(nb::module_& m) {
  bind_regular(m);
  m.def(
      "rand",
      [](const Shape& shape, double low, double high, DType dtype, const DeviceLike& device) {
        return rand(shape, low, high, dtype, device.get());
      },
      "shape"_a, "low"_a = 0, "high"_a = 1, "dtype"_a = DType::f32, "device"_a = nb::none(), Released());
  m.def(
      "randn",
      [](const Shape& shape, double mean, double deviation, DType dtype, const DeviceLike& device) {
        return randn(shape, mean, deviation, dtype, device.get());
      },
      "shape"_a, "mean"_a = 0, "deviation"_a = 1, "dtype"_a = DType::f32, "device"_a = nb::none(), Released());
  m.def("rand_like", &rand_like, "x"_a, Released());
  m.def("randn_like", &randn_like, "x"_a, Released());
  m.def(
      "bernoulli",
      [](const Shape& shape, double probability, DType dtype, const DeviceLike& device) {
        return bernoulli(shape, probability, dtype, device.get());
      },
      "shape"_a, "probability"_a, "dtype"_a = DType::f32, "device"_a = nb::none(), Released());
  m.def(
      "randint",
      [](std::int64_t low, std::int64_t high, const Shape& shape, DType dtype, const DeviceLike& device) {
        return randint(low, high, shape, dtype, device.get());
      },
      "low"_a, "high"_a, "shape"_a, "dtype"_a = DType::i64, "device"_a = nb::none(), Released(), "Whole numbers, uniform in [low, high).");
  m.def(
      "randperm", [](std::int64_t n, const DeviceLike& device) { return randperm(n, device.get()); }, "n"_a, "device"_a = nb::none(),
      Released());
  m.def("uniform_", &uniform_, "x"_a, "low"_a = 0, "high"_a = 1, Released());
  m.def("normal_", &normal_, "x"_a, "mean"_a = 0, "deviation"_a = 1, Released());
}

}  // namespace tern::python
