#include "ops/kernels/optimizer.h"
#include "tensor/tensor.h"
#include "train/detail/require.h"
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
  auto arguments = operands<kernels::SgdArguments>(range);
  if (momentum != 0) arguments.momentum = range.moments[0].view();
  arguments.momentum_factor = momentum;
  arguments.weight_decay = weight_decay;
  arguments.nesterov = nesterov;
  on(range.parameter.device(), [&](auto dev) { kernels::sgd(dev, arguments); }, "sgd");
}

std::vector<std::string> LionOptions::moments() const {
  require("Lion", beta1 >= 0 && beta1 < 1, "0 <= beta1 < 1", beta1);
  require("Lion", beta2 >= 0 && beta2 < 1, "0 <= beta2 < 1", beta2);
  require("Lion", weight_decay >= 0, "a weight decay >= 0", weight_decay);
  return {"m"};
}

void LionOptions::update(const ParameterRange& range) const {
  auto arguments = operands<kernels::LionArguments>(range);
  arguments.m = range.moments[0].view();
  arguments.beta1 = beta1;
  arguments.beta2 = beta2;
  arguments.weight_decay = weight_decay;
  on(range.parameter.device(), [&](auto dev) { kernels::lion(dev, arguments); }, "lion");
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
  auto arguments = operands<kernels::RmspropArguments>(range);
  arguments.v = range.moments[0].view();
  if (centered) arguments.m = range.moments[1].view();
  if (momentum != 0) arguments.momentum = range.moments.back().view();
  arguments.alpha = alpha;
  arguments.eps = eps;
  arguments.weight_decay = weight_decay;
  arguments.momentum_factor = momentum;
  on(range.parameter.device(), [&](auto dev) { kernels::rmsprop(dev, arguments); }, "rmsprop");
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
  auto arguments = operands<kernels::AdamArguments>(range);
  arguments.m = range.moments[0].view();
  arguments.v = range.moments[1].view();
  arguments.step = range.steps.view();
  arguments.beta1 = o.beta1;
  arguments.beta2 = o.beta2;
  arguments.eps = o.eps;
  arguments.weight_decay = o.weight_decay;
  arguments.decoupled = decoupled;
  on(range.parameter.device(), [&](auto dev) { kernels::adam(dev, arguments); }, "adam");
}

std::vector<std::string> AdamOptions::moments() const { return adam_moments("Adam", *this); }
void AdamOptions::update(const ParameterRange& range) const { adam(*this, false, range); }

std::vector<std::string> AdamWOptions::moments() const { return adam_moments("AdamW", *this); }
void AdamWOptions::update(const ParameterRange& range) const { adam(*this, true, range); }

}  // namespace tern::train
