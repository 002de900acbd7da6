#pragma once
#include "tensor/context.h"
#include "tensor/view.h"

namespace tern::gpu {

/// Work on the result of a GEMM while it is still in registers.
enum class Epilogue : std::uint8_t {
  none,
  bias,       ///< each column of c gets the bias (m)
  bias_gelu,  ///< then gelu_tanh, and the value before it is written as well
  gelu_grad,  ///< times gelu_tanh' of what before_gelu has, and the columns' sums; of gelu_gemm.cu alone
};

/// A batch of GEMMs, column-major as BLAS has it: c (m, n) = a (m, k) b (k, n). Holds all that the choice of an algorithm depends on, but
/// the operands' addresses.
struct GemmProblem {
  DType dtype = DType::f32;
  MatmulPrecision precision = MatmulPrecision::fp32;  ///< of float32
  Epilogue epilogue = Epilogue::none;
  Write write = Write::overwrite;
  bool a_transposed = false, b_transposed = false;  ///< (k, m) and (n, k) in memory
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  ///< leading dimensions: elements from column to column in memory
  std::int64_t batch_count = 1, a_batch_stride = 0, b_batch_stride = 0, c_batch_stride = 0;
};

struct GemmOperands {
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  void* before_gelu = nullptr;    ///< laid out as c; of gelu_grad, read
  float* column_parts = nullptr;  ///< (parts, m): sums of c's columns before it is rounded, or null
};

/// Queues alpha a b, added to c where the problem accumulates, by the algorithm that Note [Choice of algorithms] finds. False where there
/// is none, which leaves nothing queued.
bool gemm(const GemmProblem& problem, const GemmOperands& operands, double alpha, Stream stream);

}  // namespace tern::gpu
