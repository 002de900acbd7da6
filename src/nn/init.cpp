#include "nn/init.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "autodiff/node.h"
#include "ops/factory.h"
#include "ops/random.h"

namespace tern::nn::init {

bool& Unset::here() {
  thread_local bool unset = false;
  return unset;
}

Tensor constant(const Tensor& x, double value) {
  const NoGrad unrecorded;
  return fill_(x, value);
}

Tensor uniform(const Tensor& x, double low, double high) {
  const NoGrad unrecorded;
  return Unset::here() ? x : uniform_(x, low, high);
}

Tensor normal(const Tensor& x, double mean, double deviation) {
  const NoGrad unrecorded;
  return Unset::here() ? x : normal_(x, mean, deviation);
}

/// Inverse of std::erf: Winitzki's closed approximation (2008), then Newton steps to double precision.
static double inverse_erf(double y) {
  y = std::clamp(y, -1 + 1e-15, 1 - 1e-15);
  constexpr double a = 0.147;
  const double logarithm = std::log1p(-y * y), b = 2 / (std::numbers::pi * a) + logarithm / 2;
  double x = std::copysign(std::sqrt(std::sqrt(b * b - logarithm / a) - b), y);
  for (int i = 0; i < 3; ++i) x -= (std::erf(x) - y) * std::exp(x * x) * std::sqrt(std::numbers::pi) / 2;
  return x;
}

Tensor trunc_normal(const Tensor& x, double mean, double deviation, double low, double high) {
  if (!(low < high)) fail("trunc_normal", fmt::format("expected low < high but got {} and {}", low, high));
  if (Unset::here()) return x;
  const NoGrad unrecorded;
  // Inverse of the distribution function at uniform numbers: no rejection, so that each element is a function of its own random number and
  // all devices agree.
  const auto erf_at = [&](double bound) { return std::erf((bound - mean) / (deviation * std::numbers::sqrt2)); };
  std::vector<double> values = rand(x.shape(), erf_at(low), erf_at(high), DType::f64, cpu).to_vector<double>();
  for (double& value : values) value = std::clamp(mean + deviation * std::numbers::sqrt2 * inverse_erf(value), low, high);
  return copy_(x, Tensor::from(values, x.shape(), cpu));
}

Fans fans(const Shape& shape) {
  if (shape.size() < 2) fail("init", fmt::format("expected a weight of two or more dimensions but got {}", to_string(shape)));
  const std::int64_t field = numel(Shape(shape.begin() + 2, shape.end()));
  return {shape[1] * field, shape[0] * field};
}

static double xavier_deviation(const Tensor& x, double gain) {
  const Fans fan = fans(x.shape());
  return gain * std::sqrt(2.0 / static_cast<double>(std::max<std::int64_t>(fan.in + fan.out, 1)));
}

static double kaiming_deviation(const Tensor& x, double a) {
  return std::sqrt(2 / (1 + a * a) / static_cast<double>(std::max<std::int64_t>(fans(x.shape()).in, 1)));
}

/// Uniform in +-bound, which has the deviation bound / sqrt(3).
static Tensor uniform_with_deviation(const Tensor& x, double deviation) {
  const double bound = std::sqrt(3.0) * deviation;
  return uniform(x, -bound, bound);
}

Tensor xavier_uniform(const Tensor& x, double gain) { return uniform_with_deviation(x, xavier_deviation(x, gain)); }
Tensor xavier_normal(const Tensor& x, double gain) { return normal(x, 0, xavier_deviation(x, gain)); }
Tensor kaiming_uniform(const Tensor& x, double a) { return uniform_with_deviation(x, kaiming_deviation(x, a)); }
Tensor kaiming_normal(const Tensor& x, double a) { return normal(x, 0, kaiming_deviation(x, a)); }

}  // namespace tern::nn::init

void tern::nn::detail::make_weight_and_bias(Tensor& weight, Tensor& bias, const Shape& shape, bool with_bias, Device device) {
  weight = init::kaiming_uniform(parameter(shape, device), std::sqrt(5.0));
  if (!with_bias) return;
  const double bound = 1 / std::sqrt(static_cast<double>(init::fans(shape).in));
  bias = init::uniform(parameter({shape[0]}, device), -bound, bound);
}
