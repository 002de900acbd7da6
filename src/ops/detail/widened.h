#pragma once
#include "ops/copy.h"

namespace tern::detail {

/// x in f32 if it has 16 bits, else x itself, which may be undefined. In f16 a square overflows from 256 on and a sum from 65504, and in
/// bf16 a sum keeps 8 bits. So compositions compute on widened operands, as the kernels do, and round their result once.
inline bool is_narrow(DType dtype) { return is_floating(dtype) && size_of(dtype) == 2; }
inline Tensor widened(const Tensor& x) { return x.defined() && is_narrow(x.dtype()) ? cast(x, DType::f32) : x; }

}  // namespace tern::detail
