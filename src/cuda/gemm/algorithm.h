#pragma once
#include <cublasLt.h>

#include <variant>
#include <vector>

#include "cuda/gemm/gemm.h"

// Algorithms for a GEMM: cuBLASLt's, and our own kernels split_k_bf16.cu, gelu_gemm.cu and tf32_gemm.cu.
namespace tern::gpu {

// split_k_bf16.cu

/// Note [Split-K within a cluster]
/// A weight's gradient sums over all tokens of a batch, thousands, for a result of some hundred rows and columns: too few tiles for a
/// device, unless the depth of each tile is split among many blocks (split-K). cuBLASLt writes the splits' partial sums to memory and adds
/// them in a second kernel. Here the blocks of a tile form a cluster and keep their partial sums in shared memory; each block adds up some
/// of the tile's rows, reading those of the others by DSMEM.

/// Selects this kernel for a problem; it has no parameters.
struct SplitKAlgorithm {};

/// True if split_k_gemm takes the problem: 16-bit floats, both operands with the depth outermost, as in a weight's gradient. False on
/// devices without clusters and wgmma (compute capability 9.0), where cuBLASLt computes these problems.
bool has_split_k_gemm(const GemmProblem& problem, const GemmOperands& operands, Stream stream);

/// Queues alpha a b, added to c if the problem accumulates, into `out`, which is c or has its layout. Sums are in float32 and rounded once;
/// deterministic.
void split_k_gemm(const GemmProblem& problem, const GemmOperands& operands, void* out, double alpha, Stream stream);

// gelu_gemm.cu

/// Note [GELU in the epilogue]
/// After the product of a feed-forward block, GELU or its derivative reads and writes the result once more: in a separate kernel, which
/// takes about as long as the product, or in cuBLASLt's epilogue, during which its tensor cores are idle. Here two consumer warpgroups take
/// tiles alternately, so that the epilogue of one runs while the other multiplies.

/// Selects this kernel for a problem; it has no parameters.
struct GeluGemmAlgorithm {};

/// True if gelu_gemm takes the problem: Epilogue::bias_gelu or gelu_grad, 16-bit floats at addresses that are multiples of 16 bytes, on
/// Hopper.
bool has_gelu_gemm(const GemmProblem& problem, const GemmOperands& operands, Stream stream);

/// Queues the problem, with c in `out`. For gelu_grad, column_parts gets the column sums of c in gelu_gemm_parts(problem) parts.
void gelu_gemm(const GemmProblem& problem, const GemmOperands& operands, void* out, Stream stream);
unsigned gelu_gemm_parts(const GemmProblem& problem);

/// True if it is faster than a product followed by GELU's derivative. It needs as many tiles as the device has blocks, or products that
/// choose their own tile sizes win; and only up to a depth of 1024 the epilogue saves more than cuBLASLt's faster main loop.
bool is_gelu_gemm_faster(const GemmProblem& problem, Stream stream);

// tf32_gemm.cu

/// Note [3xTF32]
/// A float x is big + small + e, where big is x in TF32's 11 bits, small is x - big in as many, and e is below 2^-21 x. Then a b = big big
/// + big small + small big to within float32's own error, and tensor cores compute the three products in less than half of the time that
/// float32 takes without them. Two things decide whether the sum is as accurate as SGEMM's. Tensor cores truncate towards zero when they
/// add, where float32 rounds, so a sum of thousands drifts (to 1e-4 at a depth of 10,000, where SGEMM's error is 1e-6): only a depth of 32
/// is summed there, small products first, and those sums are added in float32. And the parts are computed where they are needed, in
/// registers and shared memory: written to memory, those of a gradient of logits alone would take as long as the GEMM. An infinite operand
/// gives NaN, because its small part is NaN.

/// Tiles of 128 x `tile_n` elements of c, or of c^T, each with its depth divided into splits of (nearly) equal length.
struct TileConfig {
  bool swap_ab = false;  ///< tiles of c^T = b^T a^T, with the operands swapped
  int tile_n = 128;
  int cluster = 1;  ///< blocks with one split each, which reduce their sums through DSMEM
  int slices = 1;   ///< clusters for each tile (split-K slices), whose sums the last one adds in global memory
  bool operator==(const TileConfig&) const = default;

  int splits() const { return cluster * slices; }
};

/// True if the device has tf32_gemm: compute capability 9, in a build for sm_90a.
bool has_tf32_gemm(Device device);

/// All configurations of tf32_gemm for a problem, the fastest first by a model of the device. None if the device has none (then cuBLASLt
/// computes the problem) or the operands allow none.
std::vector<TileConfig> tf32_configs(const GemmProblem& problem, const GemmOperands& operands, Stream stream);

/// Queues alpha a b, added to c if the problem accumulates, into `out`, which is c or has its layout. Operands are rounded to TF32 (to
/// nearest, ties away from zero) or, for tf32x3, split as in Note [3xTF32]. Deterministic for a given configuration.
void tf32_gemm(const GemmProblem& problem, const GemmOperands& operands, void* out, double alpha, const TileConfig& config, Stream stream);

// All algorithms.

/// Algorithm of a GEMM: one of cuBLASLt's, or a kernel of ours.
using GemmAlgorithm = std::variant<cublasLtMatmulAlgo_t, TileConfig, SplitKAlgorithm, GeluGemmAlgorithm>;

}  // namespace tern::gpu
