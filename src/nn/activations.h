#pragma once
#include "nn/module.h"

namespace tern::nn {

/// Functions of each element as modules, for Sequential; they keep shape and dtype. GELU is in nn/layers.h.
struct ReLU final : Callable<ReLU> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const;
};
/// x sigmoid(x).
struct SiLU final : Callable<SiLU> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const;
};
struct Tanh final : Callable<Tanh> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const;
};
struct Sigmoid final : Callable<Sigmoid> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const;
};
/// x, or slope x where x < 0.
struct LeakyReLU final : Callable<LeakyReLU> {
  explicit LeakyReLU(double negative_slope = 0.01) : slope(negative_slope) {}
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  double slope;
};
/// x, or alpha (exp(x) - 1) where x < 0.
struct ELU final : Callable<ELU> {
  explicit ELU(double alpha_ = 1) : alpha(alpha_) {}
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  double alpha;
};
/// log(1 + exp(beta x)) / beta. Throws Error unless beta > 0.
struct Softplus final : Callable<Softplus> {
  explicit Softplus(double beta = 1);
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  double beta;
};

/// Dimensions first .. last (inclusive) merged into one: (B, C, H, W) -> (B, C H W).
struct Flatten final : Callable<Flatten> {
  explicit Flatten(int first_dim = 1, int last_dim = -1) : first(first_dim), last(last_dim) {}
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  int first, last;
};
/// x itself.
struct Identity final : Callable<Identity> {
  void visit(Visitor&) override {}
  Tensor forward(const Tensor& x) const { return x; }
};

}  // namespace tern::nn
