#include "train/ema.h"

#include <fmt/format.h>

#include <algorithm>

#include "autodiff/parameter_buffer.h"
#include "nn/module.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "train/optimizer.h"

namespace tern::train {

namespace {

/// Calls detail::refresh_masters() if parameters were written since they were last rounded from the masters; an optimizer's step does the
/// same.
void refresh_masters(const Tensor& parameters, const Tensor& masters) {
  if (detail::is_edited(parameters, flat_storage(parameters)->masters_version)) detail::refresh_masters(parameters, masters);
}

/// Marks the parameters as the rounded masters.
void set_refreshed(const Tensor& parameters) {
  FlatStorage& storage = *flat_storage(parameters);
  storage.masters_version = storage.version();
}

}  // namespace

Ema::Ema(const nn::Module& module, const EmaOptions& options) : options_(options) {
  if (!(options.decay >= 0 && options.decay < 1)) fail("Ema", fmt::format("expected a decay in [0, 1) but got {}", options.decay));
  const NoGrad unrecorded;
  Tensors parameters, values;
  for (const NamedTensor& entry : nn::named_parameters(module)) {
    if (!entry.tensor.requires_grad()) continue;
    const Tensor parameter = entry.tensor.detach(), master = master_of(parameter);
    if (size_of(parameter.dtype()) == 2 && !master.defined())
      fail("Ema",
           fmt::format("expected {} to have a master: parameters of 16 bits need flatten_parameters or set_precision first", entry.name));
    parameters_.push_back(entry);
    places_.push_back(place_of(parameter));
    parameters.push_back(parameter);
    values.push_back(master.defined() ? master : parameter);
  }
  const Device device = values.empty() ? cpu : values[0].device();
  steps_ = zeros({}, DType::f32, device);
  averages_.resize(values.size());
  const std::vector<std::size_t> order = order_in_memory(values);
  for (std::size_t first = 0, last; first < order.size(); first = last + 1) {
    for (last = first; last + 1 < order.size() && is_adjacent(values[order[last]], values[order[last + 1]]);) ++last;
    const Tensor &begin = values[order[first]], &end = values[order[last]];
    Segment segment{segment_between(begin, end), {}, {}};
    const bool has_masters = size_of(parameters[order[first]].dtype()) == 2;
    if (has_masters) segment.parameters = segment_between(parameters[order[first]], parameters[order[last]]);
    gather(segment);
    if (has_masters) refresh_masters(segment.parameters, segment.values);
    segment.average = clone(segment.values);
    for (std::size_t i = first; i <= last; ++i) {
      const Tensor& value = values[order[i]];
      const Tensor window = segment.average.window(value.shape(), contiguous_strides(value.shape()), value.offset() - begin.offset());
      averages_[order[i]] = {parameters_[order[i]].name, window};
    }
    segments_.push_back(std::move(segment));
  }
}

void Ema::require_place(const char* where) const {
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (place_of(parameters_[i].tensor) != places_[i])
      fail(where, fmt::format("expected parameters where they were when the average was made, but {} has moved: make it after nn::to and "
                              "set_precision",
                              parameters_[i].name));
  if (is_swapped_) fail(where, "expected the module's own parameters, but it has the averages: an EmaScope is alive");
}

void Ema::gather(const Segment& segment) const {
  if (!options_.gather) return;
  if (segment.parameters.defined()) options_.gather({segment.parameters, segment.values});
  else options_.gather({segment.values});
}

void Ema::update() {
  require_place("Ema");
  const NoGrad unrecorded;
  Tensor rest;  // 1 - decay, on the device
  if (options_.warmup) rest = maximum(9.0 / (steps_ + 10.0), 1 - options_.decay);
  else rest = full({}, 1 - options_.decay, DType::f32, steps_.device());
  for (const Segment& segment : segments_) {
    gather(segment);
    const Tensor change = sub(segment.values, segment.average);
    add_(segment.average, mul_(change, cast(rest, change.dtype())));
  }
  add_(steps_, 1.0);
}

std::vector<NamedTensor> Ema::averaged(std::vector<NamedTensor> weights) const {
  for (NamedTensor& weight : weights)
    for (const NamedTensor& average : averages_)
      if (average.name == weight.name) weight.tensor = average.tensor;
  return weights;
}

std::vector<NamedTensor> Ema::state() const {
  std::vector<NamedTensor> result{{"steps", steps_}};
  for (const NamedTensor& average : averages_) result.push_back({"average." + average.name, average.tensor});
  return result;
}

EmaScope::EmaScope(Ema& ema) : ema_(ema) {
  ema.require_place("EmaScope");
  const NoGrad unrecorded;
  // All memory is allocated before anything is changed.
  for (const Ema::Segment& segment : ema.segments_) {
    ema.gather(segment);
    if (segment.parameters.defined()) refresh_masters(segment.parameters, segment.values);
    values_.push_back(clone(segment.values));
    parameters_.push_back(segment.parameters.defined() ? clone(segment.parameters) : Tensor());
  }
  ema.is_swapped_ = true;
  for (const Ema::Segment& segment : ema.segments_) {
    ema.gather(segment);
    copy_(segment.values, segment.average);
    if (segment.parameters.defined()) copy_(segment.parameters, segment.average), set_refreshed(segment.parameters);
  }
}

EmaScope::~EmaScope() {
  const NoGrad unrecorded;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const Ema::Segment& segment = ema_.segments_[i];
    ema_.gather(segment);
    copy_(segment.values, values_[i]);
    if (segment.parameters.defined()) copy_(segment.parameters, parameters_[i]), set_refreshed(segment.parameters);
  }
  ema_.is_swapped_ = false;
}

}  // namespace tern::train
