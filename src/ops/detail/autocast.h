#pragma once
#include <array>
#include <string_view>

#include "ops/autocast.h"
#include "ops/op.h"

// Until every op goes through call().
namespace tern::detail {

inline CastTo rule_of(std::string_view op) {
  for (const std::string_view low : {"matmul", "linear", "depthwise_conv1d", "conv1d", "conv2d", "conv_transpose2d"})
    if (op == low) return CastTo::lower;
  for (const std::string_view wide : {"softmax", "log_softmax", "attention_softmax", "layer_norm", "rms_norm", "cross_entropy", "mse_loss",
                                      "exp", "log", "log1p", "expm1", "pow", "rsqrt", "reciprocal", "sum", "prod", "cumsum", "logsumexp"})
    if (op == wide) return CastTo::f32;
  return op == "cat" || op == "stack" ? CastTo::widest : CastTo::none;
}
inline Tensor autocast(const char* op, const Tensor& x) {
  return context().autocast && x.defined() ? context().autocast->operand(rule_of(op), x) : x;
}
inline Tensors autocast_all(const char* op, std::span<const Tensor> xs) {
  return operands({.name = op, .autocast = rule_of(op)}, Tensors(xs.begin(), xs.end()));
}

}  // namespace tern::detail
