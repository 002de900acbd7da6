#pragma once
#include "ops/kernels/convolution.h"
#include "tensor/tensor.h"

namespace tern::detail {

/// A convolution on a GPU, of operands as conv2d has checked them: by the kernels whose windows are never written down where they take it,
/// forward and backward each for itself, and else by columns, which are their plain reference.
Tensor implicit_convolution(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias, const kernels::Convolution& of);

}  // namespace tern::detail
