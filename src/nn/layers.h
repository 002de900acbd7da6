#pragma once
#include "nn/module.h"
#include "ops/loss.h"
#include "ops/normalize.h"
#include "ops/quantize.h"

namespace tern::nn {

enum class Activation : std::uint8_t { gelu, gelu_tanh, relu, silu };
/// "gelu", "gelu_tanh", "relu", "silu".
const char* name(Activation activation);
Tensor activate(Activation activation, const Tensor& x);

/// y = x W^T + b: (..., in) -> (..., out). Weight (out, in) and bias (out) start uniform in +-1 / sqrt(in). The products with the
/// weight are all here, so that a Linear with another form of weight (of low rank, say) changes this class alone. One that was quantised
/// (nn/quantize.h) has `quantized` in the weight's place, and no fused product.
struct Linear final : Callable<Linear> {
  Linear() = default;
  Linear(std::int64_t in, std::int64_t out, bool with_bias = true, Device device = default_device());
  void visit(Visitor& v) override;
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;
  /// x W^T, for a caller that adds the bias in a kernel of its own: see ResidualStream.
  Tensor forward_without_bias(const Tensor& x) const;
  /// activate(activation, forward(x)); among fused kernels gelu_tanh is part of the product (linear_gelu).
  Tensor activated(Activation activation, const Tensor& x) const;
  /// next.forward(activated(activation, x)), or without next's bias; among fused kernels with gelu_tanh one op (feed_forward_gelu).
  Tensor activated(Activation activation, const Tensor& x, const Linear& next, bool adds_next_bias) const;
  /// cross_entropy(forward(x), targets, options); with fused kernels the logits are never whole in memory (linear_cross_entropy).
  Tensor cross_entropy(const Tensor& x, const Tensor& targets, const CrossEntropyOptions& options = {}) const;

  bool defined() const { return weight.defined() || quantized.defined(); }
  Device device() const { return quantized.defined() ? quantized.device() : weight.device(); }

  Tensor weight, bias;  ///< bias may be undefined
  QuantizedWeight quantized;

 private:
  Tensor product(const Tensor& x, const Tensor& added) const;
};

/// Rows of a table (count, width) at i64 ids (...): (..., width). The table starts as N(0, 1). One that was quantised (nn/quantize.h) has
/// `quantized` in its place.
struct Embedding final : Callable<Embedding> {
  Embedding() = default;
  Embedding(std::int64_t count, std::int64_t width, Device device = default_device());
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// Of a table that was quantised in the dtype given, as it has none of its own.
  Tensor forward(const Tensor& ids, DType dtype = DType::f32) const;
  Device device() const { return quantized.defined() ? quantized.device() : weight.device(); }

  Tensor weight;
  QuantizedWeight quantized;
};

struct NormOptions {
  double eps = 1e-5;
  bool bias = true;  ///< LayerNorm's; RMSNorm has none
  Device device = default_device();
};

enum class NormKind : std::uint8_t {
  layer,
  rms,
  none,  ///< x itself, for studies of what a norm is for
};

/// A norm over the last dimension: LayerNorm, RMSNorm or nothing, for modules that take any of them.
struct Norm : Callable<Norm> {
  Norm() = default;
  Norm(NormKind kind, std::int64_t width, const NormOptions& options = {});
  void visit(Visitor& v) override;
  std::string type_name() const override;
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;
  /// A branch joins the residual stream, and the sum is normalized.
  ResidualNorm forward(const Tensor& branch, const Tensor& residual, const BranchOptions& options = {}) const;

  NormKind kind = NormKind::layer;
  Tensor weight, bias;  ///< bias may be undefined; RMSNorm has none, and NormKind::none neither
  double eps = 1e-5;
};

/// (x - mean) / sqrt(var + eps) * weight + bias over the last dimension.
struct LayerNorm final : Norm {
  LayerNorm() = default;
  explicit LayerNorm(std::int64_t width, const NormOptions& options = {}) : Norm(NormKind::layer, width, options) {}
};

/// x / sqrt(mean(x^2) + eps) * weight over the last dimension.
struct RMSNorm final : Norm {
  RMSNorm() = default;
  explicit RMSNorm(std::int64_t width, const NormOptions& options = {}) : Norm(NormKind::rms, width, options) {}
};

/// Zeroes elements with probability p while training. Throws Error unless 0 <= p < 1.
struct Dropout final : Callable<Dropout> {
  Dropout() = default;
  explicit Dropout(double p);
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  double p = 0;
};

/// x Phi(x), exactly or by its approximation with tanh.
struct GELU final : Callable<GELU> {
  explicit GELU(bool with_tanh = false) : tanh(with_tanh) {}
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  bool tanh = false;
};

}  // namespace tern::nn
