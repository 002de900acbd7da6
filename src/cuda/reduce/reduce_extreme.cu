#include "cuda/reduce/reduce.cuh"

// Maximum and minimum, compiled separately from the other reductions.
namespace tern::gpu {

namespace {
template <class C> using MaximumOp = ExtremeOp<C, true>;
template <class C> using MinimumOp = ExtremeOp<C, false>;
}  // namespace

void reduce_extreme(bool largest, const View& x, const View& y) {
  if (largest) reduce_numbers<MaximumOp>(x, y, 1);
  else reduce_numbers<MinimumOp>(x, y, 1);
}

}  // namespace tern::gpu
