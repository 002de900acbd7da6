#pragma once
#include "cuda/gemm/problem.h"

namespace tern::gpu {

/// Note [GELU in the epilogue]
/// Beside the product of a feed-forward part, GELU or its derivative is memory that is read and written once more: on an H200, for 8192 x
/// 3072 in bf16, 48 us of a kernel of its own after 50 us of product, and 30 us of cuBLASLt's epilogue, during which its tensor cores wait.
/// Here two consumers take tiles in turn, so that one's epilogue runs while the other one multiplies.

/// The choice of it among a GEMM's algorithms; it has no parameters.
struct GeluGemmAlgorithm {};

/// Whether gelu_gemm takes it: Epilogue::bias_gelu or gelu_grad, 16-bit floats at addresses of 16 bytes, on Hopper.
bool has_gelu_gemm(const GemmProblem& problem, const GemmOperands& operands, Stream stream);

/// Queues the problem, with c in `out`. Of gelu_grad, column_parts has the sums of gelu_gemm_parts(problem) groups of columns of c.
void gelu_gemm(const GemmProblem& problem, const GemmOperands& operands, void* out, Stream stream);
unsigned gelu_gemm_parts(const GemmProblem& problem);

/// Whether it is faster than a product and GELU's derivative after it. It needs as many tiles as the device has blocks, or products that
/// choose their tiles win; and at a depth of 1024 at most what the epilogue saves is more than what cuBLASLt's own main loop gains: on an
/// H200 a feed-forward part's backward pass takes 0.97 of the time at a depth of 768, 1.01 at 1600, 1.04 at 4096 (bench/ops.md).
bool is_gelu_gemm_faster(const GemmProblem& problem, Stream stream);

}  // namespace tern::gpu
