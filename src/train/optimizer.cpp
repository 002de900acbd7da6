#include "train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "autodiff/autograd_state.h"
#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "nn/module.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern::train {

using namespace nn;  // parameters and their buffers
using detail::require;

void detail::require(const char* where, bool holds, const char* what, double value) {
  if (!holds) fail(where, fmt::format("expected {} but got {}", what, value));
}

bool detail::is_edited(const Tensor& parameters, std::uint32_t since) {
  const bool is = parameters.version() != since;
  backend::tell([&](backend::Observer& told) { told.on_version(parameters.impl().storage, is); });
  return is;
}

void detail::refresh_masters(const Tensor& parameters, const Tensor& masters) {
  const Tensor is_unchanged = eq(cast(masters, parameters.dtype()), parameters);
  copy_(masters, where(is_unchanged, masters, cast(parameters, DType::f32)));
}

struct Optimizer::Group {
  double initial_lr = 0;
  Tensor lr;
  std::vector<std::string> moments;
  bool is_whole = false;
  Rule rule;
};

struct Optimizer::ParameterState {
  Tensor parameter;
  std::size_t group = 0;
  Place place;               // place of the parameter when its segment was laid out
  DType dtype = DType::f32;  // and its dtype
  std::size_t segment = 0;   // index of its segment
  std::int64_t first = 0;
  Tensor master;  // view on the segment's master, in the parameter's shape
};

struct Optimizer::Shard : Exchange::Part {  // elements [begin, end) of a segment, which this process updates together
  Tensors moments;                          // (end - begin)
};

struct Optimizer::Segment {  // parameters that are contiguous in memory, and their state
  std::vector<std::size_t> parameters;
  std::vector<Shard> shards;  // a single one without an exchange
  Tensor master;
  std::uint32_t version = 0;  // version of the parameters when they last were the rounded master
};

struct Optimizer::GradientRange {  // gradients that are contiguous in the layout of their parameters
  std::int64_t begin = 0;          // offset in the segment
  Tensor first, last;
};

struct Optimizer::Update {  // one call of a rule
  const Group* group;
  ParameterRange range;
  bool is_counted = true;
  std::size_t arrival = 0;  // see Exchange::Part
};

Optimizer::Optimizer() = default;
Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

void Optimizer::add_parameters(const Tensors& parameters, double lr, std::vector<std::string> moments, bool is_whole, Rule rule) {
  require("Optimizer", lr >= 0, "a learning rate >= 0", lr);
  for (const Tensor& x : parameters) {
    if (!is_floating(x.dtype()) || !x.is_contiguous() || !x.is_leaf())
      fail("Optimizer",
           fmt::format("expected contiguous leaves of a floating dtype but got {}{}{} {}", x.is_leaf() ? "" : "a computed tensor, ",
                       x.is_contiguous() ? "" : "strided, ", name(x.dtype()), to_string(x.shape())));
    if (!autograd_state(x))
      fail("Optimizer",
           fmt::format("expected parameters that require a gradient, or are frozen, but {} at position {} was never marked: call "
                       "set_requires_grad() on it where the module creates it, or set_requires_grad(false) to freeze it",
                       to_string(x.shape()), states_.size()));
    for (const ParameterState& other : states_) {
      if (other.parameter.is_same(x))
        fail("Optimizer", fmt::format("expected each parameter once but {} came twice", to_string(x.shape())));
      if (other.parameter.device() != x.device())
        fail("Optimizer", fmt::format("expected parameters on one device but got {} and {}", to_string(other.parameter.device()),
                                      to_string(x.device())));
    }
    gradient_sink(x).set_read();
    states_.push_back({.parameter = x, .group = groups_.size()});
  }
  const Device device = states_.empty() ? cpu : states_[0].parameter.device();
  if (!steps_.defined()) steps_ = zeros({}, DType::f32, device);
  for (const std::string& kind : moments)
    if (std::find(moment_names_.begin(), moment_names_.end(), kind) == moment_names_.end()) moment_names_.push_back(kind);
  groups_.push_back({lr, full({}, lr, DType::f32, device), std::move(moments), is_whole, std::move(rule)});
}

void Optimizer::require_parameters() const {
  if (states_.empty())
    fail("Optimizer", "expected at least one parameter but got none: nn::parameters(module) has only what the module's visit lists");
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
  if (has_new_exchange_) return false;
  if (segments_.empty()) return states_.empty();
  return std::all_of(states_.begin(), states_.end(), [](const ParameterState& state) {
    return state.place == place_of(state.parameter) && state.dtype == state.parameter.dtype();
  });
}

/// All parameters of a segment as one tensor, one-dimensional.
Tensor Optimizer::tensor_of(const Segment& segment) const {
  return segment_between(states_[segment.parameters.front()].parameter, states_[segment.parameters.back()].parameter);
}

/// Calls f(name, kind, i) for each moment of each parameter: that with the index `kind` among those of its group.
template <class F>
void Optimizer::for_each_moment(F&& f) const {
  for (const std::string& name : moment_names_)
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const std::vector<std::string>& names = groups_[states_[i].group].moments;
      const auto found = std::find(names.begin(), names.end(), name);
      if (found != names.end()) f(name, static_cast<std::size_t>(found - names.begin()), i);
    }
}

/// Calls f(shard, begin, end) for each shard that owns elements of a parameter, [begin, end) of the parameter.
template <class F>
void Optimizer::for_each_shard(const std::vector<Segment>& segments, const ParameterState& state, F&& f) {
  for (const Shard& shard : segments[state.segment].shards) {
    const std::int64_t begin = std::max<std::int64_t>(shard.begin - state.first, 0);
    const std::int64_t end = std::min(shard.end - state.first, state.parameter.numel());
    if (begin < end) f(shard, begin, end);
  }
}

std::vector<Optimizer::Shard> Optimizer::shards_of(const Tensor& segment) const {
  std::vector<Shard> shards;
  if (!exchange_) {
    shards.emplace_back().end = segment.numel();
    return shards;
  }
  for (Exchange::Part& part : exchange_->parts(segment)) {
    part.begin -= segment.offset(), part.end -= segment.offset();
    shards.push_back({std::move(part), {}});
  }
  return shards;
}

/// True if the shards have separate masters: those of a sharded optimizer, which no parameter buffer has.
template <class Shards>
static bool has_own_masters(const Shards& shards) {
  return std::any_of(shards.begin(), shards.end(), [](const auto& shard) { return shard.masters.defined(); });
}

// Note [Moments follow parameters]
// The moments and the master of a segment of parameters have the same layout, padding included, so one kernel can walk over all of them
// with one index. Padding is zero in all of them, and an update of zeros gives zeros. A sharded optimizer only has moments of its shards.
// If parameters have moved (were flattened, or sent to another device), the moments are laid out again and keep their values.
void Optimizer::lay_out() {
  check_sharding(exchange_.get());
  const Device device = states_.empty() ? cpu : states_[0].parameter.device();
  steps_ = to(steps_, device);
  for (Group& group : groups_) group.lr = to(group.lr, device);

  const std::vector<Segment> segments_before = std::move(segments_);
  const std::vector<ParameterState> states_before = states_;
  std::vector<std::size_t> order = order_in_memory(parameters());
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return states_[a].group < states_[b].group; });
  segments_.clear();
  for (std::size_t i : order) {
    const bool continues = !segments_.empty() && !groups_[states_[i].group].is_whole &&
                           states_[segments_.back().parameters.back()].group == states_[i].group &&
                           is_adjacent(states_[segments_.back().parameters.back()].parameter, states_[i].parameter);
    if (!continues) segments_.emplace_back();
    segments_.back().parameters.push_back(i);
  }
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    Segment& segment = segments_[s];
    const Tensor all = tensor_of(segment);
    const DType kept = all.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const bool is_frozen = std::none_of(segment.parameters.begin(), segment.parameters.end(),
                                        [&](std::size_t i) { return states_[i].parameter.requires_grad(); });
    if (!is_sharded() || !is_frozen) segment.shards = shards_of(all);  // frozen parameters are owned by no process
    for (Shard& shard : segment.shards)
      for (std::size_t kind = 0; kind < groups_[states_[segment.parameters.front()].group].moments.size(); ++kind)
        shard.moments.push_back(zeros({shard.end - shard.begin}, kept, device));
    if (!has_own_masters(segment.shards)) find_master(segment);
    for (std::size_t i : segment.parameters) {
      ParameterState& state = states_[i];
      const Tensor& parameter = state.parameter;
      state.place = place_of(parameter);
      state.dtype = parameter.dtype();
      state.segment = s;
      state.first = parameter.offset() - all.offset();
      const ParameterState& before = states_before[i];
      if (before.place.storage)
        for_each_shard(segments_before, before, [&](const Shard& from, std::int64_t from_begin, std::int64_t from_end) {
          for_each_shard(segments_, state, [&](const Shard& into, std::int64_t into_begin, std::int64_t into_end) {
            const std::int64_t begin = std::max(from_begin, into_begin), end = std::min(from_end, into_end);
            if (begin >= end) return;
            const auto part = [&](const Shard& shard, const ParameterState& of, std::size_t kind) {
              return elements_of(shard.moments[kind], of.first + begin - shard.begin, of.first + end - shard.begin);
            };
            for (std::size_t kind = 0; kind < into.moments.size(); ++kind) copy_(part(into, state, kind), part(from, before, kind));
          });
        });
      if (segment.master.defined())
        state.master =
            segment.master.window(parameter.shape(), contiguous_strides(parameter.shape()), segment.master.offset() + state.first);
      else state.master = {};
      if (before.master.defined() && state.master.defined()) copy_(state.master, before.master);
    }
  }
  has_new_exchange_ = false;
}

void Optimizer::check_sharding(const Exchange* exchange) const {
  if (exchange && exchange->is_sharded() && std::any_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.is_whole; }))
    fail("Optimizer", "expected groups that are updated element by element, but one takes whole matrices, which cannot be sharded");
}

void Optimizer::set_exchange(std::shared_ptr<Exchange> exchange) {
  if (is_sharded() && !segments_.empty()) fail("Optimizer", "expected moments that are not sharded yet");
  check_sharding(exchange.get());
  exchange_ = std::move(exchange);
  has_new_exchange_ = true;
}

void Optimizer::find_master(Segment& segment) {
  const Tensor parameter = tensor_of(segment).detach();
  if (size_of(parameter.dtype()) != 2) return;
  segment.master = master_of(parameter);
  if (segment.master.defined()) segment.version = static_cast<const FlatStorage&>(*parameter.impl().storage).masters_version;
  else segment.master = cast(parameter, DType::f32), segment.version = parameter.version();
}

void Optimizer::refresh_master(Segment& segment) {
  const Tensor parameter = tensor_of(segment).detach();
  if (!segment.master.defined()) return;
  if (!detail::is_edited(parameter, segment.version)) return;
  detail::refresh_masters(parameter, segment.master);
  segment.version = parameter.version();
}

void Optimizer::step(const GradientScale& scale) {
  const NoGrad unrecorded;
  require_parameters();
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (states_[i].parameter.ref()->references() == 1)
      fail("Optimizer",
           fmt::format("expected parameters that a module holds but only the optimizer holds parameter {}, {}: was it replaced "
                       "after the optimizer was created? copy_ into a parameter, and do not assign to it",
                       i, to_string(states_[i].parameter.shape())));
  if (!is_laid_out()) lay_out();
  ++LeafWriter::of_thread().optimizer_steps;
  if (exchange_) exchange_->begin();
  for (Segment& segment : segments_) refresh_master(segment);
  if (scale.advance.defined()) add_(steps_, scale.advance);
  else add_(steps_, 1.0);
  std::vector<Update> updates = this->updates();
  launches_ = updates.size();
  for (std::size_t number = 0; number < (exchange_ ? std::max<std::size_t>(exchange_->size(), 1) : 1); ++number) {
    if (exchange_) exchange_->wait(number);
    std::vector<std::pair<const Group*, std::vector<ParameterRange>>> together;
    for (auto& [group, range, is_counted, arrival] : updates) {
      if (arrival != number) continue;
      for (const Tensor& target : {range.parameter, range.master})
        if (target.defined()) begin_in_place("Optimizer", target);
      for (const Tensor& target : range.moments) begin_in_place("Optimizer", target);
      range.lr = group->lr, range.steps = steps_, range.scale = scale;
      if (together.empty() || together.back().first != group) together.push_back({group, {}});
      together.back().second.push_back(std::move(range));
    }
    for (const auto& [group, ranges] : together) group->rule(ranges);
    if (exchange_) exchange_->updated(number);
  }
  if (exchange_) exchange_->end();
  for (Segment& segment : segments_) {
    const Tensor& parameter = states_[segment.parameters.front()].parameter;
    segment.version = parameter.version();
    if (is_flat(parameter)) static_cast<FlatStorage&>(*parameter.impl().storage).masters_version = segment.version;
  }
}

/// Gradients of a segment in as few ranges as possible.
std::vector<Optimizer::GradientRange> Optimizer::gradients_of(const Segment& segment) const {
  std::vector<GradientRange> ranges;
  for (std::size_t i : segment.parameters) {
    const Tensor gradient = states_[i].parameter.grad();
    if (!gradient.defined()) continue;
    const std::int64_t begin = states_[i].first;
    const bool continues = !ranges.empty() && gradient.is_contiguous() && is_adjacent(ranges.back().last, gradient) &&
                           gradient.offset() - ranges.back().first.offset() == begin - ranges.back().begin;
    if (continues) ranges.back().last = gradient;
    else ranges.push_back({begin, contiguous(gradient), contiguous(gradient)});
  }
  return ranges;
}

/// One for each shard that has separate gradients, and for each shard of each range of gradients.
std::vector<Optimizer::Update> Optimizer::updates() const {
  std::vector<Update> updates;
  for (const Segment& segment : segments_) {
    const Tensor all = tensor_of(segment);
    const ParameterState& first = states_[segment.parameters.front()];
    const Group& group = groups_[first.group];
    const auto add = [&](const Shard& shard, std::int64_t begin, std::int64_t end, const Tensor& gradient) {
      const auto own = [&](const Tensor& x) { return elements_of(x, begin - shard.begin, end - shard.begin); };
      ParameterRange range{shard.parameters.defined() ? own(shard.parameters) : elements_of(all, begin, end), gradient, {}, {}};
      if (group.is_whole) range.shape = first.parameter.shape();
      if (shard.masters.defined()) range.master = own(shard.masters);
      else if (segment.master.defined()) range.master = elements_of(segment.master, begin, end);
      for (const Tensor& moment : shard.moments) range.moments.push_back(own(moment));
      updates.push_back({&group, std::move(range), shard.is_counted, shard.arrival});
    };
    // Do not read the parameters' gradients if shards have them: grad() would bring those of all processes into memory.
    bool reads_parameters = false;
    for (const Shard& shard : segment.shards)
      if (shard.gradients.defined()) add(shard, shard.begin, shard.end, shard.gradients);
      else reads_parameters = true;
    if (!reads_parameters) continue;
    for (const auto& [offset, from, to] : gradients_of(segment)) {
      const Tensor gradients = segment_between(from, to);
      for (const Shard& shard : segment.shards) {
        const std::int64_t begin = std::max(offset, shard.begin), end = std::min(offset + gradients.numel(), shard.end);
        if (begin < end && !shard.gradients.defined()) add(shard, begin, end, elements_of(gradients, begin - offset, end - offset));
      }
    }
  }
  return updates;
}

Tensors Optimizer::own_gradients() {
  if (!is_laid_out()) lay_out();
  Tensors result;
  for (const Update& update : updates())
    if (update.is_counted) result.push_back(update.range.gradient);
  return result;
}

void Optimizer::gather_masters() {
  const NoGrad unrecorded;
  if (!is_sharded()) return;
  if (!is_laid_out()) lay_out();
  for (const Segment& segment : segments_) {
    if (!segment.master.defined()) continue;
    const Tensor own = zeros({segment.master.numel()}, segment.master.dtype(), segment.master.device());
    for (const Shard& shard : segment.shards)
      if (shard.is_counted) copy_(elements_of(own, shard.begin, shard.end), elements_of(segment.master, shard.begin, shard.end));
    exchange_->sum(own);
    copy_(segment.master, own);
  }
}

Tensors Optimizer::memory() {
  if (!is_laid_out()) lay_out();
  Tensors result{steps_};
  for (const Group& group : groups_) result.push_back(group.lr);
  for (const Segment& segment : segments_) {
    for (const Shard& shard : segment.shards) {
      result.insert(result.end(), shard.moments.begin(), shard.moments.end());
      if (shard.masters.defined()) result.push_back(shard.masters);
    }
    if (segment.master.defined()) result.push_back(segment.master);
  }
  return result;
}

/// Moment of a parameter, in its shape: a view on the shard that owns it, or, if sharded, assembled from all processes' shards.
Tensor Optimizer::moment(std::size_t i, std::size_t kind) const {
  const ParameterState& state = states_[i];
  const Shape& shape = state.parameter.shape();
  if (!is_sharded()) {
    const std::vector<Shard>& shards = segments_[state.segment].shards;
    const Shard& shard = *std::find_if(shards.rbegin(), shards.rend(), [&](const Shard& each) { return each.begin <= state.first; });
    const Tensor& all = shard.moments[kind];
    return all.window(shape, contiguous_strides(shape), all.offset() + state.first - shard.begin);
  }
  const DType kept = state.parameter.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor all = zeros({state.parameter.numel()}, kept, state.parameter.device());
  for_each_shard(segments_, state, [&](const Shard& shard, std::int64_t begin, std::int64_t end) {
    if (shard.is_counted)
      copy_(elements_of(all, begin, end),
            elements_of(shard.moments[kind], state.first + begin - shard.begin, state.first + end - shard.begin));
  });
  exchange_->sum(all);
  return to(reshape(all, shape), cpu);
}

std::string Optimizer::key_of(const std::string& kind, std::size_t i, const ParameterState& state, const std::vector<NamedTensor>& names) {
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const NamedTensor& entry) { return entry.tensor.is_same(state.parameter); });
  return fmt::format("{}.{}", kind, found == names.end() ? std::to_string(i) : found->name);
}

std::vector<NamedTensor> Optimizer::state(const std::vector<NamedTensor>& names) {
  const NoGrad unrecorded;
  if (!is_laid_out()) lay_out();
  gather_masters();
  std::vector<NamedTensor> result{{"step", steps_}};
  for (std::size_t i = 0; i < groups_.size(); ++i) result.push_back({fmt::format("lr.{}", i), groups_[i].lr});
  for_each_moment([&](const std::string& name, std::size_t kind, std::size_t i) {
    result.push_back({key_of(name, i, states_[i], names), moment(i, kind)});
  });
  for (std::size_t i = 0; i < states_.size(); ++i)
    if (states_[i].master.defined()) result.push_back({key_of("master", i, states_[i], names), states_[i].master});
  return result;
}

void Optimizer::load_moments(const std::vector<NamedTensor>& state, const std::vector<NamedTensor>& names) {
  const NoGrad unrecorded;
  if (!is_laid_out()) lay_out();
  for_each_moment([&](const std::string& name, std::size_t kind, std::size_t i) {
    const std::string key = key_of(name, i, states_[i], names);
    const auto found = std::find_if(state.begin(), state.end(), [&](const NamedTensor& entry) { return entry.name == key; });
    if (found == state.end()) fail("load_moments", fmt::format("expected \"{}\" but there is no tensor of this name", key));
    if (found->tensor.shape() != states_[i].parameter.shape())
      fail("load_moments",
           fmt::format("expected \"{}\" of {} but got {}", key, to_string(states_[i].parameter.shape()), to_string(found->tensor.shape())));
    const Tensor all = reshape(contiguous(found->tensor.detach()), {-1});
    for_each_shard(segments_, states_[i], [&](const Shard& shard, std::int64_t begin, std::int64_t end) {
      const std::int64_t first = states_[i].first - shard.begin;
      copy_(elements_of(shard.moments[kind], first + begin, first + end), elements_of(all, begin, end));
    });
  });
}

}  // namespace tern::train
