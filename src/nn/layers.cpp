#include "nn/layers.h"

#include <fmt/format.h>

#include "nn/init.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/view.h"

namespace tern::nn {

using detail::parameter;

static void check_sizes(const char* where, std::int64_t a, std::int64_t b) {
  if (a < 1 || b < 1) fail(where, fmt::format("expected sizes >= 1 but got {} and {}", a, b));
}

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, Device device) {
  check_sizes("Linear", in, out);
  detail::make_weight_and_bias(weight, bias, {out, in}, with_bias, device);
}

void Linear::visit(Visitor& v) {
  v("weight", weight);
  v.buffer("weight", quantized.rows);
  v("bias", bias);
  v("lora_a", low_rank.a);
  v("lora_b", low_rank.b);
}

std::string Linear::settings() const {
  if (!defined()) return "";
  const bool is_quantized = quantized.defined();
  return fmt::format("in={}, out={}, bias={}", is_quantized ? quantized.in : weight.size(1),
                     is_quantized ? quantized.out() : weight.size(0), bias.defined()) +
         (is_quantized ? std::string(", ") + tern::name(quantized.format) : "") +
         (low_rank.defined() ? fmt::format(", rank={}", low_rank.a.size(0)) : "");
}

Tensor Linear::forward(const Tensor& x, const Tensor& added) const {
  const ModuleScope scope(this, "Linear");
  const Tensor y = quantized.defined() ? quantized.linear(x, quantized, added) : linear(x, weight, added);
  return low_rank.defined() ? y + low_rank(x) : y;
}

Tensor Linear::cross_entropy(const Tensor& x, const Tensor& targets, const CrossEntropyOptions& options) const {
  if (!can_fuse()) return tern::cross_entropy(forward(x), targets, options);
  const ModuleScope scope(this, "Linear");
  return linear_cross_entropy(x, weight, bias, targets, options);
}

Embedding::Embedding(std::int64_t count, std::int64_t width, Device device) {
  check_sizes("Embedding", count, width);
  weight = parameter({count, width}, device);
  init::normal(weight);
}

std::string Embedding::settings() const {
  if (quantized.defined()) return fmt::format("{}, {}, {}", quantized.out(), quantized.in, tern::name(quantized.format));
  return weight.defined() ? fmt::format("{}, {}", weight.size(0), weight.size(1)) : "";
}

Tensor Embedding::forward(const Tensor& ids, DType dtype) const {
  const ModuleScope scope(this, "Embedding");
  return quantized.defined() ? quantized.embedding(quantized, ids, dtype) : embedding(weight, ids);
}

static const char* name(NormKind kind) {
  constexpr const char* names[] = {"LayerNorm", "RMSNorm", "Norm"};
  return names[static_cast<int>(kind)];
}

Norm::Norm(NormKind kind_, std::int64_t width, const NormOptions& options) : kind(kind_), eps(options.eps) {
  check_sizes(name(kind), width, 1);
  if (kind == NormKind::none) return;
  weight = init::ones(parameter({width}, options.device));
  if (options.bias && kind == NormKind::layer) bias = init::zeros(parameter({width}, options.device));
}

std::string Norm::type_name() const { return name(kind); }

std::string Norm::settings() const {
  if (!weight.defined()) return kind == NormKind::none ? "none" : "";
  const std::string width = fmt::format("{}, eps={:g}", weight.size(0), eps);
  return kind == NormKind::rms ? width : width + fmt::format(", bias={}", bias.defined());
}

Tensor Norm::forward(const Tensor& x) const {
  const ModuleScope scope(this, name(kind));
  if (kind == NormKind::none) return x;
  return kind == NormKind::rms ? rms_norm(x, weight, eps) : layer_norm(x, weight, bias, eps);
}

ResidualNorm Norm::forward(const Tensor& branch, const Tensor& residual, const BranchOptions& options) const {
  const ModuleScope scope(this, name(kind));
  if (kind == NormKind::none) {
    const Tensor x = options.bias.defined() ? branch + options.bias : branch;
    const Tensor sum = residual + dropout(x, options.dropout, options.training);
    return {sum, sum};
  }
  if (kind == NormKind::rms) return residual_rms_norm(branch, residual, weight, eps, options);
  return residual_layer_norm(branch, residual, weight, bias, eps, options);
}

BatchNorm::BatchNorm(const char* type, std::int64_t channels, const BatchNormOptions& options, int min_dims, int max_dims)
    : eps(options.eps), momentum(options.momentum), type_(type), channels_(channels), min_dims_(min_dims), max_dims_(max_dims) {
  if (channels < 1 || !(eps > 0) || !(momentum >= 0 && momentum <= 1))
    fail(type, fmt::format("expected channels >= 1, eps > 0 and a momentum in [0, 1] but got {}, {} and {}", channels, eps, momentum));
  if (options.affine) {
    weight = init::ones(parameter({channels}, options.device));
    bias = init::zeros(parameter({channels}, options.device));
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
  weight = init::ones(parameter({channels}, options.device));
  bias = init::zeros(parameter({channels}, options.device));
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

Dropout::Dropout(double probability) : p(probability) {
  if (!(p >= 0 && p < 1)) fail("Dropout", fmt::format("expected 0 <= p < 1 but got {}", p));
}

std::string Dropout::settings() const { return fmt::format("p={:g}", p); }

Tensor Dropout::forward(const Tensor& x) const {
  const ModuleScope scope(this, "Dropout");
  return dropout(x, p, training);
}

const char* name(Activation activation) {
  constexpr const char* names[] = {"gelu", "gelu_tanh", "relu", "silu"};
  return names[static_cast<int>(activation)];
}

Tensor activate(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::gelu: return gelu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::relu: return relu(x);
    default: return silu(x);
  }
}

Softplus::Softplus(double beta_) : beta(beta_) {
  if (!(beta > 0)) fail("Softplus", fmt::format("expected beta > 0 but got {}", beta));
}

Tensor ReLU::forward(const Tensor& x) const {
  const ModuleScope scope(this, "ReLU");
  return relu(x);
}
Tensor GELU::forward(const Tensor& x) const {
  const ModuleScope scope(this, "GELU");
  return tanh ? gelu_tanh(x) : gelu(x);
}
Tensor SiLU::forward(const Tensor& x) const {
  const ModuleScope scope(this, "SiLU");
  return silu(x);
}
Tensor Tanh::forward(const Tensor& x) const {
  const ModuleScope scope(this, "Tanh");
  return tern::tanh(x);
}
Tensor Sigmoid::forward(const Tensor& x) const {
  const ModuleScope scope(this, "Sigmoid");
  return sigmoid(x);
}
Tensor LeakyReLU::forward(const Tensor& x) const {
  const ModuleScope scope(this, "LeakyReLU");
  return leaky_relu(x, slope);
}
Tensor ELU::forward(const Tensor& x) const {
  const ModuleScope scope(this, "ELU");
  return elu(x, alpha);
}
Tensor Softplus::forward(const Tensor& x) const {
  const ModuleScope scope(this, "Softplus");
  return softplus(x, beta);
}
Tensor Flatten::forward(const Tensor& x) const {
  const ModuleScope scope(this, "Flatten");
  return flatten(x, first, last);
}

std::string GELU::settings() const { return tanh ? "tanh" : ""; }
std::string LeakyReLU::settings() const { return fmt::format("slope={:g}", slope); }
std::string ELU::settings() const { return fmt::format("alpha={:g}", alpha); }
std::string Softplus::settings() const { return fmt::format("beta={:g}", beta); }
std::string Flatten::settings() const { return fmt::format("{}, {}", first, last); }

}  // namespace tern::nn
