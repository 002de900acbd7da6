#include "cuda/gemm/cublas.h"

#include <algorithm>

#include "cuda/runtime/allocator.h"
#include "cuda/runtime/handle_pool.h"
#include "cuda/runtime/launch.h"

namespace tern::gpu {

namespace {

cublasHandle_t create_handle(Stream stream) {
  void* const workspace = allocate_for_good(cublas_workspace_bytes, "workspace of cuBLAS");
  cublasHandle_t created = nullptr;
  check(cublasCreate(&created), "cublasCreate");
  check(cublasSetStream(created, handle(stream)), "cublasSetStream");
  check(cublasSetWorkspace(created, workspace, cublas_workspace_bytes), "cublasSetWorkspace");
  // Otherwise the partial sums of a split-K GEMM of 16-bit floats would be added in 16 bits.
  const auto math = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  check(cublasSetMathMode(created, math), "cublasSetMathMode");
  return created;
}

}  // namespace

void check(cublasStatus_t code, const char* what) {
  if (code != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    fail("cuda", std::string(what) + ": " + cublasGetStatusString(code));
}

cublasHandle_t cublas(Stream stream) { return HandlePool<cublasHandle_t>::handle_for(stream, create_handle); }

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::f64: return CUDA_R_64F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: fail("matmul", std::string("expected a floating dtype but got ") + name(dtype));
  }
}

cublasComputeType_t compute_type(DType dtype, MatmulPrecision precision) {
  if (dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  return dtype == DType::f32 && precision == MatmulPrecision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

CublasLtGemm::Layout CublasLtGemm::make_layout(const GemmProblem& p, std::int64_t rows, std::int64_t columns,
                                               std::int64_t leading_dimension, std::int64_t batch_stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, cuda_type(p.dtype), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                                   leading_dimension),
        "cublasLtMatrixLayoutCreate");
  Layout owner(layout);
  const auto batch_count = static_cast<std::int32_t>(p.batch_count);
  check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch_count, sizeof(batch_count)),
        "cublasLtMatrixLayoutSetAttribute");
  check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof(batch_stride)),
        "cublasLtMatrixLayoutSetAttribute");
  return owner;
}

template <class T>
void CublasLtGemm::set(cublasLtMatmulDescAttributes_t attribute, T value) const {
  check(cublasLtMatmulDescSetAttribute(descriptor_.get(), attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
}

CublasLtGemm::CublasLtGemm(const GemmProblem& p) {
  cublasLtMatmulDesc_t descriptor = nullptr;
  check(cublasLtMatmulDescCreate(&descriptor, compute_type(p.dtype, p.precision), p.dtype == DType::f64 ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  descriptor_.reset(descriptor);
  set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t(p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t(p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  if (p.epilogue != Epilogue::none) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE,
        std::uint32_t(p.epilogue == Epilogue::bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t(cuda_type(p.dtype)));
  }
  if (p.epilogue == Epilogue::bias_gelu) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldc);
  a_ = make_layout(p, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k, p.lda, p.a_batch_stride);
  b_ = make_layout(p, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n, p.ldb, p.b_batch_stride);
  c_ = make_layout(p, p.m, p.n, p.ldc, p.c_batch_stride);
}

std::vector<cublasLtMatmulHeuristicResult_t> CublasLtGemm::algorithms(const GemmOperands& operands, cublasLtHandle_t handle,
                                                                      int max_count) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<cublasLtMatmulPreference_t, Destroyer<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>> owner(
      preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(cublas_workspace_bytes));
  // Adds the partial sums of split-K in the compute type: in 16 bits they would lose float32's precision.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto bytes = [](const void* address) { return std::uint32_t(1) << log2_alignment(address); };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(operands.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(operands.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(operands.c));
  // An epilogue reads the bias in vectors as wide as those in which it writes D, but no attribute gives its alignment.
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::min({bytes(operands.c), bytes(operands.bias), bytes(operands.before_gelu)}));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(max_count));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, descriptor_.get(), a_.get(), b_.get(), c_.get(), c_.get(),
                                                               preference, max_count, found.data(), &count);
  found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
  std::erase_if(found, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

std::optional<std::size_t> CublasLtGemm::workspace_bytes(const cublasLtMatmulAlgo_t& algorithm, cublasLtHandle_t handle) const {
  cublasLtMatmulHeuristicResult_t known{};
  if (cublasLtMatmulAlgoCheck(handle, descriptor_.get(), a_.get(), b_.get(), c_.get(), c_.get(), &algorithm, &known) !=
          CUBLAS_STATUS_SUCCESS ||
      known.workspaceSize > cublas_workspace_bytes)
    return {};
  return known.workspaceSize;
}

cublasStatus_t CublasLtGemm::launch(const GemmProblem& p, const GemmOperands& operands, void* out, double alpha,
                                    const cublasLtMatmulAlgo_t& algorithm, void* workspace, std::size_t workspace_bytes,
                                    cublasLtHandle_t handle, Stream stream) const {
  if (p.epilogue != Epilogue::none) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  if (p.epilogue == Epilogue::bias_gelu) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.before_gelu);
  const GemmScale scale(alpha, p.dtype), beta(p.write == Write::accumulate ? 1 : 0, p.dtype);
  return cublasLtMatmul(handle, descriptor_.get(), scale.data(), operands.a, a_.get(), operands.b, b_.get(), beta.data(), operands.c,
                        c_.get(), out, c_.get(), &algorithm, workspace, workspace_bytes, gpu::handle(stream));
}

}  // namespace tern::gpu
