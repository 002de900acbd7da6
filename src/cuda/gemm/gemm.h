#pragma once
#include "tensor/context.h"
#include "tensor/view.h"

namespace tern::gpu {

/// Epilogue of a GEMM: work on the result while it is still in registers.
enum class Epilogue : std::uint8_t {
  none,
  bias,       ///< adds the bias (m) to each column of c
  bias_gelu,  ///< bias, then gelu_tanh; the value before GELU is written as well
};

/// Batch of GEMMs, column-major as in BLAS: c (m, n) = a (m, k) b (k, n). Holds everything that the choice of an algorithm depends on,
/// except the operands' addresses.
struct GemmProblem {
  DType dtype = DType::f32;
  MatmulPrecision precision = MatmulPrecision::fp32;  ///< for float32
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
  void* before_gelu = nullptr;  ///< with c's layout; written by bias_gelu
};

/// Queues alpha a b, added to c if the problem accumulates, with the algorithm of Note [Choice of algorithms]. Returns false, with nothing
/// queued, if there is none.
bool gemm(const GemmProblem& problem, const GemmOperands& operands, double alpha, Stream stream);

}  // namespace tern::gpu
