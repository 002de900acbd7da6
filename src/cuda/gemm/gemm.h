#pragma once
#include "cuda/gemm/problem.h"

namespace tern::gpu {

/// Queues alpha a b, added to c where the problem accumulates, by the algorithm that Note [Choice of algorithms] finds. False where there
/// is none, which leaves nothing queued.
bool gemm(const GemmProblem& problem, const GemmOperands& operands, double alpha, Stream stream);

}  // namespace tern::gpu
