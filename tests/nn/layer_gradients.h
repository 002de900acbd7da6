#pragma once
#include "catch.h"
#include "nn/nn.h"
#include "ops/gradcheck.h"
#include "ops/random.h"

namespace tern {

/// The gradients of a layer with self and cross attention, under a causal mask with a prefix, are those of finite differences, in f64.
inline void check_layer_gradients(bool is_fused) {
  const FusedKernels kernels(is_fused);
  manual_seed(9);
  nn::TransformerLayer layer({.width = 4, .heads = 2, .ff = 6, .dropout = 0}, true);
  nn::to(layer, DType::f64);
  const AttentionMask mask{.causal = true, .prefix = Tensor::from(std::vector<std::int64_t>{0, 2}, {2})};
  Tensors inputs{randn({2, 3, 4}, 0, 1, DType::f64).set_requires_grad(), randn({2, 2, 4}, 0, 1, DType::f64).set_requires_grad()};
  for (const Tensor& x : nn::parameters(layer)) inputs.push_back(x);
  const GradcheckResult result = gradcheck([&](const Tensors& xs) -> Tensors { return {layer.forward(xs[0], mask, xs[1], {})}; }, inputs);
  INFO(result.message);
  CHECK(result.ok);
  CHECK_THROWS_AS(layer.forward(inputs[0], mask), Error);
}

}  // namespace tern
