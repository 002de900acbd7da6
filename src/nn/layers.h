#pragma once
#include "nn/module.h"
#include "ops/loss.h"
#include "ops/normalize.h"
#include "ops/quantize.h"

namespace tern::nn {

/// Activation function of a feed-forward block (ops/pointwise.h).
enum class Activation : std::uint8_t { gelu, gelu_tanh, relu, silu };
/// Name of an activation: "gelu", "gelu_tanh", "relu", "silu".
const char* name(Activation activation);
/// Applies the activation to x (...): (...).
Tensor activate(Activation activation, const Tensor& x);

/// Quantized form of a layer's weight, with the ops that read it. nn::quantize sets all members, and layers call these ops only through the
/// pointers: a program that does not quantize then links none of their kernels, 150 kB.
struct QuantizedForm : QuantizedWeight {
  decltype(&quantized_linear) linear = nullptr;        ///< quantized_linear, if the weight is defined
  decltype(&quantized_embedding) embedding = nullptr;  ///< quantized_embedding, if the weight is defined
};

/// Linear layer, y = x W^T + b: (..., in) -> (..., out). Weight (out, in) and bias (out) are initialized uniformly in +-1 / sqrt(in). All
/// products with the weight are here, so that another form of weight (of low rank, say) only changes this class. A quantized layer
/// (nn/quantize.h) has `quantized` in place of the weight, and no fused products.
struct Linear final : Callable<Linear> {
  Linear() = default;
  /// Creates a layer with new parameters in f32, drawn from this thread's generator. Throws Error for sizes below 1.
  Linear(std::int64_t in, std::int64_t out, bool with_bias = true, Device device = default_device());
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// x (..., in) of the weight's dtype -> (..., out). Throws Error for another last size.
  Tensor forward(const Tensor& x) const;
  /// x W^T, for a caller that adds the bias in its own kernel: see ResidualStream.
  Tensor forward_without_bias(const Tensor& x) const;
  /// activate(activation, forward(x)); gelu_tanh is the epilogue of the product (linear_gelu).
  Tensor activated(Activation activation, const Tensor& x) const;
  /// next.forward(activated(activation, x)), or without next's bias; with gelu_tanh it is one op (feed_forward_gelu).
  Tensor activated(Activation activation, const Tensor& x, const Linear& next, bool adds_next_bias) const;
  /// cross_entropy(forward(x), targets, options), for which the whole logits are never in memory (linear_cross_entropy).
  Tensor cross_entropy(const Tensor& x, const Tensor& targets, const CrossEntropyOptions& options = {}) const;

  bool defined() const { return weight.defined() || quantized.defined(); }  ///< false for Linear(), which has no parameters
  Device device() const { return quantized.defined() ? quantized.device() : weight.device(); }  ///< device of the weight, in either form

  Tensor weight;            ///< (out, in); undefined if quantized
  Tensor bias;              ///< (out), or undefined
  QuantizedForm quantized;  ///< the weight's quantized form, set by nn::quantize

 private:
  Tensor product(const Tensor& x, const Tensor& added) const;
};

/// Embedding: rows of a table (count, width) at i64 ids (...): (..., width). The table is initialized as N(0, 1). A quantized one
/// (nn/quantize.h) has `quantized` in its place.
struct Embedding final : Callable<Embedding> {
  Embedding() = default;
  /// Creates a table in f32, drawn from this thread's generator. Throws Error for sizes below 1.
  Embedding(std::int64_t count, std::int64_t width, Device device = default_device());
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// ids (...) -> (..., width), in the table's dtype; for a quantized table, which has none, in `dtype`.
  Tensor forward(const Tensor& ids, DType dtype = DType::f32) const;
  Device device() const { return quantized.defined() ? quantized.device() : weight.device(); }  ///< device of the table, in either form

  Tensor weight;            ///< (count, width); undefined if quantized
  QuantizedForm quantized;  ///< the table's quantized form, set by nn::quantize
};

/// Options of Norm, LayerNorm and RMSNorm.
struct NormOptions {
  double eps = 1e-5;                 ///< added to the variance, or to the mean square
  bool bias = true;                  ///< LayerNorm's; RMSNorm has none
  Device device = default_device();  ///< device of the parameters
};

/// Kind of a Norm.
enum class NormKind : std::uint8_t {
  layer,  ///< LayerNorm
  rms,    ///< RMSNorm
  none,   ///< x itself, for ablations
};

/// Norm over the last dimension: LayerNorm, RMSNorm or none, for modules that take any of them.
struct Norm : Callable<Norm> {
  Norm() = default;
  /// Normalizes rows of `width` elements; the weight starts as ones, the bias as zeros. Throws Error for a width below 1.
  Norm(NormKind kind, std::int64_t width, const NormOptions& options = {});
  void visit(Visitor& v) override;
  std::string type_name() const override;
  std::string settings() const override;
  /// x (..., width) -> the same shape.
  Tensor forward(const Tensor& x) const;
  /// Adds a branch to the residual stream, and normalizes the sum.
  ResidualNorm forward(const Tensor& branch, const Tensor& residual, const BranchOptions& options = {}) const;

  NormKind kind = NormKind::layer;  ///< kind of the norm
  Tensor weight;                    ///< (width); undefined for NormKind::none
  Tensor bias;                      ///< (width), or undefined: RMSNorm has none
  double eps = 1e-5;                ///< see NormOptions
};

/// Layer normalization, (x - mean) / sqrt(var + eps) * weight + bias over the last dimension.
struct LayerNorm final : Norm {
  LayerNorm() = default;
  /// As Norm of NormKind::layer.
  explicit LayerNorm(std::int64_t width, const NormOptions& options = {}) : Norm(NormKind::layer, width, options) {}
};

/// RMS normalization, x / sqrt(mean(x^2) + eps) * weight over the last dimension.
struct RMSNorm final : Norm {
  RMSNorm() = default;
  /// As Norm of NormKind::rms.
  explicit RMSNorm(std::int64_t width, const NormOptions& options = {}) : Norm(NormKind::rms, width, options) {}
};

/// Dropout: sets elements to zero with probability p in training. Throws Error unless 0 <= p < 1.
struct Dropout final : Callable<Dropout> {
  Dropout() = default;
  /// `p` is the probability that an element is set to zero.
  explicit Dropout(double p);
  void visit(Visitor&) override {}
  std::string settings() const override;
  /// tern::dropout (ops/random.h) of x (...); x itself in evaluation.
  Tensor forward(const Tensor& x) const;

  double p = 0;  ///< probability of a zero
};

/// GELU, x Phi(x), exact or approximated by tanh.
struct GELU final : Callable<GELU> {
  explicit GELU(bool with_tanh = false) : tanh(with_tanh) {}  ///< true: the approximation
  void visit(Visitor&) override {}
  std::string settings() const override;
  /// x (...) -> the same shape: gelu or gelu_tanh (ops/pointwise.h).
  Tensor forward(const Tensor& x) const;

  bool tanh = false;  ///< use the approximation, as in GPT-2
};

}  // namespace tern::nn
