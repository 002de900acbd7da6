#include "cuda/reduce/reduce.cuh"

// log-sum-exp, compiled separately from the other reductions.
namespace tern::gpu {

void reduce_logsumexp(const View& x, const View& y) { reduce_floats<LogSumExpOp>(x, y, 1); }

}  // namespace tern::gpu
