#include "nn/channel_norms.h"

#include <fmt/format.h>

#include "nn/detail/parameter.h"
#include "nn/init.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"

namespace tern::nn {

BatchNorm::BatchNorm(const char* type, std::int64_t channels, const BatchNormOptions& options, int min_dims, int max_dims)
    : eps(options.eps), momentum(options.momentum), type_(type), channels_(channels), min_dims_(min_dims), max_dims_(max_dims) {
  if (channels < 1 || !(eps > 0) || !(momentum >= 0 && momentum <= 1))
    fail(type, fmt::format("expected channels >= 1, eps > 0 and a momentum in [0, 1] but got {}, {} and {}", channels, eps, momentum));
  if (options.affine) {
    weight = init::ones(detail::parameter({channels}, options.device));
    bias = init::zeros(detail::parameter({channels}, options.device));
  }
  if (!options.tracks_running) return;
  running_mean = zeros({channels}, {.device = options.device});
  running_var = ones({channels}, {.device = options.device});
  batches_tracked = zeros({}, {.dtype = DType::i64, .device = options.device});
}

void BatchNorm::visit(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
  v.buffer("running_mean", running_mean);
  v.buffer("running_var", running_var);
  v.buffer("num_batches_tracked", batches_tracked);
}

std::string BatchNorm::settings() const {
  return fmt::format("{}, eps={:g}, momentum={:g}{}{}", channels_, eps, momentum, weight.defined() ? "" : ", affine=false",
                     running_mean.defined() ? "" : ", tracks_running=false");
}

Tensor BatchNorm::forward(const Tensor& x) const {
  const ModuleScope scope(this, type_);
  if (x.dims() < min_dims_ || x.dims() > max_dims_ || x.size(1) != channels_)
    fail(type_,
         fmt::format("expected x (B, {}{}) but got {}", channels_, max_dims_ == 3 ? ") or (B, C, L" : ", H, W", to_string(x.shape())));
  if (!training && running_mean.defined()) return batch_norm(x, running_mean, running_var, weight, bias, eps);
  const std::int64_t count = x.numel() / channels_;
  if (training && count < 2)
    fail(type_, fmt::format("expected two elements or more in each channel while training but got {}: a batch of one has no variance",
                            to_string(x.shape())));
  const BatchNormResult result = batch_norm(x, weight, bias, eps);
  if (training && running_mean.defined()) {
    const NoGrad unrecorded;
    const auto move = [&](const Tensor& running, const Tensor& seen, double share) {
      mul_(running, 1 - momentum);
      add_(running, cast(seen.detach() * share, running.dtype()));
    };
    const auto n = static_cast<double>(count);
    move(running_mean, result.mean, momentum);
    move(running_var, result.variance, momentum * n / (n - 1));
    add_(batches_tracked, 1.0);
  }
  return result.y;
}

GroupNorm::GroupNorm(std::int64_t groups_, std::int64_t channels, const GroupNormOptions& options)
    : groups(groups_), eps(options.eps), channels_(channels) {
  if (channels < 1 || groups < 1 || channels % groups != 0)
    fail("GroupNorm", fmt::format("expected groups that divide the channels but got {} and {}", groups, channels));
  if (!options.affine) return;
  weight = init::ones(detail::parameter({channels}, options.device));
  bias = init::zeros(detail::parameter({channels}, options.device));
}

void GroupNorm::visit(Visitor& v) {
  v("weight", weight);
  v("bias", bias);
}

std::string GroupNorm::settings() const {
  return fmt::format("{}, {}, eps={:g}{}", groups, channels_, eps, weight.defined() ? "" : ", affine=false");
}

Tensor GroupNorm::forward(const Tensor& x) const {
  const ModuleScope scope(this, "GroupNorm");
  if (x.dims() < 2 || x.size(1) != channels_)
    fail("GroupNorm", fmt::format("expected x (B, {}, ...) but got {}", channels_, to_string(x.shape())));
  return group_norm(x, groups, weight, bias, eps);
}

}  // namespace tern::nn
