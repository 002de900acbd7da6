#pragma once
#include "ops/cpu/gemm.h"

namespace tern::onednn {

/// c (rows, columns) = alpha * a b, or added to c, for bfloat16 by oneDNN, which uses the processor's bfloat16 products (AVX-512 BF16,
/// AMX), at least twice as fast as float32. Sums are float32 and rounded once. c's rows are contiguous; one stride of a and of b is 1.
/// Returns false, and does nothing, in a build without oneDNN, on a processor without such products, and for products too small to gain.
bool multiply(gemm::Sizes size, double alpha, const gemm::Matrix<const bf16>& a, const gemm::Matrix<const bf16>& b, bf16* c,
              std::int64_t c_stride, bool add);

/// True if oneDNN should compute a float32 product: in a build with oneDNN, on an Intel processor with AVX-512, from 2^22 multiplications
/// on. There it is faster than the tiles of gemm.h; on AMD's processors it is not (bench/products.md). The answer depends on the product's
/// sizes and strides alone, not on threads, because the two sum in different orders.
bool is_faster(gemm::Sizes size, const gemm::Matrix<const float>& a, const gemm::Matrix<const float>& b);

/// The same for float32 operands that is_faster or a test chose, on the calling thread alone, which handles no signal meanwhile. Returns
/// false, and does nothing, in a build without oneDNN or with one on other threads than OpenMP's, and if oneDNN fails.
bool multiply(gemm::Sizes size, float alpha, const gemm::Matrix<const float>& a, const gemm::Matrix<const float>& b, float* c,
              std::int64_t c_stride, bool add);

}  // namespace tern::onednn
