#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/reduce/reduce.cuh"
#include "cuda/runtime/launch.h"
#include "ops/kernels/reduce.h"
#include "tensor/layout.h"

// argmax and argmin: reductions of pairs of value and index. As in reductions over strided elements, a few lanes, a warp or a block share
// the elements of an output.
namespace tern::kernels {

using namespace gpu;

namespace {

template <class C>
struct Candidate {
  C value;
  std::int64_t index;  ///< negative: none yet
};

template <class C>
__device__ __forceinline__ Candidate<C> shuffle_xor(Candidate<C> candidate, unsigned step) {
  return {gpu::shuffle_xor(candidate.value, step), gpu::shuffle_xor(candidate.index, step)};
}

template <class C, bool largest>
struct ArgOp {
  using Accumulator = Candidate<C>;
  static __device__ Accumulator identity() { return {C(0), -1}; }
  static __device__ Accumulator combine(Accumulator a, Accumulator b) {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    if (a_is_nan != b_is_nan) return a_is_nan ? a : b;
    if (a_is_nan || a.value == b.value) return a.index < b.index ? a : b;
    return (largest ? a.value > b.value : a.value < b.value) ? a : b;
  }
};

/// Elements among which an output is chosen.
struct Candidates {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t length = 0, stride = 0;
};

template <class Op, class T>
__device__ typename Op::Accumulator search(const Candidates& candidates, std::int64_t offset, unsigned lane, unsigned lanes) {
  auto best = Op::identity();
#pragma unroll 4
  for (std::int64_t i = lane; i < candidates.length; i += lanes)
    best = Op::combine(best, {read<T>(candidates.data, candidates.dtype, offset + i * candidates.stride), i});
  return best;
}

template <class Op, class T>
__global__ void __launch_bounds__(block_size) arg_reduce_by_warps(Candidates candidates, __grid_constant__ const Indexer<2> kept,
                                                                  std::uint32_t outputs, unsigned lanes, std::int64_t* y) {
  const std::uint32_t output = blockIdx.x * (block_size / lanes) + threadIdx.x / lanes;
  const unsigned lane = threadIdx.x % lanes;
  std::int64_t offsets[2] = {};
  auto best = Op::identity();
  if (output < outputs) {
    kept.locate(output, offsets);
    best = search<Op, T>(candidates, offsets[0], lane, lanes);
  }
  best = lanes_all_reduce<Op>(best, lanes);  // whole warps arrive here
  if (output < outputs && lane == 0) y[offsets[1]] = best.index;
}

template <class Op, class T>
__global__ void __launch_bounds__(1024)
    arg_reduce_by_blocks(Candidates candidates, __grid_constant__ const Indexer<2> kept, std::int64_t* y) {
  std::int64_t offsets[2];
  kept.locate(blockIdx.x, offsets);
  const auto best = block_reduce<Op>(search<Op, T>(candidates, offsets[0], threadIdx.x, blockDim.x));
  if (threadIdx.x == 0) y[offsets[1]] = best.index;
}

template <class Op, class T>
void arg_reduce_as(const View& x, const View& y, int dim) {
  Layout<2> whole;
  for (int d = x.dims() - 1; d >= 0; --d)
    if (d != dim) whole.push(x.shape[d], {x.strides[d], y.strides[d]});
  whole.simplify();
  for_pieces(whole, [&](const Layout<2>& kept, const std::int64_t* offsets) {
    const std::int64_t outputs = kept.numel(), length = x.shape[dim], stride = x.strides[dim];
    const Candidates candidates{x.as<char>() + offsets[0] * static_cast<std::int64_t>(size_of(x.dtype)), x.dtype, length, stride};
    std::int64_t* to = y.as<std::int64_t>() + offsets[1];
    unsigned lanes = are_side_by_side(outputs, kept.strides[0][0], stride) ? 1 : 32;
    while (lanes > 1 && lanes / 2 >= length) lanes /= 2;
    while (lanes < 32 && lanes < length && outputs * lanes < enough_threads) lanes *= 2;
    if (length <= 512 || outputs * lanes >= 16 * enough_threads)
      launch(arg_reduce_by_warps<Op, T>, blocks_for(outputs, block_size / lanes), block_size, 0, x.stream, candidates, kept,
             static_cast<std::uint32_t>(outputs), lanes, to);
    else
      launch(arg_reduce_by_blocks<Op, T>, blocks_for(outputs, 1), outputs < 512 && length > 8192 ? 1024 : block_size, 0, x.stream,
             candidates, kept, to);
  });
}

template <class C, class T>
void arg_reduce_as(bool largest, const View& x, const View& y, int dim) {
  if (largest) arg_reduce_as<ArgOp<C, true>, T>(x, y, dim);
  else arg_reduce_as<ArgOp<C, false>, T>(x, y, dim);
}

}  // namespace

void ArgReduce::run(Cuda) const {
  if (y.numel() == 0) return;
  switch (x.dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16: return arg_reduce_as<float, Any<float>>(largest, x, y, dim);
    case DType::f64: return arg_reduce_as<double, Any<double>>(largest, x, y, dim);
    default: return arg_reduce_as<std::int64_t, Any<std::int64_t>>(largest, x, y, dim);
  }
}

}  // namespace tern::kernels
