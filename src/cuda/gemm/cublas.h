#pragma once
#include <cublasLt.h>
#include <cublas_v2.h>

#include <memory>
#include <optional>
#include <vector>

#include "cuda/gemm/gemm.h"

namespace tern::gpu {

/// Throws Error, `[cuda] what: the library's message`, unless the call succeeded.
void check(cublasStatus_t code, const char* what);

/// This thread's cuBLAS handle for the stream, with a separate workspace; makes its device current.
cublasHandle_t cublas(Stream stream);

/// Workspace that cuBLAS recommends for sm_90.
inline constexpr std::size_t cublas_workspace_bytes = std::size_t(32) << 20;

cudaDataType_t cuda_type(DType dtype);
/// Compute type of a GEMM; `precision` is that of float32. 16-bit floats are summed in float32.
cublasComputeType_t compute_type(DType dtype, MatmulPrecision precision);

/// alpha or beta of a GEMM: cuBLAS reads a double for float64, a float for other types.
class GemmScale {
 public:
  GemmScale(double value, DType dtype) : double_(value), float_(static_cast<float>(value)), is_double_(dtype == DType::f64) {}
  const void* data() const { return is_double_ ? static_cast<const void*>(&double_) : &float_; }

 private:
  double double_;
  float float_;
  bool is_double_;
};

/// Largest power of two, up to 16, that divides an address, as its exponent.
inline int log2_alignment(const void* address) { return __builtin_ctzll(reinterpret_cast<std::uintptr_t>(address) | 16); }

/// A problem in cuBLASLt's terms: operation descriptor and operand layouts. Epilogue addresses are part of the descriptor, so only one
/// thread at a time may use it.
class CublasLtGemm {
 public:
  explicit CublasLtGemm(const GemmProblem& problem);

  /// At most max_count algorithms for operands of this alignment, ranked by cuBLASLt's model.
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms(const GemmOperands& operands, cublasLtHandle_t handle, int max_count) const;
  /// Bytes of workspace that an algorithm needs; none if it cannot be used here.
  std::optional<std::size_t> workspace_bytes(const cublasLtMatmulAlgo_t& algorithm, cublasLtHandle_t handle) const;
  /// Queues the problem that this was constructed from. `out` is c or has its layout.
  cublasStatus_t launch(const GemmProblem& problem, const GemmOperands& operands, void* out, double alpha,
                        const cublasLtMatmulAlgo_t& algorithm, void* workspace, std::size_t workspace_bytes, cublasLtHandle_t handle,
                        Stream stream) const;

 private:
  template <class T, cublasStatus_t (*destroy)(T)>
  struct Destroyer {
    using pointer = T;
    void operator()(T object) const { destroy(object); }
  };
  using Layout = std::unique_ptr<cublasLtMatrixLayout_t, Destroyer<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;

  static Layout make_layout(const GemmProblem& problem, std::int64_t rows, std::int64_t columns, std::int64_t leading_dimension,
                            std::int64_t batch_stride);
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const;

  std::unique_ptr<cublasLtMatmulDesc_t, Destroyer<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>> descriptor_;
  Layout a_, b_, c_;
};

}  // namespace tern::gpu
