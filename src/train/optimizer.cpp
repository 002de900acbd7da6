#include "train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "nn/parameter_buffer.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/kernels/optimizer.h"
#include "ops/pointwise.h"

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
    for (const Slot& other : slots_) {
      if (other.parameter.is_same(x))
        fail("Optimizer", fmt::format("expected each parameter once but {} came twice", to_string(x.shape())));
      if (other.parameter.device() != x.device())
        fail("Optimizer", fmt::format("expected parameters on one device but got {} and {}", to_string(other.parameter.device()),
                                      to_string(x.device())));
    }
    slots_.push_back({x, groups_.size(), nullptr, x.dtype(), {}, {}});
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
                     [](const Slot& slot) { return slot.place == slot.parameter.view().data && slot.dtype == slot.parameter.dtype(); });
}

/// All parameters of a run, one-dimensional.
Tensor Optimizer::whole(const Run& run) const { return run_of(slots_[run.slots.front()].parameter, slots_[run.slots.back()].parameter); }

// Note [Moments follow parameters]
// The moments and the master of a run of parameters are runs of the same layout, padding included, so that one kernel can
// walk over all of them with one index. Padding is zero in all of them, and an update of zeros gives zeros.
// Where parameters have been moved since (flattened, sent to another device), the moments are laid out anew and keep
// their values.
void Optimizer::lay_out() {
  const Device device = slots_.empty() ? cpu : slots_[0].parameter.device();
  steps_ = to(steps_, device);
  for (Group& group : groups_) group.lr = to(group.lr, device);

  std::vector<std::size_t> order(slots_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return slots_[a].group != slots_[b].group ? slots_[a].group < slots_[b].group : lies_before(slots_[a].parameter, slots_[b].parameter);
  });
  runs_.clear();
  for (std::size_t i : order) {
    const bool continues = !runs_.empty() && slots_[runs_.back().slots.back()].group == slots_[i].group &&
                           follows(slots_[runs_.back().slots.back()].parameter, slots_[i].parameter);
    if (!continues) runs_.emplace_back();
    runs_.back().slots.push_back(i);
  }
  for (Run& run : runs_) {
    const Tensor all = whole(run);
    const DType kept = all.dtype() == DType::f64 ? DType::f64 : DType::f32;
    for (std::size_t kind = 0; kind < moment_names_.size(); ++kind) run.moments.push_back(zeros(all.shape(), kept, device));
    find_master(run);
    for (std::size_t i : run.slots) {
      Slot& slot = slots_[i];
      const Shape& shape = slot.parameter.shape();
      const auto window = [&](const Tensor& x) {
        return x.as_strided(shape, contiguous_strides(shape), x.offset() + slot.parameter.offset() - all.offset());
      };
      const Tensors before = std::move(slot.moments);
      slot.moments.clear();
      for (std::size_t kind = 0; kind < run.moments.size(); ++kind) {
        slot.moments.push_back(window(run.moments[kind]));
        if (!before.empty()) copy_(slot.moments[kind], before[kind]);
      }
      const Tensor master_before = std::exchange(slot.master, run.master.defined() ? window(run.master) : Tensor());
      if (master_before.defined() && slot.master.defined()) copy_(slot.master, master_before);
      slot.place = slot.parameter.view().data;
      slot.dtype = slot.parameter.dtype();
    }
  }
}

void Optimizer::find_master(Run& run) {
  const Tensor parameter = whole(run).detach();
  if (size_of(parameter.dtype()) != 2) return;
  run.master = master_of(parameter);
  if (run.master.defined()) run.version = static_cast<const FlatStorage&>(*parameter.impl().storage).masters_version;
  else run.master = cast(parameter, DType::f32), run.version = parameter.version();
}

/// Where somebody else has written to the parameters since they were rounded from the master, as loading a file does, the
/// elements that changed are the master's as well.
void Optimizer::refresh_master(Run& run) {
  const Tensor parameter = whole(run).detach();
  if (!run.master.defined() || run.version == parameter.version()) return;
  const Tensor is_unchanged = eq(cast(run.master, parameter.dtype()), parameter);
  copy_(run.master, where(is_unchanged, run.master, cast(parameter, DType::f32)));
  run.version = parameter.version();
}

void Optimizer::step(const GradientScale& scale) {
  const NoGrad unrecorded;
  if (!is_laid_out()) lay_out();
  for (Run& run : runs_) refresh_master(run);
  if (scale.advance.defined()) add_(steps_, scale.advance);
  else add_(steps_, 1.0);
  launches_ = 0;
  for (const Run& run : runs_) step(run, scale);
  for (Run& run : runs_) {
    const Tensor& parameter = slots_[run.slots.front()].parameter;
    run.version = parameter.version();
    if (is_flat(parameter)) static_cast<FlatStorage&>(*parameter.impl().storage).masters_version = run.version;
  }
}

/// One update for each stretch of the run whose gradients lie as its parameters do.
void Optimizer::step(const Run& run, const GradientScale& scale) {
  const auto gradient_of = [&](std::size_t i) { return slots_[run.slots[i]].parameter.grad(); };
  const auto parameter_of = [&](std::size_t i) -> const Tensor& { return slots_[run.slots[i]].parameter; };
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
    Windows windows{run_of(parameter_of(first), parameter_of(last)), run_of(first_gradient, last_gradient), {}, {}};
    const auto window = [&](const Tensor& x) {
      return x.as_strided(windows.parameter.shape(), {1}, x.offset() + windows.parameter.offset() - parameter_of(0).offset());
    };
    for (const Tensor& moment : run.moments) windows.moments.push_back(window(moment));
    if (run.master.defined()) windows.master = window(run.master);
    for (const Tensor& target : {windows.parameter, windows.master})
      if (target.defined()) begin_in_place("Optimizer", target);
    for (const Tensor& target : windows.moments) begin_in_place("Optimizer", target);
    update(slots_[run.slots[first]].group, windows, scale);
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
    const auto found = known.find(slots_[i].parameter.ref().get());
    result.push_back({fmt::format("{}.{}", kind, found == known.end() ? std::to_string(i) : found->second), x});
  };
  for (std::size_t kind = 0; kind < moment_names_.size(); ++kind)
    for (std::size_t i = 0; i < slots_.size(); ++i) add(moment_names_[kind], i, slots_[i].moments[kind]);
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].master.defined()) add("master", i, slots_[i].master);
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

static View view_or_none(const Tensor& x) { return x.defined() ? x.view() : View{}; }

static kernels::GradientScale views(const GradientScale& scale) { return {view_or_none(scale.factor), view_or_none(scale.advance)}; }

void SGD::update(std::size_t group, const Windows& run, const GradientScale& scale) {
  const SGDOptions& o = options_[group];
  kernels::SgdArguments arguments;
  arguments.parameter = run.parameter.view();
  arguments.gradient = run.gradient.view();
  if (o.momentum != 0) arguments.momentum = run.moments[0].view();
  arguments.lr = lr(group).view();
  arguments.momentum_factor = o.momentum;
  arguments.weight_decay = o.weight_decay;
  arguments.nesterov = o.nesterov;
  arguments.master = view_or_none(run.master);
  arguments.scale = views(scale);
  on(run.parameter.device(), [&](auto dev) { kernels::sgd(dev, arguments); });
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

void Adam::update(std::size_t group, const Windows& run, const GradientScale& scale) {
  const AdamOptions& o = options_[group];
  kernels::AdamArguments arguments;
  arguments.parameter = run.parameter.view();
  arguments.gradient = run.gradient.view();
  arguments.m = run.moments[0].view();
  arguments.v = run.moments[1].view();
  arguments.lr = lr(group).view();
  arguments.step = steps().view();
  arguments.beta1 = o.beta1;
  arguments.beta2 = o.beta2;
  arguments.eps = o.eps;
  arguments.weight_decay = o.weight_decay;
  arguments.decoupled = o.decoupled;
  arguments.master = view_or_none(run.master);
  arguments.scale = views(scale);
  on(run.parameter.device(), [&](auto dev) { kernels::adam(dev, arguments); });
}

static std::vector<Adam::Group> decoupled(std::vector<Adam::Group> groups) {
  for (Adam::Group& group : groups) group.options.decoupled = true;
  return groups;
}

AdamW::AdamW(std::vector<Group> groups) : Adam(decoupled(std::move(groups))) {}

}  // namespace tern::train
