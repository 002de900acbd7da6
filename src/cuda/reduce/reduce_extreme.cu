#include "cuda/reduce/reduce_ops.cuh"

namespace tern::gpu {

namespace {

template <bool largest>
void reduce_extreme_of(const View& x, const View& y) {
  switch (x.dtype) {
    case DType::i32:
    case DType::i64:
    case DType::u8: return reduce_as<ExtremeOp<std::int64_t, largest>, Any<std::int64_t>>(x, y, 1);
    default: dispatch_reduction(x.dtype, [&]<class C, class T>() { reduce_as<ExtremeOp<C, largest>, T>(x, y, 1); });
  }
}

}  // namespace

void reduce_extreme(bool largest, const View& x, const View& y) {
  if (largest) reduce_extreme_of<true>(x, y);
  else reduce_extreme_of<false>(x, y);
}

}  // namespace tern::gpu
