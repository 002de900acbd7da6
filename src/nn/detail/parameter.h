#pragma once
#include "tensor/tensor.h"

namespace tern::nn::detail {

/// An uninitialised f32 tensor that is trained.
inline Tensor parameter(const Shape& shape, Device device) {
  Tensor x = empty(shape, DType::f32, device);
  return x.set_requires_grad();
}

}  // namespace tern::nn::detail
