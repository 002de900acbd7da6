#pragma once
#include <vector>

#include "cuda/gemm/gemm.h"

namespace tern::gpu {

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

/// Queues alpha a b, added to c if the problem accumulates, into `out`, which is c or has its layout. Deterministic for a given
/// configuration.
void tf32_gemm(const GemmProblem& problem, const GemmOperands& operands, void* out, double alpha, const TileConfig& config, Stream stream);

}  // namespace tern::gpu
