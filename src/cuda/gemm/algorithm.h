#pragma once
#include <cublasLt.h>

#include <variant>
#include <vector>

#include "cuda/gemm/gemm.h"

// The ways to compute a GEMM: cuBLASLt's algorithms, and three kernels of ours, split_k_bf16.cu, gelu_gemm.cu and tf32_gemm.cu.
namespace tern::gpu {

// split_k_bf16.cu

/// Note [Split-K within a cluster]
/// A weight's gradient sums over all tokens of a batch, thousands, for a result of some hundred rows and columns: too few tiles for a
/// device, unless each tile's depth is split among many blocks (split-K). cuBLASLt has the splits' partial sums written to memory and added
/// by a second kernel. Here the blocks of a tile form a cluster, keep their partial sums in shared memory, and each adds up some of the
/// tile's rows, which it reads from the others by DSMEM.

/// The choice of this kernel for a problem. It has nothing to be configured.
struct SplitKAlgorithm {};

/// Whether split_k_gemm takes the problem: 16-bit floats, both operands with the depth outermost, as they lie in a weight's gradient. False
/// on devices without clusters and wgmma (compute capability 9.0), where cuBLASLt has these problems.
bool has_split_k_gemm(const GemmProblem& problem, const GemmOperands& operands, Stream stream);

/// Queues alpha a b, added to c where the problem accumulates, into `out`, which is c or laid out as it. Sums are float32's, rounded once;
/// the same bits each time.
void split_k_gemm(const GemmProblem& problem, const GemmOperands& operands, void* out, double alpha, Stream stream);

// gelu_gemm.cu

/// Note [GELU in the epilogue]
/// Beside the product of a feed-forward part, GELU or its derivative is memory that is read and written once more: on an H200, for 8192 x
/// 3072 in bf16, 48 us of a kernel of its own after 50 us of product, and 30 us of cuBLASLt's epilogue, during which its tensor cores wait.
/// Here two consumers take tiles in turn, so that one's epilogue runs while the other one multiplies.

/// The choice of this kernel for a problem. It has nothing to be configured.
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

// tf32_gemm.cu

/// Note [3xTF32]
/// A float x is big + small + e, where big is x in TF32's 11 bits, small is x - big in as many, and e is below 2^-21 x. Then
/// a b = big big + big small + small big to within float32's own error, and tensor cores do the three products in less than half of the
/// time that the one takes without them. Two things decide whether the sum is as exact as SGEMM's. Tensor cores truncate what they add
/// where float32 rounds, and always towards zero, so that a sum of thousands drifts (measured at a depth of 10,000, with the parts laid
/// side by side for one GEMM of cuBLAS: 1e-4 against SGEMM's 1e-6): only a depth of 32 is summed there, the small products first, and those
/// sums are added in float32. And the parts are made where they are needed, in registers and shared memory: written to memory, those of a
/// gradient of logits alone would take as long as the GEMM. An infinite operand gives NaN, as its small part is none.

/// Tiles of 128 x `tile_n` elements of c, or of c^T, each with its depth in splits of (nearly) equal length.
struct TileConfig {
  bool swap_ab = false;  ///< tiles of c^T = b^T a^T: the operands change sides
  int tile_n = 128;
  int cluster = 1;  ///< blocks with a split each, that reduce their sums through DSMEM
  int slices = 1;   ///< such clusters for a tile (split-K slices), whose sums the last one adds in global memory
  bool operator==(const TileConfig&) const = default;

  int splits() const { return cluster * slices; }
};

/// Whether the device has tf32_gemm: compute capability 9, in a build for sm_90a.
bool has_tf32_gemm(Device device);

/// All configurations of tf32_gemm for a problem, the fastest first by a model of the device. None where the device has none (the
/// problem is cuBLASLt's then) or the operands do not allow any.
std::vector<TileConfig> tf32_configs(const GemmProblem& problem, const GemmOperands& operands, Stream stream);

/// Queues alpha a b, added to c where the problem accumulates, into `out`, which is c or laid out as it. With operands rounded to TF32 (to
/// nearest, ties away from zero) or, for tf32x3, as Note [3xTF32] says. The same bits each time for the same configuration.
void tf32_gemm(const GemmProblem& problem, const GemmOperands& operands, void* out, double alpha, const TileConfig& config, Stream stream);

// All of them.

/// One way to compute a GEMM: an algorithm of cuBLASLt, or a kernel of ours.
using GemmAlgorithm = std::variant<cublasLtMatmulAlgo_t, TileConfig, SplitKAlgorithm, GeluGemmAlgorithm>;

}  // namespace tern::gpu
