#include "nn/optim.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "nn/flat.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/kernels/optimizer.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

namespace tern::nn {

static void require(const char* where, bool holds, const char* what, double value) {
  if (!holds) fail(where, fmt::format("expected {} but got {}", what, value));
}

void Optimizer::add_group(const Tensors& parameters, double lr) {
  require("Optimizer", lr >= 0, "a learning rate >= 0", lr);
  for (const Tensor& x : parameters) {
    if ((x.dtype() != DType::f32 && x.dtype() != DType::f64) || !x.is_contiguous() || !x.is_leaf())
      fail("Optimizer", fmt::format("expected contiguous leaves of f32 or f64 but got {}{}{} {}",
                                    x.is_leaf() ? "" : "a computed tensor, ", x.is_contiguous() ? "" : "strided, ",
                                    name(x.dtype()), to_string(x.shape())));
    for (const Slot& other : slots_) {
      if (other.parameter.is_same(x))
        fail("Optimizer", fmt::format("expected each parameter once but {} came twice", to_string(x.shape())));
      if (other.parameter.device() != x.device())
        fail("Optimizer", fmt::format("expected parameters on one device but got {} and {}",
                                      to_string(other.parameter.device()), to_string(x.device())));
    }
    slots_.push_back({x, groups_.size(), nullptr, {}});
  }
  const Device device = slots_.empty() ? cpu : slots_[0].parameter.device();
  if (!steps_.defined()) steps_ = zeros({}, DType::f32, device);
  groups_.push_back({lr, full({}, lr, DType::f32, device)});
}

Tensors Optimizer::parameters() const {
  Tensors result;
  for (const Slot& slot : slots_) result.push_back(slot.parameter);
  return result;
}

void Optimizer::zero_grad() const { nn::zero_grad(parameters()); }

void Optimizer::set_lr(double lr) {
  require("set_lr", lr >= 0, "a learning rate >= 0", lr);
  for (const Group& group : groups_) fill_(group.lr, lr);
}

void Optimizer::set_lr_factor(double factor) {
  require("set_lr_factor", factor >= 0, "a factor >= 0", factor);
  for (const Group& group : groups_) fill_(group.lr, group.initial_lr * factor);
}

bool Optimizer::is_laid_out() const {
  if (runs_.empty()) return slots_.empty();
  return std::all_of(slots_.begin(), slots_.end(),
                     [](const Slot& slot) { return slot.place == slot.parameter.view().data; });
}

// Note [Moments follow parameters]
// The moments of a run of parameters are runs of the same layout, padding included, so that one kernel can walk over
// parameters, gradients and moments with one index. Padding is zero in all of them, and an update of zeros gives zeros.
// Where parameters have been moved since (flattened, sent to another device), the moments are laid out anew and keep
// their values.
void Optimizer::lay_out() {
  const Device device = slots_.empty() ? cpu : slots_[0].parameter.device();
  steps_ = to(steps_, device);
  for (Group& group : groups_) group.lr = to(group.lr, device);

  std::vector<std::size_t> order(slots_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return slots_[a].group != slots_[b].group ? slots_[a].group < slots_[b].group
                                              : lies_before(slots_[a].parameter, slots_[b].parameter);
  });
  runs_.clear();
  for (std::size_t i : order) {
    const bool continues = !runs_.empty() && slots_[runs_.back().slots.back()].group == slots_[i].group &&
                           follows(slots_[runs_.back().slots.back()].parameter, slots_[i].parameter);
    if (!continues) runs_.emplace_back();
    runs_.back().slots.push_back(i);
  }
  for (Run& run : runs_) {
    const Tensor first = slots_[run.slots.front()].parameter, whole = run_of(first, slots_[run.slots.back()].parameter);
    for (std::size_t kind = 0; kind < moment_names_.size(); ++kind) run.moments.push_back(zeros_like(whole));
    for (std::size_t i : run.slots) {
      Slot& slot = slots_[i];
      const Tensors before = std::move(slot.moments);
      slot.moments.clear();
      for (std::size_t kind = 0; kind < run.moments.size(); ++kind) {
        const Shape& shape = slot.parameter.shape();
        slot.moments.push_back(
            run.moments[kind].as_strided(shape, contiguous_strides(shape), slot.parameter.offset() - first.offset()));
        if (!before.empty()) copy_(slot.moments[kind], before[kind]);
      }
      slot.place = slot.parameter.view().data;
    }
  }
}

void Optimizer::step() {
  const NoGrad unrecorded;
  if (!is_laid_out()) lay_out();
  add_(steps_, 1.0);
  launches_ = 0;
  for (const Run& run : runs_) step(run);
}

/// One update for each stretch of the run whose gradients lie as its parameters do.
void Optimizer::step(const Run& run) {
  const auto gradient_of = [&](std::size_t i) { return slots_[run.slots[i]].parameter.grad(); };
  const auto parameter_of = [&](std::size_t i) -> const Tensor& { return slots_[run.slots[i]].parameter; };
  const std::int64_t origin = parameter_of(0).offset();
  for (std::size_t first = 0; first < run.slots.size();) {
    Tensor first_gradient = gradient_of(first);
    if (!first_gradient.defined()) {
      ++first;
      continue;
    }
    first_gradient = contiguous(first_gradient);
    std::size_t last = first;
    Tensor last_gradient = first_gradient;
    while (last + 1 < run.slots.size()) {
      const Tensor next = gradient_of(last + 1);
      if (!next.defined() || !next.is_contiguous() || !follows(last_gradient, next) ||
          next.offset() - first_gradient.offset() != parameter_of(last + 1).offset() - parameter_of(first).offset())
        break;
      last_gradient = next;
      ++last;
    }
    const Tensor parameter = run_of(parameter_of(first), parameter_of(last));
    Tensors moments;
    for (const Tensor& moment : run.moments)
      moments.push_back(moment.as_strided(parameter.shape(), {1}, parameter.offset() - origin));
    update(slots_[run.slots[first]].group, parameter, run_of(first_gradient, last_gradient), moments);
    ++launches_;
    first = last + 1;
  }
}

std::vector<NamedTensor> Optimizer::state(const std::vector<NamedTensor>& names) {
  const NoGrad unrecorded;
  if (!is_laid_out()) lay_out();
  std::unordered_map<const TensorImpl*, std::string> known;
  for (const NamedTensor& entry : names) known.emplace(entry.tensor.ref().get(), entry.name);
  std::vector<NamedTensor> result{{"step", steps_}};
  for (std::size_t i = 0; i < groups_.size(); ++i) result.push_back({fmt::format("lr.{}", i), groups_[i].lr});
  for (std::size_t kind = 0; kind < moment_names_.size(); ++kind)
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const auto found = known.find(slots_[i].parameter.ref().get());
      result.push_back(
          {fmt::format("{}.{}", moment_names_[kind], found == known.end() ? std::to_string(i) : found->second),
           slots_[i].moments[kind]});
    }
  return result;
}

SGD::SGD(const std::vector<Group>& groups)
    : Optimizer(
          std::any_of(groups.begin(), groups.end(), [](const Group& group) { return group.options.momentum != 0; })
              ? std::vector<std::string>{"momentum"}
              : std::vector<std::string>{}) {
  for (const Group& group : groups) {
    const SGDOptions& o = group.options;
    require("SGD", o.momentum >= 0, "a momentum >= 0", o.momentum);
    require("SGD", o.weight_decay >= 0, "a weight decay >= 0", o.weight_decay);
    require("SGD", !o.nesterov || o.momentum > 0, "a momentum > 0 beside nesterov", o.momentum);
    add_group(group.parameters, o.lr);
    options_.push_back(o);
  }
}

void SGD::update(std::size_t group, const Tensor& parameter, const Tensor& gradient, const Tensors& moments) {
  const SGDOptions& o = options_[group];
  begin_in_place("sgd", parameter);
  kernels::SgdArguments arguments;
  arguments.parameter = parameter.view();
  arguments.gradient = gradient.view();
  if (o.momentum != 0) {
    begin_in_place("sgd", moments[0]);
    arguments.momentum = moments[0].view();
  }
  arguments.lr = lr(group).view();
  arguments.momentum_factor = o.momentum;
  arguments.weight_decay = o.weight_decay;
  arguments.nesterov = o.nesterov;
  on(parameter.device(), [&](auto dev) { kernels::sgd(dev, arguments); });
}

Adam::Adam(const std::vector<Group>& groups) : Optimizer({"m", "v"}) {
  for (const Group& group : groups) {
    const AdamOptions& o = group.options;
    require("Adam", o.beta1 >= 0 && o.beta1 < 1, "0 <= beta1 < 1", o.beta1);
    require("Adam", o.beta2 >= 0 && o.beta2 < 1, "0 <= beta2 < 1", o.beta2);
    require("Adam", o.eps >= 0, "eps >= 0", o.eps);
    require("Adam", o.weight_decay >= 0, "a weight decay >= 0", o.weight_decay);
    add_group(group.parameters, o.lr);
    options_.push_back(o);
  }
}

void Adam::update(std::size_t group, const Tensor& parameter, const Tensor& gradient, const Tensors& moments) {
  const AdamOptions& o = options_[group];
  for (const Tensor& target : {parameter, moments[0], moments[1]}) begin_in_place("adam", target);
  kernels::AdamArguments arguments;
  arguments.parameter = parameter.view();
  arguments.gradient = gradient.view();
  arguments.m = moments[0].view();
  arguments.v = moments[1].view();
  arguments.lr = lr(group).view();
  arguments.step = steps().view();
  arguments.beta1 = o.beta1;
  arguments.beta2 = o.beta2;
  arguments.eps = o.eps;
  arguments.weight_decay = o.weight_decay;
  arguments.decoupled = o.decoupled;
  on(parameter.device(), [&](auto dev) { kernels::adam(dev, arguments); });
}

static std::vector<Adam::Group> decoupled(std::vector<Adam::Group> groups) {
  for (Adam::Group& group : groups) group.options.decoupled = true;
  return groups;
}

AdamW::AdamW(std::vector<Group> groups) : Adam(decoupled(std::move(groups))) {}

Tensor clip_grad_norm(const Tensors& parameters, double max_norm) {
  require("clip_grad_norm", max_norm > 0, "max_norm > 0", max_norm);
  const NoGrad unrecorded;
  Tensors contiguous_gradients, runs;
  for (const Tensor& x : parameters) {
    const Tensor gradient = x.grad();
    if (gradient.defined()) (gradient.is_contiguous() ? contiguous_gradients : runs).push_back(gradient);
  }
  for (Tensor& run : contiguous_runs(std::move(contiguous_gradients))) runs.push_back(std::move(run));
  if (runs.empty()) return zeros({}, DType::f32, parameters.empty() ? cpu : parameters[0].device());
  Tensor total;
  for (const Tensor& run : runs) {
    const Tensor squares = cast(sum(square(run.dtype() == DType::f64 ? run : cast(run, DType::f32))), DType::f32);
    total = total.defined() ? total + squares : squares;
  }
  const Tensor norm = sqrt(total), factor = minimum(max_norm / (norm + 1e-6), 1.0);
  for (const Tensor& run : runs) mul_(run, cast(factor, run.dtype()));
  return norm;
}

}  // namespace tern::nn
