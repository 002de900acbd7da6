#pragma once
#include "ops/cpu/gemm.h"

namespace tern::onednn {

/// c (rows, columns) = alpha * a b, or added to c, of bfloat16 by oneDNN, which has the processor's own products of them (AVX-512 BF16,
/// AMX) at twice and more of float32's speed. Sums are float32 and rounded once. c's rows are contiguous; one stride of a and of b is 1.
/// False, and nothing is done, in a build without oneDNN, on a processor without such products, and where they are too few to gain.
bool multiply(gemm::Sizes size, double alpha, const gemm::Matrix<const bf16>& a, const gemm::Matrix<const bf16>& b, bf16* c,
              std::int64_t c_stride, bool add);

}  // namespace tern::onednn
