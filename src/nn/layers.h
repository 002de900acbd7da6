#pragma once
#include "nn/module.h"
#include "ops/loss.h"
#include "ops/normalize.h"
#include "ops/quantize.h"
#include "tensor/dtype.h"

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

/// Low-rank adapter of a linear layer, whose result it is added to; see nn/low_rank.h.
struct LowRank {
  bool defined() const { return a.defined(); }  ///< false for LowRank(), which adds nothing
  Tensor operator()(const Tensor& x) const;     ///< scale (x A^T) B^T: (..., in) -> (..., out)

  Tensor a;          ///< (R, in)
  Tensor b;          ///< (out, R)
  double scale = 1;  ///< alpha / R
};

/// Linear layer, y = x W^T + b: (..., in) -> (..., out). Weight (out, in) and bias (out) are initialized uniformly in +-1 / sqrt(in). A
/// quantized layer (nn::quantize) has `quantized` in place of the weight. Neither it nor one with an adapter has fused products.
struct Linear final : Callable<Linear> {
  Linear() = default;
  /// Creates a layer with new parameters in f32, drawn from this thread's generator. Throws Error for sizes below 1.
  Linear(std::int64_t in, std::int64_t out, bool with_bias = true, Device device = default_device());
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// x (..., in) of the weight's dtype -> (..., out). Throws Error for another last size.
  Tensor forward(const Tensor& x) const { return forward(x, bias); }
  /// x W^T + added, (out) or undefined: for a caller that adds the bias in its own kernel, see ResidualStream.
  Tensor forward(const Tensor& x, const Tensor& added) const;
  /// cross_entropy(forward(x), targets, options), for which the whole logits are never in memory (linear_cross_entropy).
  Tensor cross_entropy(const Tensor& x, const Tensor& targets, const CrossEntropyOptions& options = {}) const;

  bool defined() const { return weight.defined() || quantized.defined(); }   ///< false for Linear(), which has no parameters
  bool can_fuse() const { return weight.defined() && !low_rank.defined(); }  ///< true if the layer is x W^T + b of a floating W
  Device device() const { return quantized.defined() ? quantized.device() : weight.device(); }  ///< device of the weight, in either form

  Tensor weight;            ///< (out, in); undefined if quantized
  Tensor bias;              ///< (out), or undefined
  QuantizedForm quantized;  ///< the weight's quantized form, set by nn::quantize
  LowRank low_rank;         ///< its adapter, set by nn::add_low_rank
};

/// Embedding: rows of a table (count, width) at i64 ids (...): (..., width). The table is initialized as N(0, 1). A quantized one
/// (nn::quantize) has `quantized` in its place.
struct Embedding final : Callable<Embedding> {
  Embedding() = default;
  /// Creates a table in f32, drawn from this thread's generator. Throws Error for sizes below 1.
  Embedding(std::int64_t count, std::int64_t width, Device device = default_device());
  void visit(Visitor& v) override { v("weight", weight), v.buffer("weight", quantized.rows); }
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
  void visit(Visitor& v) override { v("weight", weight), v("bias", bias); }
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

/// Options of BatchNorm1d and BatchNorm2d.
struct BatchNormOptions {
  double eps = 1e-5;                 ///< added to the variance
  double momentum = 0.1;             ///< weight of a new batch in the running statistics
  bool affine = true;                ///< weight and bias
  bool tracks_running = true;        ///< false: no running statistics, and evaluation uses those of the batch too
  Device device = default_device();  ///< device of parameters and running statistics
};

/// Batch normalization of each channel of x (B, C, ...): training uses the batch's mean and biased variance, evaluation running ones, which
/// each forward in training moves by `momentum` towards the batch's mean and unbiased variance. The running statistics are buffers, with
/// PyTorch's names running_mean, running_var and num_batches_tracked. Ioffe & Szegedy, 2015; ops/normalize.h. Throws Error in training for
/// channels of a single element.
struct BatchNorm : Callable<BatchNorm> {
  BatchNorm() = default;
  void visit(Visitor& v) override;
  std::string settings() const override;
  /// x (B, C, ...) -> the same shape. In training it updates the running statistics, and gradients flow through the batch's statistics.
  Tensor forward(const Tensor& x) const;
  std::int64_t channels() const { return channels_; }  ///< C

  Tensor weight;           ///< (C), ones at first; undefined unless affine
  Tensor bias;             ///< (C), zeros at first; undefined unless affine
  Tensor running_mean;     ///< (C), zeros at first; undefined unless tracks_running
  Tensor running_var;      ///< (C), ones at first; undefined unless tracks_running
  Tensor batches_tracked;  ///< (), i64: number of forwards in training; undefined unless tracks_running
  double eps = 1e-5;       ///< see BatchNormOptions
  double momentum = 0.1;   ///< see BatchNormOptions

 protected:
  /// For inputs of min_dims to max_dims dimensions; `type` names the subclass in errors. Throws Error for channels below 1, eps that is
  /// not above 0, and a momentum outside [0, 1].
  BatchNorm(const char* type, std::int64_t channels, const BatchNormOptions& options, int min_dims, int max_dims);

 private:
  const char* type_ = "BatchNorm";
  std::int64_t channels_ = 0;
  int min_dims_ = 2, max_dims_ = 8;
};

/// Batch normalization of (B, C) or (B, C, L).
struct BatchNorm1d final : BatchNorm {
  BatchNorm1d() = default;
  /// `channels` is the size of dimension 1.
  explicit BatchNorm1d(std::int64_t channels, const BatchNormOptions& options = {}) : BatchNorm("BatchNorm1d", channels, options, 2, 3) {}
};
/// Batch normalization of (B, C, H, W).
struct BatchNorm2d final : BatchNorm {
  BatchNorm2d() = default;
  /// `channels` is the size of dimension 1.
  explicit BatchNorm2d(std::int64_t channels, const BatchNormOptions& options = {}) : BatchNorm("BatchNorm2d", channels, options, 4, 4) {}
};

/// Options of GroupNorm.
struct GroupNormOptions {
  double eps = 1e-5;                 ///< added to the variance
  bool affine = true;                ///< weight and bias, one of each for each channel
  Device device = default_device();  ///< device of the parameters
};
/// Group normalization: group_norm (ops/normalize.h) of x (B, C, ...) over `groups` groups of channels. Throws Error unless these divide
/// the channels.
struct GroupNorm final : Callable<GroupNorm> {
  GroupNorm() = default;
  /// The weight starts as ones, the bias as zeros. One group is a layer norm over (C, ...); a group per channel is an instance norm.
  GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options = {});
  void visit(Visitor& v) override { v("weight", weight), v("bias", bias); }
  std::string settings() const override;
  /// x (B, C, ...) -> the same shape, the same in training and evaluation.
  Tensor forward(const Tensor& x) const;
  std::int64_t channels() const { return channels_; }  ///< C

  Tensor weight;            ///< (C), or undefined
  Tensor bias;              ///< (C), or undefined
  std::int64_t groups = 1;  ///< groups of adjacent channels
  double eps = 1e-5;        ///< see GroupNormOptions

 private:
  std::int64_t channels_ = 0;
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

/// ReLU, max(x, 0). Activations are elementwise functions as modules, for Sequential; they keep shape and dtype.
struct ReLU final : Callable<ReLU> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const;  ///< max(x, 0)
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
/// SiLU, x sigmoid(x).
struct SiLU final : Callable<SiLU> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const;  ///< tern::silu (ops/pointwise.h)
};
/// Hyperbolic tangent, in (-1, 1).
struct Tanh final : Callable<Tanh> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const;  ///< tern::tanh (ops/pointwise.h)
};
/// Sigmoid, 1 / (1 + exp(-x)), in (0, 1).
struct Sigmoid final : Callable<Sigmoid> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const;  ///< tern::sigmoid (ops/pointwise.h)
};
/// Leaky ReLU: x, or slope * x where x < 0.
struct LeakyReLU final : Callable<LeakyReLU> {
  /// The slope for x < 0, called negative_slope in PyTorch.
  explicit LeakyReLU(double negative_slope = 0.01) : slope(negative_slope) {}
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;  ///< tern::leaky_relu (ops/pointwise.h)

  double slope;  ///< slope for x < 0
};
/// Exponential linear unit: x, or alpha (exp(x) - 1) where x < 0.
struct ELU final : Callable<ELU> {
  explicit ELU(double alpha_ = 1) : alpha(alpha_) {}  ///< alpha as in PyTorch
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;  ///< tern::elu (ops/pointwise.h)

  double alpha;  ///< the limit at minus infinity is -alpha
};
/// Softplus, log(1 + exp(beta x)) / beta. Throws Error unless beta > 0.
struct Softplus final : Callable<Softplus> {
  explicit Softplus(double beta = 1);  ///< the larger beta, the closer to a ReLU
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;  ///< tern::softplus (ops/pointwise.h)

  double beta;  ///< above 0
};

/// Merges dimensions first .. last (inclusive) into one: (B, C, H, W) -> (B, C H W).
struct Flatten final : Callable<Flatten> {
  /// By default merges all dimensions but that of the batch.
  explicit Flatten(int first_dim = 1, int last_dim = -1) : first(first_dim), last(last_dim) {}
  void visit(Visitor&) override {}
  std::string settings() const override;
  /// tern::flatten (ops/view.h). Throws Error for dimensions that x does not have.
  Tensor forward(const Tensor& x) const;

  int first;  ///< first dimension to merge; -1 is the last of x
  int last;   ///< last dimension to merge, included
};
/// Returns x itself.
struct Identity final : Callable<Identity> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const { return x; }  ///< the same handle
};

/// Quantizes a model for inference: each Linear's weight and each Embedding's table is converted to the format (ops/quantize.h), a tied one
/// once for all its owners, and becomes a buffer of bytes instead of a parameter. The remaining parameters (biases, norms) are frozen.
/// Generation and `io` accept such a model like any other; requiring a gradient from it throws Error. Throws Error as tern::quantize does,
/// naming the module, and for a model that is already quantized; the model is then unchanged.
void quantize(Module& module, QuantFormat format);

/// The same without reading the weights: the buffers are uninitialized, for a file to be loaded into them.
void make_quantized(Module& module, QuantFormat format);

/// Path of a buffer with a scale that is not finite, as only a corrupt file has; "" if there is none.
std::string find_bad_scale(const Module& module);

}  // namespace tern::nn
