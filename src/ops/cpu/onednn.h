#pragma once
#include "ops/cpu/gemm.h"

namespace tern::onednn {

/// c (rows, columns) = alpha * a b, or added to c, of bfloat16 by oneDNN, which has the processor's own products of them (AVX-512 BF16,
/// AMX) at twice and more of float32's speed. Sums are float32 and rounded once. c's rows are contiguous; one stride of a and of b is 1.
/// False, and nothing is done, in a build without oneDNN, on a processor without such products, and where they are too few to gain.
bool multiply(gemm::Sizes size, double alpha, const gemm::Matrix<const bf16>& a, const gemm::Matrix<const bf16>& b, bf16* c,
              std::int64_t c_stride, bool add);

/// True if oneDNN is to compute a product of float32: in a build with oneDNN, on a processor of Intel with AVX-512, from 2^22
/// multiplications on. There the tiles of gemm.h have 0.8 to 1.0 of its speed; on AMD's processors the two are within 5%
/// (bench/products.md). The answer depends on the product's sizes and strides alone, not on threads: each of the two sums in an order of
/// its own.
bool is_faster(gemm::Sizes size, const gemm::Matrix<const float>& a, const gemm::Matrix<const float>& b);

/// The same product of float32 for operands that is_faster or a test chose, on the calling thread alone. False, and nothing is done, in a
/// build without oneDNN, and where oneDNN refuses.
bool multiply(gemm::Sizes size, float alpha, const gemm::Matrix<const float>& a, const gemm::Matrix<const float>& b, float* c,
              std::int64_t c_stride, bool add);

}  // namespace tern::onednn
