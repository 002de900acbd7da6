#pragma once
#include "ops/kernels/convolution.h"
#include "tensor/tensor.h"

namespace tern::detail {

/// Convolution on a GPU, of operands that conv2d has checked: by implicit GEMM where the kernels take it, chosen for forward and backward
/// separately, and otherwise by columns, which are its reference.
Tensor implicit_convolution(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias, const kernels::Convolution& of);

}  // namespace tern::detail
