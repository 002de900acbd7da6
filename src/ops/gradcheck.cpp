#include "ops/gradcheck.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

namespace tern {

/// Weights in [-1, 1) that depend only on the seed and the position.
static Tensor fixed_weights(const Tensor& like, std::uint64_t seed) {
  std::vector<double> values(static_cast<std::size_t>(like.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 2.0 * unit_float(philox(seed, i).words[0]) - 1.0;
  return Tensor::from(values, like.shape(), like.device());
}

/// A copy of an input that keeps its strides, so that non-contiguous inputs are checked as such.
static Tensor leaf_like(const Tensor& x) {
  const Tensor storage = x.window({static_cast<std::int64_t>(x.impl().storage->bytes() / size_of(x.dtype()))}, {1}, 0);
  Tensor leaf = clone(storage).window(x.shape(), x.strides(), x.offset());
  if (x.requires_grad()) leaf.set_requires_grad();
  return leaf;
}

static Tensors floating(Tensors outputs) {
  std::erase_if(outputs, [](const Tensor& y) { return !y.defined() || !is_floating(y.dtype()); });
  return outputs;
}

GradcheckResult gradcheck(const TensorFunction& f, const Tensors& inputs, const GradcheckOptions& options) {
  Tensors leaves, wanted;
  for (const Tensor& x : inputs) {
    leaves.push_back(leaf_like(x));
    if (!x.requires_grad()) continue;
    if (x.dtype() != DType::f64) fail("gradcheck", fmt::format("expected f64 inputs but got {}", name(x.dtype())));
    wanted.push_back(leaves.back());
  }
  if (wanted.empty()) fail("gradcheck", "expected an input that requires a gradient");
  Tensors outputs, weights;
  std::vector<bool> depends;  // by floating output; unknown on the numeric side, where nothing is recorded
  for (const Tensor& y : floating(f(leaves))) {
    depends.push_back(y.requires_grad());
    if (!y.requires_grad()) continue;
    outputs.push_back(y);
    weights.push_back(fixed_weights(y, options.seed + outputs.size()));
  }
  if (outputs.empty()) return {false, 0, "no output of the function depends on an input that requires a gradient"};
  const Tensors analytic = grad(outputs, wanted, weights);

  GradcheckResult result;
  const NoGrad unrecorded;
  const auto weighted = [&] {
    const Tensors all = floating(f(leaves));
    double total = 0;
    for (std::size_t i = 0, used = 0; i < all.size(); ++i)
      if (depends[i]) total += sum(all[i] * weights[used++]).item<double>();
    return total;
  };
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::vector<double> expected =
        analytic[i].defined() ? analytic[i].to_vector<double>() : std::vector<double>(static_cast<std::size_t>(wanted[i].numel()));
    std::int64_t flat = 0;
    for (double gradient : expected) {
      // Offset of the element, from its row-major index.
      std::int64_t rest = flat, place = wanted[i].offset();
      for (int d = wanted[i].dims() - 1; d >= 0; --d) {
        place += rest % wanted[i].shape()[d] * wanted[i].strides()[d];
        rest /= wanted[i].shape()[d];
      }
      const Tensor element = wanted[i].window({}, {}, place);
      const double before = element.item<double>();
      fill_(element, before + options.step);
      const double above = weighted();
      fill_(element, before - options.step);
      const double below = weighted();
      fill_(element, before);
      const double numeric = (above - below) / (2 * options.step), error = std::abs(gradient - numeric);
      result.worst = std::max(result.worst, error);
      if (!(error <= options.absolute + options.relative * std::abs(numeric)) && result.ok) {
        result.ok = false;
        result.message = fmt::format("input {}, element {}: analytic {:.9g}, numeric {:.9g}", i, flat, gradient, numeric);
      }
      ++flat;
    }
  }
  return result;
}

GradcheckResult gradgradcheck(const TensorFunction& f, const Tensors& inputs, const GradcheckOptions& options) {
  std::vector<bool> wanted;
  for (const Tensor& x : inputs) wanted.push_back(x.requires_grad());
  Tensors all = inputs;
  for (const Tensor& y : floating(f(inputs)))
    if (y.requires_grad()) all.push_back(fixed_weights(y, options.seed + 100 + all.size()).set_requires_grad());
  const std::size_t outputs = all.size() - inputs.size();
  if (outputs == 0) return {false, 0, "no output of the function depends on an input that requires a gradient"};

  const TensorFunction gradients = [&, outputs](const Tensors& values) {
    // The first derivative must be recorded even under NoGrad (on the numeric side).
    const GradMode recorded(true);
    const Tensors x(values.begin(), values.end() - static_cast<std::ptrdiff_t>(outputs));
    const Tensors weights(values.end() - static_cast<std::ptrdiff_t>(outputs), values.end());
    Tensors leaves, y;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (wanted[i]) leaves.push_back(x[i]);
    for (const Tensor& output : floating(f(x)))
      if (output.requires_grad()) y.push_back(output);
    Tensors results = grad(y, leaves, weights, true);
    for (std::size_t i = 0; i < results.size(); ++i)
      if (!results[i].defined()) results[i] = zeros(leaves[i].shape(), leaves[i].dtype(), leaves[i].device());
    return results;
  };
  return gradcheck(gradients, all, options);
}

}  // namespace tern
