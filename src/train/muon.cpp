#include "train/muon.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/copy.h"
#include "ops/kernels/optimizer.h"
#include "ops/matmul.h"
#include "ops/operators.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/detail/adam.h"
#include "train/detail/require.h"

namespace tern::train {

using detail::require;

Muon::Muon(const std::vector<Group>& matrices, const std::vector<AdamW::Group>& others) : Optimizer({"m", "v"}) {
  for (const Group& group : matrices) add_group(group);
  for (const AdamW::Group& group : others) add_group(group);
  require_parameters();
}

Muon::Muon(const Tensors& matrices, const MuonOptions& options, const Tensors& others, const AdamWOptions& adam)
    : Muon(std::vector<Group>{{matrices, options}},
           others.empty() ? std::vector<AdamW::Group>{} : std::vector<AdamW::Group>{{others, adam}}) {}

void Muon::add_group(const Group& group) {
  const MuonOptions& o = group.options;
  require("Muon", o.momentum >= 0 && o.momentum < 1, "0 <= momentum < 1", o.momentum);
  require("Muon", o.weight_decay >= 0, "a weight decay >= 0", o.weight_decay);
  require("Muon", o.iterations >= 1, "at least one iteration", o.iterations);
  if (o.dtype != DType::bf16 && o.dtype != DType::f32)
    fail("Muon", fmt::format("expected products of bf16 or f32 but got {}", name(o.dtype)));
  for (const Tensor& x : group.parameters)
    if (x.dims() < 2)
      fail("Muon", fmt::format("expected matrices but got {}: pass it to AdamW, in one of the other groups", to_string(x.shape())));
  add_parameters(group.parameters, o.lr, {.moments = 1, .is_whole = true});
  options_.push_back({.muon = o, .adam = {}});
}

void Muon::add_group(const AdamW::Group& group) {
  detail::check(group.options);
  add_parameters(group.parameters, group.options.lr);
  options_.push_back({.muon = {}, .adam = group.options});
}

Tensor orthogonalize(const Tensor& x, int iterations) {
  if (x.dims() != 2) fail("orthogonalize", fmt::format("expected a matrix but got {}", to_string(x.shape())));
  const NoGrad unrecorded;
  const NoAutocast exact;
  // Products of the shorter side are smaller.
  const bool is_tall = x.size(0) > x.size(1);
  Tensor y = is_tall ? transpose(x, 0, 1) : x;
  const Tensor wide = cast(y, x.dtype() == DType::f64 ? DType::f64 : DType::f32);  // squares of 16-bit floats overflow or underflow
  y = cast(wide / (sqrt(sum(wide * wide)) + 1e-7), x.dtype());
  for (int i = 0; i < iterations; ++i) {
    const Tensor a = matmul(y, transpose(y, 0, 1));
    y = 3.4445 * y + matmul(-4.7750 * a + 2.0315 * matmul(a, a), y);
  }
  return is_tall ? transpose(y, 0, 1) : y;
}

void Muon::update_segment(std::size_t group, const SegmentViews& segment, const GradientScale& scale) {
  const GroupOptions& options = options_[group];
  if (!options.muon) {
    detail::adam_step(options.adam, {segment.parameter, segment.gradient, segment.master, segment.moments[0], segment.moments[1]},
                      lr(group), steps(), scale);
    return;
  }
  const MuonOptions& o = *options.muon;
  const NoAutocast exact;
  const Tensor &value = segment.master.defined() ? segment.master : segment.parameter, &moment = segment.moments[0];
  const DType kept = value.dtype();
  Tensor gradient = cast(segment.gradient, kept);
  if (scale.factor.defined()) gradient = gradient * cast(scale.factor, kept);
  const Tensor mean = o.momentum * moment + (1 - o.momentum) * gradient;
  const Tensor direction = o.nesterov ? o.momentum * mean + (1 - o.momentum) * gradient : mean;
  const std::int64_t rows = segment.shape[0], columns = value.numel() / std::max<std::int64_t>(rows, 1);
  if (value.numel() == 0) return;
  const Tensor update = orthogonalize(cast(reshape(direction, {rows, columns}), kept == DType::f64 ? kept : o.dtype), o.iterations);
  const Tensor rate = cast(lr(group), kept);
  const double stretch = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
  const Tensor updated = value * (1 - o.weight_decay * rate) - stretch * rate * reshape(cast(update, kept), {-1});
  // A step that is skipped after an overflow has gradients that are not finite: where(), because a factor of 0 would give NaN.
  const auto write = [&](const Tensor& target, const Tensor& source) {
    copy_(target, scale.advance.defined() ? where(ne(scale.advance, 0), source, target) : source);
  };
  write(moment, mean);
  write(value, updated);
  if (segment.master.defined()) copy_(segment.parameter, value);
}

}  // namespace tern::train
