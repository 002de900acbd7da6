#pragma once
#include "nn/module.h"

namespace tern::nn {

/// ReLU, max(x, 0). The activations here are elementwise functions as modules, for Sequential; they keep shape and dtype. GELU is in
/// nn/layers.h.
struct ReLU final : Callable<ReLU> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const;  ///< max(x, 0)
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

}  // namespace tern::nn
