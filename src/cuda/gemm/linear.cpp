#include "cuda/gemm/gelu_gemm.h"
#include "cuda/gemm/gemm.h"
#include "cuda/reduce/deferred_sums.h"
#include "ops/kernels/matmul.h"

// A linear layer as one GEMM, whose epilogue adds the bias while the result is still in registers: the addition as a kernel of its own
// reads and writes y once more, which for a vocabulary of 10,000 is a sixth of the whole time. Column-major, as in matmul.cu:
// y^T (N, M) = weight (N, K) x^T (K, M).
namespace tern::kernels {

using namespace gpu;

/// Row-major with rows that do not overlap.
static bool is_row_major(const View& x) { return (x.strides[1] == 1 || x.shape[1] == 1) && x.strides[0] >= x.shape[1]; }

/// False where no GEMM takes the operands as they are, which leaves nothing queued.
static bool linear_gemm(const View& x, const View& weight, const View& bias, const View& y, Epilogue epilogue, void* before_gelu) {
  const bool has_bias = bias.data != nullptr;
  if (y.numel() == 0 || x.shape[1] == 0 || !is_row_major(x) || !is_row_major(weight) ||
      (has_bias && bias.strides[0] != 1 && bias.shape[0] != 1))
    return false;
  const GemmProblem problem{.dtype = y.dtype,
                            .precision = context().matmul_precision,
                            .epilogue = epilogue,
                            .a_transposed = true,
                            .m = y.shape[1],
                            .n = y.shape[0],
                            .k = x.shape[1],
                            .lda = weight.strides[0],
                            .ldb = x.strides[0],
                            .ldc = y.shape[1]};
  return gemm(problem, {.a = weight.data, .b = x.data, .c = y.data, .bias = bias.data, .before_gelu = before_gelu}, 1, y.stream);
}

void linear(Cuda device, const View& x, const View& weight, const View& bias, const View& y) {
  if (!linear_gemm(x, weight, bias, y, bias.data ? Epilogue::bias : Epilogue::none, nullptr)) plain_linear(device, x, weight, bias, y);
}

void linear_gelu(Cuda device, const View& x, const View& weight, const View& bias, const View& before, const View& y) {
  // In float32 the epilogue takes longer than a kernel of ours: on an H200, for 5120 x 256, 7.0 us and 4.2.
  const bool is_half = size_of(y.dtype) == 2;
  if (is_half && bias.data && linear_gemm(x, weight, bias, y, Epilogue::bias_gelu, before.data)) return;
  linear(device, x, weight, bias, before);
  unary(device, functors::GeluTanh{}, before, y);
}

void linear_gelu_grad(Cuda device, const View& g, const View& weight, const View& x, const View& dx, const View& sums, Write write,
                      DeferredSums* deferred) {
  const GemmProblem problem{.dtype = dx.dtype,
                            .epilogue = Epilogue::gelu_grad,
                            .m = dx.shape[1],
                            .n = dx.shape[0],
                            .k = g.shape[1],
                            .lda = weight.strides[0],
                            .ldb = g.strides[0],
                            .ldc = dx.shape[1]};
  GemmOperands operands{.a = weight.data, .b = g.data, .c = dx.data, .before_gelu = x.data};
  if (!is_row_major(g) || !is_row_major(weight) || !has_gelu_gemm(problem, operands, dx.stream) || !is_gelu_gemm_faster(problem, dx.stream))
    return plain_linear_gelu_grad(device, g, weight, x, dx, sums, write, deferred);
  PartialSums parts(deferred, dx.stream);
  const unsigned count = gelu_gemm_parts(problem);
  if (sums.data) operands.column_parts = static_cast<float*>(parts->memory(count * static_cast<std::size_t>(problem.m) * sizeof(float)));
  gelu_gemm(problem, operands, dx.data, dx.stream);
  if (sums.data)
    parts->add({operands.column_parts, sums.data, problem.m, sums.strides[0], count, static_cast<unsigned>(problem.m), sums.dtype,
                write == Write::accumulate});
  parts.finish();
}

}  // namespace tern::kernels
