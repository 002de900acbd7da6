#include "train/muon.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/detail/require.h"

namespace tern::train {

using detail::require;

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

void MuonOptions::update(const ParameterRange& range) const {
  const NoAutocast exact;
  const Tensor &value = range.master.defined() ? range.master : range.parameter, &moment = range.moments[0];
  const DType kept = value.dtype();
  Tensor gradient = cast(range.gradient, kept);
  if (range.scale.factor.defined()) gradient = gradient * cast(range.scale.factor, kept);
  const Tensor mean = momentum * moment + (1 - momentum) * gradient;
  const Tensor direction = nesterov ? momentum * mean + (1 - momentum) * gradient : mean;
  const std::int64_t rows = range.shape[0], columns = value.numel() / std::max<std::int64_t>(rows, 1);
  if (value.numel() == 0) return;
  const Tensor update = orthogonalize(cast(reshape(direction, {rows, columns}), kept == DType::f64 ? kept : dtype), iterations);
  const Tensor rate = cast(range.lr, kept);
  const double stretch = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
  const Tensor updated = value * (1 - weight_decay * rate) - stretch * rate * reshape(cast(update, kept), {-1});
  // A step that is skipped after an overflow has gradients that are not finite: where(), because a factor of 0 would give NaN.
  const auto write = [&](const Tensor& target, const Tensor& source) {
    copy_(target, range.scale.advance.defined() ? where(ne(range.scale.advance, 0), source, target) : source);
  };
  write(moment, mean);
  write(value, updated);
  if (range.master.defined()) copy_(range.parameter, value);
}

}  // namespace tern::train
