#pragma once
#include "tensor/tensor.h"

namespace tern::nn::detail {

/// Uninitialized f32 tensor that requires a gradient.
inline Tensor parameter(const Shape& shape, Device device) {
  Tensor x = empty(shape, DType::f32, device);
  return x.set_requires_grad();
}

/// Weight of a linear layer or a convolution, (out, in, ...), and its bias, (out) or undefined: both uniform in +-1 / sqrt(fan_in), as in
/// PyTorch, from this thread's generator.
void make_weight_and_bias(Tensor& weight, Tensor& bias, const Shape& shape, bool with_bias, Device device);

}  // namespace tern::nn::detail
