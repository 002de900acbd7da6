#pragma once
#include "nn/module.h"
#include "ops/loss.h"
#include "ops/normalize.h"
#include "ops/quantize.h"

namespace tern::nn {

/// The function between the two products of a feed-forward part (ops/pointwise.h).
enum class Activation : std::uint8_t { gelu, gelu_tanh, relu, silu };
/// "gelu", "gelu_tanh", "relu", "silu".
const char* name(Activation activation);
/// The op of that name on x (...): (...).
Tensor activate(Activation activation, const Tensor& x);

/// The quantised form of a layer's weight, with the ops that read it. nn::quantize sets all of it, and layers call no such op by name: so a
/// program that does not quantise links none of their kernels, 150 kB.
struct QuantizedForm : QuantizedWeight {
  decltype(&quantized_linear) linear = nullptr;        ///< with a defined weight, quantized_linear
  decltype(&quantized_embedding) embedding = nullptr;  ///< with a defined weight, quantized_embedding
};

/// y = x W^T + b: (..., in) -> (..., out). Weight (out, in) and bias (out) start uniform in +-1 / sqrt(in). The products with the
/// weight are all here, so that a Linear with another form of weight (of low rank, say) changes this class alone. One that was quantised
/// (nn/quantize.h) has `quantized` in the weight's place, and no fused product.
struct Linear final : Callable<Linear> {
  Linear() = default;
  /// A layer with parameters of its own in f32, drawn from this thread's generator. Throws Error for sizes below 1.
  Linear(std::int64_t in, std::int64_t out, bool with_bias = true, Device device = default_device());
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// x (..., in) of the weight's dtype -> (..., out). Throws Error for another last size.
  Tensor forward(const Tensor& x) const;
  /// x W^T, for a caller that adds the bias in a kernel of its own: see ResidualStream.
  Tensor forward_without_bias(const Tensor& x) const;
  /// activate(activation, forward(x)); among fused kernels gelu_tanh is part of the product (linear_gelu).
  Tensor activated(Activation activation, const Tensor& x) const;
  /// next.forward(activated(activation, x)), or without next's bias; among fused kernels with gelu_tanh one op (feed_forward_gelu).
  Tensor activated(Activation activation, const Tensor& x, const Linear& next, bool adds_next_bias) const;
  /// cross_entropy(forward(x), targets, options); with fused kernels the logits are never whole in memory (linear_cross_entropy).
  Tensor cross_entropy(const Tensor& x, const Tensor& targets, const CrossEntropyOptions& options = {}) const;

  bool defined() const { return weight.defined() || quantized.defined(); }  ///< false for Linear(), which has no parameters
  Device device() const { return quantized.defined() ? quantized.device() : weight.device(); }  ///< of the weight, in either form

  Tensor weight;            ///< (out, in); undefined where it is quantised
  Tensor bias;              ///< (out), or undefined
  QuantizedForm quantized;  ///< the weight's other form, which nn::quantize makes

 private:
  Tensor product(const Tensor& x, const Tensor& added) const;
};

/// Rows of a table (count, width) at i64 ids (...): (..., width). The table starts as N(0, 1). One that was quantised (nn/quantize.h) has
/// `quantized` in its place.
struct Embedding final : Callable<Embedding> {
  Embedding() = default;
  /// A table in f32, drawn from this thread's generator. Throws Error for sizes below 1.
  Embedding(std::int64_t count, std::int64_t width, Device device = default_device());
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// Of a table that was quantised in the dtype given, as it has none of its own.
  Tensor forward(const Tensor& ids, DType dtype = DType::f32) const;
  Device device() const { return quantized.defined() ? quantized.device() : weight.device(); }  ///< of the table, in either form

  Tensor weight;            ///< (count, width); undefined where it is quantised
  QuantizedForm quantized;  ///< the table's other form, which nn::quantize makes
};

/// Options of Norm, LayerNorm and RMSNorm.
struct NormOptions {
  double eps = 1e-5;                 ///< added to the variance, or to the mean square
  bool bias = true;                  ///< LayerNorm's; RMSNorm has none
  Device device = default_device();  ///< of the parameters
};

/// The norm that a Norm is.
enum class NormKind : std::uint8_t {
  layer,  ///< LayerNorm
  rms,    ///< RMSNorm
  none,   ///< x itself, for ablations
};

/// A norm over the last dimension: LayerNorm, RMSNorm or nothing, for modules that take any of them.
struct Norm : Callable<Norm> {
  Norm() = default;
  /// Over rows of `width` elements; the weight begins as ones, the bias as zeros. Throws Error for a width below 1.
  Norm(NormKind kind, std::int64_t width, const NormOptions& options = {});
  void visit(Visitor& v) override;
  std::string type_name() const override;
  std::string settings() const override;
  /// x (..., width) -> the same shape; one kernel with use_fused_kernel.
  Tensor forward(const Tensor& x) const;
  /// A branch joins the residual stream, and the sum is normalized.
  ResidualNorm forward(const Tensor& branch, const Tensor& residual, const BranchOptions& options = {}) const;

  NormKind kind = NormKind::layer;  ///< which of them it is
  Tensor weight;                    ///< (width); undefined for NormKind::none
  Tensor bias;                      ///< (width), or undefined: RMSNorm has none
  double eps = 1e-5;                ///< see NormOptions
};

/// (x - mean) / sqrt(var + eps) * weight + bias over the last dimension.
struct LayerNorm final : Norm {
  LayerNorm() = default;
  /// As Norm of NormKind::layer.
  explicit LayerNorm(std::int64_t width, const NormOptions& options = {}) : Norm(NormKind::layer, width, options) {}
};

/// x / sqrt(mean(x^2) + eps) * weight over the last dimension.
struct RMSNorm final : Norm {
  RMSNorm() = default;
  /// As Norm of NormKind::rms.
  explicit RMSNorm(std::int64_t width, const NormOptions& options = {}) : Norm(NormKind::rms, width, options) {}
};

/// Zeroes elements with probability p while training. Throws Error unless 0 <= p < 1.
struct Dropout final : Callable<Dropout> {
  Dropout() = default;
  /// With the probability that an element is zeroed.
  explicit Dropout(double p);
  void visit(Visitor&) override {}
  std::string settings() const override;
  /// tern::dropout (ops/random.h) of x (...); x itself in evaluation.
  Tensor forward(const Tensor& x) const;

  double p = 0;  ///< probability of a zero
};

/// x Phi(x), exactly or by its approximation with tanh.
struct GELU final : Callable<GELU> {
  explicit GELU(bool with_tanh = false) : tanh(with_tanh) {}  ///< true: the approximation
  void visit(Visitor&) override {}
  std::string settings() const override;
  /// x (...) -> the same shape: gelu or gelu_tanh (ops/pointwise.h).
  Tensor forward(const Tensor& x) const;

  bool tanh = false;  ///< the approximation, as GPT-2 has it
};

}  // namespace tern::nn
