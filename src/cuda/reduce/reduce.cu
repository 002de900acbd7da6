#include "cuda/reduce/reduce.cuh"

// reduce(): selects the reduction's kernels, and instantiates those that take integers.
namespace tern::gpu {

void reduce_logsumexp(const View& x, const View& y);              // reduce_logsumexp.cu
void reduce_extreme(bool largest, const View& x, const View& y);  // reduce_extreme.cu

}  // namespace tern::gpu

namespace tern::kernels {

using namespace gpu;

namespace {

template <bool any>
void reduce_any_all(const View& x, const View& y) {
  if (is_floating(x.dtype)) reduce_as<AnyAllOp<any>, AnyFloat>(x, y, 1);
  else reduce_as<AnyAllOp<any>, Any<std::int64_t>>(x, y, 1);
}

}  // namespace

void Reduce::run(Cuda) const {
  if (y.numel() == 0) return;
  switch (f) {
    case ReduceFunction::sum: return reduce_numbers<SumOp>(x, y, scale);
    case ReduceFunction::prod: return reduce_numbers<ProductOp>(x, y, 1);
    case ReduceFunction::max: return reduce_extreme(true, x, y);
    case ReduceFunction::min: return reduce_extreme(false, x, y);
    case ReduceFunction::logsumexp: return reduce_logsumexp(x, y);
    case ReduceFunction::any: return reduce_any_all<true>(x, y);
    default: return reduce_any_all<false>(x, y);
  }
}

}  // namespace tern::kernels
