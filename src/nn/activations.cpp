#include "nn/activations.h"

#include <fmt/format.h>

#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern::nn {

Softplus::Softplus(double beta_) : beta(beta_) {
  if (!(beta > 0)) fail("Softplus", fmt::format("expected beta > 0 but got {}", beta));
}

Tensor ReLU::forward(const Tensor& x) const {
  const ModuleScope scope(this, "ReLU");
  return relu(x);
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

std::string LeakyReLU::settings() const { return fmt::format("slope={:g}", slope); }
std::string ELU::settings() const { return fmt::format("alpha={:g}", alpha); }
std::string Softplus::settings() const { return fmt::format("beta={:g}", beta); }
std::string Flatten::settings() const { return fmt::format("{}, {}", first, last); }

}  // namespace tern::nn
