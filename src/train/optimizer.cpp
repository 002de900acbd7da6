#include "train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "autodiff/node.h"
#include "nn/parameter_buffer.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/kernels/optimizer.h"
#include "ops/pointwise.h"
#include "tensor/view_of.h"

namespace tern::train {

using namespace nn;  // parameters and their buffers

static void require(const char* where, bool holds, const char* what, double value) {
  if (!holds) fail(where, fmt::format("expected {} but got {}", what, value));
}

void Optimizer::add_group(const Tensors& parameters, double lr) {
  require("Optimizer", lr >= 0, "a learning rate >= 0", lr);
  for (const Tensor& x : parameters) {
    if (!is_floating(x.dtype()) || !x.is_contiguous() || !x.is_leaf())
      fail("Optimizer",
           fmt::format("expected contiguous leaves of a floating dtype but got {}{}{} {}", x.is_leaf() ? "" : "a computed tensor, ",
                       x.is_contiguous() ? "" : "strided, ", name(x.dtype()), to_string(x.shape())));
    if (!autograd_state(x))
      fail("Optimizer",
           fmt::format("expected parameters that require a gradient, or are frozen, but {} at position {} was never told: call "
                       "set_requires_grad() on it where the module makes it, or set_requires_grad(false) to freeze it",
                       to_string(x.shape()), states_.size()));
    for (const ParameterState& other : states_) {
      if (other.parameter.is_same(x))
        fail("Optimizer", fmt::format("expected each parameter once but {} came twice", to_string(x.shape())));
      if (other.parameter.device() != x.device())
        fail("Optimizer", fmt::format("expected parameters on one device but got {} and {}", to_string(other.parameter.device()),
                                      to_string(x.device())));
    }
    states_.push_back({x, groups_.size(), nullptr, x.dtype(), {}, {}});
  }
  const Device device = states_.empty() ? cpu : states_[0].parameter.device();
  if (!steps_.defined()) steps_ = zeros({}, DType::f32, device);
  groups_.push_back({lr, full({}, lr, DType::f32, device)});
}

const Tensor& Optimizer::lr(std::size_t group) const {
  if (group >= groups_.size()) fail("lr", fmt::format("expected one of {} groups, counted from 0, but got {}", groups_.size(), group));
  return groups_[group].lr;
}

Tensors Optimizer::parameters() const {
  Tensors result;
  for (const ParameterState& state : states_) result.push_back(state.parameter);
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
  if (segments_.empty()) return states_.empty();
  return std::all_of(states_.begin(), states_.end(), [](const ParameterState& state) {
    return state.data == state.parameter.view().data && state.dtype == state.parameter.dtype();
  });
}

/// All parameters of a segment, one-dimensional.
Tensor Optimizer::whole(const Segment& segment) const {
  return segment_between(states_[segment.parameters.front()].parameter, states_[segment.parameters.back()].parameter);
}

// Note [Moments follow parameters]
// The moments and the master of a segment of parameters are segments of the same layout, padding included, so that one
// kernel can walk over all of them with one index. Padding is zero in all of them, and an update of zeros gives zeros.
// Once parameters have moved (flattened, sent to another device), the moments are laid out anew and keep their values.
void Optimizer::lay_out() {
  const Device device = states_.empty() ? cpu : states_[0].parameter.device();
  steps_ = to(steps_, device);
  for (Group& group : groups_) group.lr = to(group.lr, device);

  std::vector<std::size_t> order(states_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return states_[a].group != states_[b].group ? states_[a].group < states_[b].group
                                                : precedes_in_memory(states_[a].parameter, states_[b].parameter);
  });
  segments_.clear();
  for (std::size_t i : order) {
    const bool continues = !segments_.empty() && states_[segments_.back().parameters.back()].group == states_[i].group &&
                           is_adjacent(states_[segments_.back().parameters.back()].parameter, states_[i].parameter);
    if (!continues) segments_.emplace_back();
    segments_.back().parameters.push_back(i);
  }
  for (Segment& segment : segments_) {
    const Tensor all = whole(segment);
    const DType kept = all.dtype() == DType::f64 ? DType::f64 : DType::f32;
    for (std::size_t kind = 0; kind < moment_names_.size(); ++kind) segment.moments.push_back(zeros(all.shape(), kept, device));
    find_master(segment);
    for (std::size_t i : segment.parameters) {
      ParameterState& state = states_[i];
      const Shape& shape = state.parameter.shape();
      const auto window = [&](const Tensor& x) {
        return x.window(shape, contiguous_strides(shape), x.offset() + state.parameter.offset() - all.offset());
      };
      const Tensors before = std::move(state.moments);
      state.moments.clear();
      for (std::size_t kind = 0; kind < segment.moments.size(); ++kind) {
        state.moments.push_back(window(segment.moments[kind]));
        if (!before.empty()) copy_(state.moments[kind], before[kind]);
      }
      const Tensor master_before = std::exchange(state.master, segment.master.defined() ? window(segment.master) : Tensor());
      if (master_before.defined() && state.master.defined()) copy_(state.master, master_before);
      state.data = state.parameter.view().data;
      state.dtype = state.parameter.dtype();
    }
  }
}

void Optimizer::find_master(Segment& segment) {
  const Tensor parameter = whole(segment).detach();
  if (size_of(parameter.dtype()) != 2) return;
  segment.master = master_of(parameter);
  if (segment.master.defined()) segment.version = static_cast<const FlatStorage&>(*parameter.impl().storage).masters_version;
  else segment.master = cast(parameter, DType::f32), segment.version = parameter.version();
}

/// Elements of the parameters that somebody else has written since they were rounded from the master, as loading a file does,
/// become the master's as well.
void Optimizer::refresh_master(Segment& segment) {
  const Tensor parameter = whole(segment).detach();
  if (!segment.master.defined() || segment.version == parameter.version()) return;
  const Tensor is_unchanged = eq(cast(segment.master, parameter.dtype()), parameter);
  copy_(segment.master, where(is_unchanged, segment.master, cast(parameter, DType::f32)));
  segment.version = parameter.version();
}

void Optimizer::step(const GradientScale& scale) {
  const NoGrad unrecorded;
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (states_[i].parameter.ref()->references() == 1)
      fail("Optimizer",
           fmt::format("expected parameters that a module holds but nobody else has parameter {}, {}: was it replaced after the "
                       "optimizer was made? copy_ into a parameter, and do not assign to it",
                       i, to_string(states_[i].parameter.shape())));
  if (!is_laid_out()) lay_out();
  for (Segment& segment : segments_) refresh_master(segment);
  if (scale.advance.defined()) add_(steps_, scale.advance);
  else add_(steps_, 1.0);
  launches_ = 0;
  for (const Segment& segment : segments_) step(segment, scale);
  for (Segment& segment : segments_) {
    const Tensor& parameter = states_[segment.parameters.front()].parameter;
    segment.version = parameter.version();
    if (is_flat(parameter)) static_cast<FlatStorage&>(*parameter.impl().storage).masters_version = segment.version;
  }
}

/// One update for each part of the segment whose gradients lie as its parameters do.
void Optimizer::step(const Segment& segment, const GradientScale& scale) {
  const auto gradient_of = [&](std::size_t i) { return states_[segment.parameters[i]].parameter.grad(); };
  const auto parameter_of = [&](std::size_t i) -> const Tensor& { return states_[segment.parameters[i]].parameter; };
  for (std::size_t first = 0; first < segment.parameters.size();) {
    Tensor first_gradient = gradient_of(first);
    if (!first_gradient.defined()) {
      ++first;
      continue;
    }
    first_gradient = contiguous(first_gradient);
    std::size_t last = first;
    Tensor last_gradient = first_gradient;
    while (last + 1 < segment.parameters.size()) {
      const Tensor next = gradient_of(last + 1);
      if (!next.defined() || !next.is_contiguous() || !is_adjacent(last_gradient, next) ||
          next.offset() - first_gradient.offset() != parameter_of(last + 1).offset() - parameter_of(first).offset())
        break;
      last_gradient = next;
      ++last;
    }
    SegmentViews views{segment_between(parameter_of(first), parameter_of(last)), segment_between(first_gradient, last_gradient), {}, {}};
    const auto window = [&](const Tensor& x) {
      return x.window(views.parameter.shape(), {1}, x.offset() + views.parameter.offset() - parameter_of(0).offset());
    };
    for (const Tensor& moment : segment.moments) views.moments.push_back(window(moment));
    if (segment.master.defined()) views.master = window(segment.master);
    for (const Tensor& target : {views.parameter, views.master})
      if (target.defined()) begin_in_place("Optimizer", target);
    for (const Tensor& target : views.moments) begin_in_place("Optimizer", target);
    update_segment(states_[segment.parameters[first]].group, views, scale);
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
  const auto add = [&](const std::string& kind, std::size_t i, const Tensor& x) {
    const auto found = known.find(states_[i].parameter.ref().get());
    result.push_back({fmt::format("{}.{}", kind, found == known.end() ? std::to_string(i) : found->second), x});
  };
  for (std::size_t kind = 0; kind < moment_names_.size(); ++kind)
    for (std::size_t i = 0; i < states_.size(); ++i) add(moment_names_[kind], i, states_[i].moments[kind]);
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (states_[i].master.defined()) add("master", i, states_[i].master);
  return result;
}

SGD::SGD(const std::vector<Group>& groups)
    : Optimizer(std::any_of(groups.begin(), groups.end(), [](const Group& group) { return group.options.momentum != 0; })
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

static kernels::GradientScaleView view_of(const GradientScale& scale) { return {view_of(scale.factor), view_of(scale.advance)}; }

void SGD::update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) {
  const SGDOptions& o = options_[group];
  kernels::SgdArguments arguments;
  arguments.parameter = segment.parameter.view();
  arguments.gradient = segment.gradient.view();
  if (o.momentum != 0) arguments.momentum = segment.moments[0].view();
  arguments.lr = lr(group).view();
  arguments.momentum_factor = o.momentum;
  arguments.weight_decay = o.weight_decay;
  arguments.nesterov = o.nesterov;
  arguments.master = view_of(segment.master);
  arguments.scale = view_of(scale);
  on(segment.parameter.device(), [&](auto dev) { kernels::sgd(dev, arguments); }, "sgd");
}

template <class Options>
AdamOf<Options>::AdamOf(const std::vector<Group>& groups) : Optimizer({"m", "v"}) {
  for (const Group& group : groups) {
    const Options& o = group.options;
    require(Options::optimizer, o.beta1 >= 0 && o.beta1 < 1, "0 <= beta1 < 1", o.beta1);
    require(Options::optimizer, o.beta2 >= 0 && o.beta2 < 1, "0 <= beta2 < 1", o.beta2);
    require(Options::optimizer, o.eps >= 0, "eps >= 0", o.eps);
    require(Options::optimizer, o.weight_decay >= 0, "a weight decay >= 0", o.weight_decay);
    add_group(group.parameters, o.lr);
    options_.push_back(o);
  }
}

template <class Options>
void AdamOf<Options>::update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) {
  const Options& o = options_[group];
  kernels::AdamArguments arguments;
  arguments.parameter = segment.parameter.view();
  arguments.gradient = segment.gradient.view();
  arguments.m = segment.moments[0].view();
  arguments.v = segment.moments[1].view();
  arguments.lr = lr(group).view();
  arguments.step = steps().view();
  arguments.beta1 = o.beta1;
  arguments.beta2 = o.beta2;
  arguments.eps = o.eps;
  arguments.weight_decay = o.weight_decay;
  arguments.decoupled = Options::decoupled;
  arguments.master = view_of(segment.master);
  arguments.scale = view_of(scale);
  on(segment.parameter.device(), [&](auto dev) { kernels::adam(dev, arguments); }, "adam");
}

template class AdamOf<AdamOptions>;
template class AdamOf<AdamWOptions>;

}  // namespace tern::train
