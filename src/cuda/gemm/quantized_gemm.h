#pragma once
#include "ops/kernels/quantized.h"

namespace tern::gpu {

/// y = x @ w transposed + bias of 16-bit x and y on tensor cores; see kernels::quantized_linear.
void quantized_gemm(const View& x, const kernels::QuantizedRows& w, const View& bias, const View& y);

}  // namespace tern::gpu
