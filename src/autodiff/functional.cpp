#include "autodiff/functional.h"

#include <fmt/format.h>

#include "autodiff/autograd_state.h"
#include "autodiff/engine.h"
#include "autodiff/gradient_arithmetic.h"

namespace tern {

Tensor detail::zeros_as(const Tensor& x) {
  const Tensor result = empty(x.shape(), x.dtype(), x.device());
  detail::fill_gradient(result, 0);
  return result;
}

void detail::check_vectors(const char* where, const char* what, const Tensors& vectors, const Tensors& tensors) {
  if (vectors.size() != tensors.size())
    fail(where, fmt::format("expected {} {}s, one for each, but got {}", tensors.size(), what, vectors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor &v = vectors[i], &x = tensors[i];
    if (!v.defined()) continue;
    if (!x.defined() || !is_floating(x.dtype()))
      fail(where, fmt::format("expected an undefined {} {} for a tensor that is not floating", what, i));
    if (v.shape() != x.shape() || v.dtype() != x.dtype() || v.device() != x.device())
      fail(where, fmt::format("expected {} {} of {} {} on {} but got {} {} on {}", what, i, name(x.dtype()), to_string(x.shape()),
                              to_string(x.device()), name(v.dtype()), to_string(v.shape()), to_string(v.device())));
  }
}

namespace {

/// f of separate leaves, and its floating outputs that depend on them.
struct Call {
  Tensors leaves, wanted, outputs;
  std::vector<std::size_t> dependent;

  Call(const TensorFunction& f, const Tensors& inputs) {
    for (const Tensor& x : inputs) {
      leaves.push_back(x.defined() ? detail::without_history(x) : x);
      if (!x.defined() || !is_floating(x.dtype())) continue;
      leaves.back().set_requires_grad();
      wanted.push_back(leaves.back());
    }
    outputs = f(leaves);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].defined() && outputs[i].requires_grad()) dependent.push_back(i);
  }
  Tensors detached_outputs() const {
    Tensors result;
    for (const Tensor& y : outputs) result.push_back(y.defined() ? detail::without_history(y) : y);
    return result;
  }
};

}  // namespace

JacobianProduct vjp(const TensorFunction& f, const Tensors& inputs, const Tensors& cotangents) {
  const ScopedValue<ForwardLevel*> followed(context().tangents.level, context().grad ? context().tangents.level : nullptr);
  const GradMode recorded(true);
  const Call call(f, inputs);
  detail::check_vectors("vjp", "cotangent", cotangents, call.outputs);
  Tensors outputs, vectors;
  for (const std::size_t i : call.dependent) {
    if (!cotangents[i].defined()) continue;
    outputs.push_back(call.outputs[i]);
    vectors.push_back(detail::without_history(cotangents[i]));
  }
  Tensors found(call.wanted.size());
  if (!outputs.empty() && !call.wanted.empty()) found = grad(outputs, call.wanted, vectors);
  JacobianProduct result{call.detached_outputs(), {}};
  std::size_t next = 0;
  for (const Tensor& x : call.leaves) {
    Tensor product;
    if (x.defined() && x.requires_grad()) {
      product = found[next++];
      if (!product.defined()) product = detail::zeros_as(x);
    }
    result.products.push_back(product);
  }
  return result;
}

}  // namespace tern
