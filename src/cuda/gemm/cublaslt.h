#pragma once
#include <cublasLt.h>

#include <memory>
#include <optional>
#include <vector>

#include "cuda/gemm/cublas.h"
#include "cuda/gemm/problem.h"

namespace tern::gpu {

/// The largest power of two, up to 16, that divides an address, as a power.
inline int log2_alignment(const void* address) { return __builtin_ctzll(reinterpret_cast<std::uintptr_t>(address) | 16); }

/// A problem in cuBLASLt's terms: the operation's descriptor and the operands' layouts. Epilogue addresses are a part of the descriptor, so
/// one thread at a time uses it.
class CublasLtGemm {
 public:
  explicit CublasLtGemm(const GemmProblem& problem);

  /// At most max_count algorithms for operands of this alignment, the best by cuBLASLt's model first.
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms(const GemmOperands& operands, cublasLtHandle_t handle, int max_count) const;
  /// Bytes of workspace that an algorithm takes; nothing where it does not serve here.
  std::optional<std::size_t> workspace_bytes(const cublasLtMatmulAlgo_t& algorithm, cublasLtHandle_t handle) const;
  /// Queues the problem that this was made from. `out` is c or laid out as it.
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
