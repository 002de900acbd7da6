#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "ops/factory.h"
#include "ops/kernels/optimizer.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/tensor.h"
#include "train/optimizer.h"

namespace tern::train {

using detail::require;

/// Operands that every rule has, as its kernel takes them.
template <class Arguments>
static Arguments operands(const ParameterRange& range) {
  Arguments arguments;
  arguments.parameter = range.parameter.view();
  arguments.gradient = range.gradient.view();
  arguments.lr = range.lr.view();
  arguments.master = view_of(range.master);
  arguments.scale = {view_of(range.scale.factor), view_of(range.scale.advance)};
  return arguments;
}

std::vector<std::string> SGDOptions::moments() const {
  require("SGD", momentum >= 0, "a momentum >= 0", momentum);
  require("SGD", weight_decay >= 0, "a weight decay >= 0", weight_decay);
  require("SGD", !nesterov || momentum > 0, "a momentum > 0 with nesterov", momentum);
  return momentum != 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{};
}

void SGDOptions::update(const ParameterRange& range) const {
  auto arguments = operands<kernels::Sgd>(range);
  if (momentum != 0) arguments.momentum = range.moments[0].view();
  arguments.momentum_factor = momentum;
  arguments.weight_decay = weight_decay;
  arguments.nesterov = nesterov;
  launch(range.parameter.device(), arguments, "sgd");
}

std::vector<std::string> LionOptions::moments() const {
  require("Lion", beta1 >= 0 && beta1 < 1, "0 <= beta1 < 1", beta1);
  require("Lion", beta2 >= 0 && beta2 < 1, "0 <= beta2 < 1", beta2);
  require("Lion", weight_decay >= 0, "a weight decay >= 0", weight_decay);
  return {"m"};
}

void LionOptions::update(const ParameterRange& range) const {
  auto arguments = operands<kernels::Lion>(range);
  arguments.m = range.moments[0].view();
  arguments.beta1 = beta1;
  arguments.beta2 = beta2;
  arguments.weight_decay = weight_decay;
  launch(range.parameter.device(), arguments, "lion");
}

std::vector<std::string> RMSpropOptions::moments() const {
  require("RMSprop", alpha >= 0 && alpha < 1, "0 <= alpha < 1", alpha);
  require("RMSprop", eps > 0, "eps > 0", eps);
  require("RMSprop", weight_decay >= 0, "a weight decay >= 0", weight_decay);
  require("RMSprop", momentum >= 0, "a momentum >= 0", momentum);
  std::vector<std::string> names{"v"};
  if (centered) names.emplace_back("m");
  if (momentum != 0) names.emplace_back("momentum");
  return names;
}

void RMSpropOptions::update(const ParameterRange& range) const {
  auto arguments = operands<kernels::Rmsprop>(range);
  arguments.v = range.moments[0].view();
  if (centered) arguments.m = range.moments[1].view();
  if (momentum != 0) arguments.momentum = range.moments.back().view();
  arguments.alpha = alpha;
  arguments.eps = eps;
  arguments.weight_decay = weight_decay;
  arguments.momentum_factor = momentum;
  launch(range.parameter.device(), arguments, "rmsprop");
}

template <class Options>
static std::vector<std::string> adam_moments(const char* where, const Options& o) {
  require(where, o.beta1 >= 0 && o.beta1 < 1, "0 <= beta1 < 1", o.beta1);
  require(where, o.beta2 >= 0 && o.beta2 < 1, "0 <= beta2 < 1", o.beta2);
  require(where, o.eps >= 0, "eps >= 0", o.eps);
  require(where, o.weight_decay >= 0, "a weight decay >= 0", o.weight_decay);
  return {"m", "v"};
}

template <class Options>
static void adam(const Options& o, bool decoupled, const ParameterRange& range) {
  auto arguments = operands<kernels::Adam>(range);
  arguments.m = range.moments[0].view();
  arguments.v = range.moments[1].view();
  arguments.step = range.steps.view();
  arguments.beta1 = o.beta1;
  arguments.beta2 = o.beta2;
  arguments.eps = o.eps;
  arguments.weight_decay = o.weight_decay;
  arguments.decoupled = decoupled;
  launch(range.parameter.device(), arguments, "adam");
}

std::vector<std::string> AdamOptions::moments() const { return adam_moments("Adam", *this); }
void AdamOptions::update(const ParameterRange& range) const { adam(*this, false, range); }

std::vector<std::string> AdamWOptions::moments() const { return adam_moments("AdamW", *this); }
void AdamWOptions::update(const ParameterRange& range) const { adam(*this, true, range); }

Muon::Muon(const std::vector<Group>& matrices, const std::vector<AdamW::Group>& others) {
  for (const Group& group : matrices) add_group(group);
  for (const AdamW::Group& group : others) add_group(group);
  require_parameters();
}

Muon::Muon(const Tensors& matrices, const MuonOptions& options, const Tensors& others, const AdamWOptions& adam)
    : Muon(std::vector<Group>{{matrices, options}},
           others.empty() ? std::vector<AdamW::Group>{} : std::vector<AdamW::Group>{{others, adam}}) {}

std::vector<std::string> MuonOptions::moments() const {
  require("Muon", momentum >= 0 && momentum < 1, "0 <= momentum < 1", momentum);
  require("Muon", weight_decay >= 0, "a weight decay >= 0", weight_decay);
  require("Muon", iterations >= 1, "at least one iteration", iterations);
  if (dtype != DType::bf16 && dtype != DType::f32) fail("Muon", fmt::format("expected products of bf16 or f32 but got {}", name(dtype)));
  return {"m"};
}

void Muon::add_group(const Group& group) {
  for (const Tensor& x : group.parameters)
    if (x.dims() < 2)
      fail("Muon", fmt::format("expected matrices but got {}: pass it to AdamW, in one of the other groups", to_string(x.shape())));
  add_parameters(group.parameters, group.options);
}

Tensor orthogonalize(const Tensor& x, int iterations) {
  if (x.dims() < 2) fail("orthogonalize", fmt::format("expected matrices but got {}", to_string(x.shape())));
  const NoGrad unrecorded;
  const NoAutocast exact;
  // Products of the shorter side are smaller.
  const bool is_tall = x.size(-2) > x.size(-1);
  Tensor y = is_tall ? transpose(x, -2, -1) : x;
  const Tensor wide = cast(y, x.dtype() == DType::f64 ? DType::f64 : DType::f32);  // squares of 16-bit floats overflow or underflow
  y = cast(wide / (sqrt(sum(wide * wide, {-2, -1}, true)) + 1e-7), x.dtype());
  for (int i = 0; i < iterations; ++i) {
    const Tensor a = matmul(y, transpose(y, -2, -1));
    y = 3.4445 * y + matmul(-4.7750 * a + 2.0315 * matmul(a, a), y);
  }
  return is_tall ? transpose(y, -2, -1) : y;
}

void MuonOptions::update(std::span<const ParameterRange> ranges) const {
  const NoAutocast exact;
  constexpr std::int64_t most = std::int64_t{1} << 25;  // elements that are orthogonalized together: more take memory, and are not faster
  const auto value_of = [](const ParameterRange& range) { return range.master.defined() ? range.master : range.parameter; };
  const auto update = [&](const Shape& shape, const std::vector<const ParameterRange*>& together) {
    const DType kept = value_of(*together[0]).dtype();
    Tensors means, directions;
    for (const ParameterRange* range : together) {
      Tensor gradient = cast(range->gradient, kept);
      if (range->scale.factor.defined()) gradient = gradient * cast(range->scale.factor, kept);
      means.push_back(momentum * range->moments[0] + (1 - momentum) * gradient);
      const Tensor direction = nesterov ? momentum * means.back() + (1 - momentum) * gradient : means.back();
      directions.push_back(cast(reshape(direction, shape), kept == DType::f64 ? kept : dtype));
    }
    const Tensor updates = orthogonalize(stack(directions), iterations), rate = cast(together[0]->lr, kept);
    const double stretch = std::sqrt(std::max(1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1])));
    const Tensor decay = 1 - weight_decay * rate, step = stretch * rate;
    for (std::size_t i = 0; i < together.size(); ++i) {
      const ParameterRange& range = *together[i];
      const Tensor value = value_of(range), own = cast(select(updates, 0, static_cast<std::int64_t>(i)), kept);
      // A step that is skipped after an overflow has gradients that are not finite: where(), because a factor of 0 would give NaN.
      const auto write = [&](const Tensor& target, const Tensor& source) {
        copy_(target, range.scale.advance.defined() ? where(ne(range.scale.advance, 0), source, target) : source);
      };
      write(range.moments[0], means[i]);
      write(value, value * decay - step * reshape(own, {-1}));
      if (range.master.defined()) copy_(range.parameter, value);
    }
  };
  std::map<std::tuple<std::int64_t, std::int64_t, DType>, std::vector<const ParameterRange*>> alike;
  for (const ParameterRange& range : ranges) {
    const std::int64_t numel = range.parameter.numel();
    if (numel == 0) continue;
    const Shape shape{range.shape[0], numel / range.shape[0]};
    std::vector<const ParameterRange*>& together = alike[{shape[0], shape[1], value_of(range).dtype()}];
    if (!together.empty() && static_cast<std::int64_t>(together.size() + 1) * numel > most) update(shape, std::exchange(together, {}));
    together.push_back(&range);
  }
  for (const auto& [key, together] : alike) update({std::get<0>(key), std::get<1>(key)}, together);
}

}  // namespace tern::train
