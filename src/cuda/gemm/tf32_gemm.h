#pragma once
#include <vector>

#include "cuda/gemm/gemm.h"

namespace tern::gpu {

/// Note [Three TF32 products]
/// A float x is large + rest + e, where large is x in TF32's 11 bits, rest is x - large in as many, and e is below 2^-21 x. Then
/// a b = large large + large rest + rest large to within float32's own error, and tensor cores do the three in less than half of the time
/// that the one takes without them. Two things decide whether the sum is as exact as SGEMM's. Tensor cores cut off what they add where
/// float32 rounds, and always towards zero, so that a sum of thousands drifts (measured at a depth of 10,000, with the parts laid side by
/// side for one product of cuBLAS: 1e-4 against SGEMM's 1e-6): only a depth of 32 is summed there, the small products first, and those
/// sums are added in float32. And the parts are made where they are needed, in registers and shared memory: written to memory, those of a
/// gradient of logits alone would take as long as the product. An infinite operand gives NaN, as its rest is none.

/// How a product is cut up: tiles of 128 x `width` elements of c, or of c^T, and of each the depth in splits of (nearly) equal length.
struct Tf32Cut {
  bool turned = false;
  int width = 128;
  int cluster = 1;  ///< blocks with a split each, that add up in each other's shared memory
  int groups = 1;   ///< such clusters for a tile, whose sums the last one adds in global memory
  bool operator==(const Tf32Cut&) const = default;
};

/// All that multiply_tf32 can do, the fastest first by a model of the device. None where the device or the operands do not allow any.
std::vector<Tf32Cut> tf32_cuts(const Product& product, const ProductOperands& at, Stream stream);

/// Queues alpha times the product, plus c where it accumulates, to `to`, which is c or lies as it. With operands rounded to TF32 (to
/// nearest, ties away from zero) or, for tf32x3, as Note [Three TF32 products] says. The same bits each time for the same cut.
void multiply_tf32(const Product& product, const ProductOperands& at, void* to, double alpha, const Tf32Cut& cut, Stream stream);

}  // namespace tern::gpu
