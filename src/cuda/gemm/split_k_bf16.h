#pragma once
#include "cuda/gemm/gemm.h"

namespace tern::gpu {

/// Note [Deep products]
/// A weight's gradient sums over all tokens of a batch, thousands, for a result of some hundred rows and columns: too few tiles for a
/// device, unless each tile's depth is split among many blocks. cuBLASLt has the splits' sums written to memory and added by a second
/// kernel. Here the blocks of a tile form a cluster, keep their sums in shared memory, and add them up in each other's, each some rows.

/// The choice of this kernel for a product.
struct DeepAlgorithm {};

/// Whether multiply_deep can do it: 16-bit floats, both operands with the depth outermost, as they lie in a weight's gradient.
bool has_deep_product(const Product& product, const ProductOperands& at, Stream stream);

/// Queues alpha times the product, plus c where it accumulates, to `to`, which is c or lies as it. Sums are float32's, rounded once; the
/// same bits each time.
void multiply_deep(const Product& product, const ProductOperands& at, void* to, double alpha, Stream stream);

}  // namespace tern::gpu
