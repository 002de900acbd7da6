#include "cuda/reduce/reduce_ops.cuh"

namespace tern::gpu {

void reduce_logsumexp(const View& x, const View& y) {
  dispatch_reduction(x.dtype, [&]<class C, class T>() { reduce_as<LogSumExpOp<C>, T>(x, y, 1); });
}

}  // namespace tern::gpu
