#pragma once
#include "cuda/gemm/problem.h"

namespace tern::gpu {

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

}  // namespace tern::gpu
