#include <algorithm>
#include <string>

#include "ops/kernels/optimizer.h"
#include "tensor/view_of.h"
#include "train/detail/adam.h"
#include "train/detail/require.h"
#include "train/optimizer.h"

namespace tern::train {

using detail::require;

SGD::SGD(const Tensors& parameters, const SGDOptions& options) : SGD(std::vector<Group>{{parameters, options}}) {}

SGD::SGD(const std::vector<Group>& groups)
    : Optimizer(std::any_of(groups.begin(), groups.end(), [](const Group& group) { return group.options.momentum != 0; })
                    ? std::vector<std::string>{"momentum"}
                    : std::vector<std::string>{}) {
  for (const Group& group : groups) add_group(group);
  require_parameters();
}

void SGD::add_group(const Group& group) {
  const SGDOptions& o = group.options;
  require("SGD", o.momentum >= 0, "a momentum >= 0", o.momentum);
  require("SGD", o.weight_decay >= 0, "a weight decay >= 0", o.weight_decay);
  require("SGD", !o.nesterov || o.momentum > 0, "a momentum > 0 with nesterov", o.momentum);
  require("SGD", o.momentum == 0 || has_moments(), "no momentum, as no earlier group has it,", o.momentum);
  add_parameters(group.parameters, o.lr);
  options_.push_back(o);
}

static kernels::GradientScaleView view_of(const GradientScale& scale) { return {view_of(scale.factor), view_of(scale.advance)}; }

/// Operands that every update rule has, as its kernel takes them; `segment` is a SegmentViews or AdamTensors.
template <class Arguments, class Segment>
static Arguments operands(const Segment& segment, const Tensor& lr, const GradientScale& scale) {
  Arguments arguments;
  arguments.parameter = segment.parameter.view();
  arguments.gradient = segment.gradient.view();
  arguments.lr = lr.view();
  arguments.master = view_of(segment.master);
  arguments.scale = view_of(scale);
  return arguments;
}

void SGD::update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) {
  const SGDOptions& o = options_[group];
  auto arguments = operands<kernels::SgdArguments>(segment, lr(group), scale);
  if (o.momentum != 0) arguments.momentum = segment.moments[0].view();
  arguments.momentum_factor = o.momentum;
  arguments.weight_decay = o.weight_decay;
  arguments.nesterov = o.nesterov;
  on(segment.parameter.device(), [&](auto dev) { kernels::sgd(dev, arguments); }, "sgd");
}

Lion::Lion(const Tensors& parameters, const LionOptions& options) : Lion(std::vector<Group>{{parameters, options}}) {}

Lion::Lion(const std::vector<Group>& groups) : Optimizer({"m"}) {
  for (const Group& group : groups) add_group(group);
  require_parameters();
}

void Lion::add_group(const Group& group) {
  const LionOptions& o = group.options;
  require("Lion", o.beta1 >= 0 && o.beta1 < 1, "0 <= beta1 < 1", o.beta1);
  require("Lion", o.beta2 >= 0 && o.beta2 < 1, "0 <= beta2 < 1", o.beta2);
  require("Lion", o.weight_decay >= 0, "a weight decay >= 0", o.weight_decay);
  add_parameters(group.parameters, o.lr);
  options_.push_back(o);
}

void Lion::update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) {
  const LionOptions& o = options_[group];
  auto arguments = operands<kernels::LionArguments>(segment, lr(group), scale);
  arguments.m = segment.moments[0].view();
  arguments.beta1 = o.beta1;
  arguments.beta2 = o.beta2;
  arguments.weight_decay = o.weight_decay;
  on(segment.parameter.device(), [&](auto dev) { kernels::lion(dev, arguments); }, "lion");
}

RMSprop::RMSprop(const Tensors& parameters, const RMSpropOptions& options) : RMSprop(std::vector<Group>{{parameters, options}}) {}

static bool any_is_centered(const std::vector<RMSprop::Group>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const RMSprop::Group& group) { return group.options.centered; });
}
static bool any_has_momentum(const std::vector<RMSprop::Group>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const RMSprop::Group& group) { return group.options.momentum != 0; });
}
static std::vector<std::string> moment_names(const std::vector<RMSprop::Group>& groups) {
  std::vector<std::string> moments{"v"};
  if (any_is_centered(groups)) moments.emplace_back("m");
  if (any_has_momentum(groups)) moments.emplace_back("momentum");
  return moments;
}

RMSprop::RMSprop(const std::vector<Group>& groups)
    : Optimizer(moment_names(groups)), has_means_(any_is_centered(groups)), has_momentum_(any_has_momentum(groups)) {
  for (const Group& group : groups) add_group(group);
  require_parameters();
}

void RMSprop::add_group(const Group& group) {
  const RMSpropOptions& o = group.options;
  require("RMSprop", o.alpha >= 0 && o.alpha < 1, "0 <= alpha < 1", o.alpha);
  require("RMSprop", o.eps > 0, "eps > 0", o.eps);
  require("RMSprop", o.weight_decay >= 0, "a weight decay >= 0", o.weight_decay);
  require("RMSprop", o.momentum >= 0, "a momentum >= 0", o.momentum);
  require("RMSprop", o.momentum == 0 || has_momentum_, "no momentum, as no earlier group has it,", o.momentum);
  require("RMSprop", !o.centered || has_means_, "centered = false, as no earlier group is centered,", 1);
  add_parameters(group.parameters, o.lr);
  options_.push_back(o);
}

void RMSprop::update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) {
  const RMSpropOptions& o = options_[group];
  auto arguments = operands<kernels::RmspropArguments>(segment, lr(group), scale);
  arguments.v = segment.moments[0].view();
  if (o.centered) arguments.m = segment.moments[1].view();
  if (o.momentum != 0) arguments.momentum = segment.moments[has_means_ ? 2 : 1].view();
  arguments.alpha = o.alpha;
  arguments.eps = o.eps;
  arguments.weight_decay = o.weight_decay;
  arguments.momentum_factor = o.momentum;
  on(segment.parameter.device(), [&](auto dev) { kernels::rmsprop(dev, arguments); }, "rmsprop");
}

template <class Options>
AdamOf<Options>::AdamOf(const Tensors& parameters, const Options& options) : AdamOf(std::vector<Group>{{parameters, options}}) {}

template <class Options>
AdamOf<Options>::AdamOf(const std::vector<Group>& groups) : Optimizer({"m", "v"}) {
  for (const Group& group : groups) add_group(group);
  require_parameters();
}

template <class Options>
void detail::check(const Options& o) {
  require(Options::optimizer, o.beta1 >= 0 && o.beta1 < 1, "0 <= beta1 < 1", o.beta1);
  require(Options::optimizer, o.beta2 >= 0 && o.beta2 < 1, "0 <= beta2 < 1", o.beta2);
  require(Options::optimizer, o.eps >= 0, "eps >= 0", o.eps);
  require(Options::optimizer, o.weight_decay >= 0, "a weight decay >= 0", o.weight_decay);
}

template <class Options>
void AdamOf<Options>::add_group(const Group& group) {
  detail::check(group.options);
  add_parameters(group.parameters, group.options.lr);
  options_.push_back(group.options);
}

template <class Options>
void detail::adam_step(const Options& o, const AdamTensors& segment, const Tensor& lr, const Tensor& steps, const GradientScale& scale) {
  auto arguments = operands<kernels::AdamArguments>(segment, lr, scale);
  arguments.m = segment.m.view();
  arguments.v = segment.v.view();
  arguments.step = steps.view();
  arguments.beta1 = o.beta1;
  arguments.beta2 = o.beta2;
  arguments.eps = o.eps;
  arguments.weight_decay = o.weight_decay;
  arguments.decoupled = Options::decoupled;
  on(segment.parameter.device(), [&](auto dev) { kernels::adam(dev, arguments); }, "adam");
}

template <class Options>
void AdamOf<Options>::update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) {
  detail::adam_step(options_[group], {segment.parameter, segment.gradient, segment.master, segment.moments[0], segment.moments[1]},
                    lr(group), steps(), scale);
}

template void detail::check(const AdamWOptions&);
template void detail::adam_step(const AdamWOptions&, const AdamTensors&, const Tensor&, const Tensor&, const GradientScale&);
template class AdamOf<AdamOptions>;
template class AdamOf<AdamWOptions>;

}  // namespace tern::train
