#pragma once
#include <vector>

#include "cuda/gemm/problem.h"

namespace tern::gpu {

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

}  // namespace tern::gpu
