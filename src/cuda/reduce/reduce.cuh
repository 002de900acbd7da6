#pragma once
#include <cstdint>

#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/device/online_softmax.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/reduce.h"
#include "tensor/layout.h"
#include "tensor/sizes.h"

// Reductions over any dimensions, each element read once. Note [Reduction order]: every sum is a tree whose shape depends only on the
// operands' shapes and strides, never on how blocks are scheduled, so results are bitwise reproducible. No atomics.
//   - rows: reduced elements are contiguous. A few lanes, a warp or a block per output, in 16-byte reads.
//   - columns: kept dimensions are contiguous, as in a bias gradient. A block has a tile of columns.
//   - strided: anything else, and dtypes that need not be fast.
// If there are few outputs, the elements of each are divided into chunks, whose partial results a second kernel combines. (CUB has
// segmented reductions too, but only of contiguous segments, one of the three cases, and with its own order of additions.)
namespace tern::gpu {

// Distribution of the lines of a reduction, an arg reduction or a cumulative sum over threads.

/// Number of threads that fills a GPU well enough: with fewer lines, a reduction gives a line several lanes. It is an eighth of what an
/// H200 holds, 132 multiprocessors of 2048 threads. A fixed number, not the device's own, because the order of a sum and so its last bits
/// depend on it: they are the same on every GPU. A smaller GPU is full earlier, and only gets a few threads more than it needs.
inline constexpr std::int64_t enough_threads = 32768;

/// True if adjacent lines are side by side in memory, so that a warp with one thread per line reads contiguous memory: the elements of
/// adjacent lines are closer together than those of one line. `step` is the stride from line to line.
inline bool are_side_by_side(std::int64_t lines, std::int64_t step, std::int64_t step_within) {
  const auto magnitude = [](std::int64_t x) { return x < 0 ? -x : x; };
  return lines > 1 && magnitude(step) < magnitude(step_within);
}

/// Destination of a finished output or of a partial result.
template <class Op>
struct Target {
  void* data = nullptr;
  DType dtype = DType::f32;
  double scale = 1;
  typename Op::Accumulator* partials = nullptr;  ///< (chunks, outputs); null if there is one chunk
  std::int64_t outputs = 0;

  __device__ void put(std::int64_t offset, std::int64_t output, unsigned chunk, typename Op::Accumulator value) const {
    if (partials) partials[chunk * outputs + output] = value;
    else write<typename Op::Out>(data, dtype, offset, Op::finish(value, scale));
  }
};

namespace detail {

/// Reduces lanes `lane`, lane + lanes, ... of `length` contiguous elements: single elements up to the first aligned address, then vectors.
/// Each position in a vector has its own accumulator, so that additions do not wait for each other.
template <class Op, class T>
__device__ typename Op::Accumulator reduce_run(const T* __restrict__ data, std::int64_t length, unsigned lane, unsigned lanes) {
  constexpr int width = 16 / sizeof(T);
  typename Op::Accumulator sums[width];
#pragma unroll
  for (int k = 0; k < width; ++k) sums[k] = Op::identity();
  const unsigned misaligned = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(data) % 16 / sizeof(T));
  const std::int64_t head = min(length, std::int64_t((width - misaligned) % width));
  const std::int64_t vectors = (length - head) / width, tail = head + vectors * width;
  for (std::int64_t i = lane; i < head; i += lanes) Op::add(sums[0], convert<computed_t<T>>(data[i]));
#pragma unroll 2
  for (std::int64_t v = lane; v < vectors; v += lanes) {
    const auto words = read_vector<width>(data + head + v * width);
#pragma unroll
    for (int k = 0; k < width; ++k) Op::add(sums[k], convert<computed_t<T>>(words.values[k]));
  }
  for (std::int64_t i = tail + lane; i < length; i += lanes) Op::add(sums[0], convert<computed_t<T>>(data[i]));
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) {
#pragma unroll
    for (int k = 0; k < step; ++k) sums[k] = Op::combine(sums[k], sums[k + step]);
  }
  return sums[0];
}

/// The same for strided elements.
template <class Op, class T>
__device__ typename Op::Accumulator reduce_strided(const void* data, DType dtype, std::int64_t offset, const Indexer<1>& reduced,
                                                   std::int64_t begin, std::int64_t end, unsigned lane, unsigned lanes) {
  typename Op::Accumulator sum = Op::identity();
#pragma unroll 2
  for (std::int64_t i = begin + lane; i < end; i += lanes) {
    std::int64_t at[1] = {i * reduced.strides[0][0]};  // of a single dimension, which may be longer than the indexer's 32 bits
    if (reduced.dims > 1) reduced.locate(static_cast<std::uint32_t>(i), at);
    Op::add(sum, read<T>(data, dtype, offset + at[0]));
  }
  return sum;
}

/// Elements that are reduced to one output: contiguous, or strided (T is then a tag).
struct Span {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t length = 0, chunk_length = 0;
  Indexer<1> reduced;
};

template <class Op, class T>
__device__ typename Op::Accumulator reduce_span(const Span& span, std::int64_t offset, unsigned chunk, unsigned lane, unsigned lanes) {
  const std::int64_t begin = chunk * span.chunk_length, end = min(span.length, begin + span.chunk_length);
  if constexpr (is_tag<T>) return reduce_strided<Op, T>(span.data, span.dtype, offset, span.reduced, begin, end, lane, lanes);
  else return reduce_run<Op, T>(static_cast<const T*>(span.data) + offset + begin, max(end - begin, std::int64_t(0)), lane, lanes);
}

/// `lanes` threads (a power of two, at most 32) per output; `kept` iterates over x and y.
template <class Op, class T>
__global__ void __launch_bounds__(block_size) reduce_by_warps(__grid_constant__ const Span span, __grid_constant__ const Indexer<2> kept,
                                                              std::uint32_t outputs, unsigned lanes, Target<Op> target) {
  const std::uint32_t output = blockIdx.x * (block_size / lanes) + threadIdx.x / lanes;
  const unsigned lane = threadIdx.x % lanes;
  std::int64_t offsets[2] = {};
  typename Op::Accumulator sum = Op::identity();
  if (output < outputs) {
    kept.locate(output, offsets);
    sum = reduce_span<Op, T>(span, offsets[0], 0, lane, lanes);
  }
  sum = lanes_all_reduce<Op>(sum, lanes);  // whole warps get here
  if (output < outputs && lane == 0) target.put(offsets[1], output, 0, sum);
}

/// One block per output and chunk.
template <class Op, class T>
__global__ void __launch_bounds__(block_size)
    reduce_by_blocks(__grid_constant__ const Span span, __grid_constant__ const Indexer<2> kept, unsigned chunks, Target<Op> target) {
  const std::uint32_t output = blockIdx.x / chunks;
  const unsigned chunk = blockIdx.x % chunks;
  std::int64_t offsets[2];
  kept.locate(output, offsets);
  const auto sum = block_reduce<Op>(reduce_span<Op, T>(span, offsets[0], chunk, threadIdx.x, block_size));
  if (threadIdx.x == 0) target.put(offsets[1], output, chunk, sum);
}

/// Tiles of columns: `across` adjacent threads (a power of two) have `width` columns each of one row, and the block_size / across rows of
/// threads take the rows in turn. `outer` iterates over the kept dimensions except the columns, in x and y.
struct Columns {
  const void* data = nullptr;
  std::int64_t rows = 0, row_stride = 0, columns = 0, y_stride = 0, rows_per_chunk = 0;
  unsigned across = 1, tiles = 1, chunks = 1;
  Indexer<2> outer;
};

template <class Op, class T, int width>
__global__ void __launch_bounds__(block_size) reduce_columns(__grid_constant__ const Columns shape, Target<Op> target) {
  using A = typename Op::Accumulator;
  __shared__ A shared[width][block_size];
  const unsigned tile = blockIdx.x % shape.tiles, rest = blockIdx.x / shape.tiles;
  const unsigned chunk = rest % shape.chunks, outer = rest / shape.chunks;
  const unsigned x = threadIdx.x % shape.across, y = threadIdx.x / shape.across, down = block_size / shape.across;
  std::int64_t offsets[2];
  shape.outer.locate(outer, offsets);
  const std::int64_t column = (std::int64_t(tile) * shape.across + x) * width;
  const std::int64_t begin = chunk * shape.rows_per_chunk, end = min(shape.rows, begin + shape.rows_per_chunk);
  const T* __restrict__ data = static_cast<const T*>(shape.data) + offsets[0] + column;

  A sums[width];
#pragma unroll
  for (int k = 0; k < width; ++k) sums[k] = Op::identity();
  if (column + width <= shape.columns) {
#pragma unroll 4
    for (std::int64_t row = begin + y; row < end; row += down) {
      const auto words = read_vector<width>(data + row * shape.row_stride);
#pragma unroll
      for (int k = 0; k < width; ++k) Op::add(sums[k], convert<computed_t<T>>(words.values[k]));
    }
  } else if (column < shape.columns) {
    for (std::int64_t row = begin + y; row < end; row += down) {
#pragma unroll
      for (int k = 0; k < width; ++k)
        if (column + k < shape.columns) Op::add(sums[k], convert<computed_t<T>>(data[row * shape.row_stride + k]));
    }
  }

  column_reduce<Op>(sums, shared, shape.across, y, down);
  if (y != 0) return;
#pragma unroll
  for (int k = 0; k < width; ++k)
    if (column + k < shape.columns)
      target.put(offsets[1] + (column + k) * shape.y_stride, outer * shape.columns + column + k, chunk, sums[k]);
}

/// Second stage: a few adjacent outputs per block, whose partial results the block's threads share.
template <class Op>
__global__ void __launch_bounds__(block_size)
    combine_partials(const typename Op::Accumulator* __restrict__ partials, unsigned chunks, unsigned across,
                     __grid_constant__ const Indexer<2> kept, Target<Op> target) {
  __shared__ typename Op::Accumulator shared[1][block_size];
  const unsigned x = threadIdx.x % across, y = threadIdx.x / across, down = block_size / across;
  const std::int64_t output = std::int64_t(blockIdx.x) * across + x;
  typename Op::Accumulator sum[1] = {Op::identity()};
  if (output < target.outputs) {
#pragma unroll 4
    for (unsigned chunk = y; chunk < chunks; chunk += down) sum[0] = Op::combine(sum[0], partials[chunk * target.outputs + output]);
  }
  column_reduce<Op>(sum, shared, across, y, down);
  if (y != 0 || output >= target.outputs) return;
  std::int64_t offsets[2];
  kept.locate(static_cast<std::uint32_t>(output), offsets);
  target.put(offsets[1], output, 0, sum[0]);
}

/// Smallest power of two that is at least `count`, but at most `most`, a power of two.
inline unsigned capped_bit_ceil(std::int64_t count, unsigned most) {
  return static_cast<unsigned>(std::min<std::uint64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)), most));
}

/// Number of parts into which to divide `length`, each at least `shortest` long, so that `units` of work result in enough blocks.
inline unsigned chunks_for(std::int64_t length, std::int64_t shortest, std::int64_t units) {
  constexpr std::int64_t enough_blocks = 1024;
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(enough_blocks / std::max<std::int64_t>(units, 1), 1, std::max<std::int64_t>(length / shortest, 1)));
}

}  // namespace detail

/// Kept and reduced dimensions of a reduction.
struct Reduction {
  Layout<2> kept;     ///< strides in x and in y
  Layout<1> reduced;  ///< strides in x

  Reduction(const View& x, const View& y) {
    for (int d = x.dims() - 1; d >= 0; --d) {
      if (x.shape[d] == y.shape[d]) kept.push(x.shape[d], {x.strides[d], y.strides[d]});
      else reduced.push(x.shape[d], {x.strides[d]});
    }
    kept.simplify();
    reduced.simplify();
  }
};

/// Launches the first stage into partial results, and the second, if there are several chunks; else only the first.
template <class Op, class F>
void with_partials(const Layout<2>& kept, unsigned chunks, const Target<Op>& target, Stream stream, F&& first_stage) {
  if (chunks == 1) return first_stage(target);
  const std::int64_t outputs = kept.numel();
  const Workspace partials(static_cast<std::size_t>(outputs * chunks) * sizeof(typename Op::Accumulator), stream);
  Target<Op> staged = target;
  staged.partials = partials.as<typename Op::Accumulator>();
  first_stage(staged);
  // Partial results are few and in the cache: each thread should have a short chain of them. Eight adjacent floats are one sector.
  const unsigned across = detail::capped_bit_ceil(outputs, 8);
  launch(detail::combine_partials<Op>, blocks_for(outputs, across), block_size, 0, stream, staged.partials, chunks, across, kept, target);
}

/// Reduces spans: T is an element type for contiguous spans, a tag for others.
template <class Op, class T>
void reduce_spans(const Layout<2>& kept, const Layout<1>& reduced, const void* data, DType dtype, const Target<Op>& target, Stream stream) {
  const std::int64_t outputs = kept.numel(), length = reduced.numel();
  if (is_tag<T> && reduced.dims > 1 && length > 0x7fffffff) fail("reduce", "expected at most 2^31 - 1 strided elements for each result");
  constexpr int width = is_tag<T> ? 1 : 16 / sizeof(std::conditional_t<is_tag<T>, char, T>);
  Layout<1> within = reduced;
  if (within.dims == 1) within.sizes[0] = 1;  // not divided by, and it may have more than 32 bits
  detail::Span span{data, dtype, length, length, within};

  constexpr std::int64_t long_row = 1024;
  // A thread for each output reads best if adjacent outputs read adjacent elements, and there are enough of them.
  const bool side_by_side = is_tag<T> && (length == 1 || are_side_by_side(outputs, kept.strides[0][0], reduced.strides[0][0]));
  unsigned lanes = side_by_side ? 1 : detail::capped_bit_ceil(ceil_div(length, width), 32);
  while (lanes < 32 && lanes < length && outputs * lanes < enough_threads) lanes *= 2;
  if (length <= long_row * width || outputs * lanes >= enough_threads * (side_by_side ? 1 : 16)) {
    launch(detail::reduce_by_warps<Op, T>, blocks_for(outputs * lanes), block_size, 0, stream, span, kept,
           static_cast<std::uint32_t>(outputs), lanes, target);
    return;
  }
  const unsigned wanted = detail::chunks_for(length, 8192, outputs);
  span.chunk_length = round_up(ceil_div(length, wanted), 64);  // chunks of aligned rows are aligned
  const auto chunks = static_cast<unsigned>(ceil_div(length, span.chunk_length));
  with_partials(kept, chunks, target, stream, [&](const Target<Op>& into) {
    launch(detail::reduce_by_blocks<Op, T>, blocks_for(outputs * chunks, 1), block_size, 0, stream, span, kept, chunks, into);
  });
}

/// Reduces columns: kept.strides[0][0] is 1 and `reduced` has one dimension. Returns false if most threads of a tile would be idle.
template <class Op, class T>
bool reduce_tiles(const Layout<2>& kept, const Layout<1>& reduced, const T* data, const Target<Op>& target, Stream stream) {
  detail::Columns shape;
  shape.data = data;
  shape.rows = reduced.sizes[0];
  shape.row_stride = reduced.strides[0][0];
  shape.columns = kept.sizes[0];
  shape.y_stride = kept.strides[1][0];
  if (shape.rows == 0 || (shape.rows < 16 && kept.numel() >= 65536)) return false;

  Layout<2> outer = kept.without(0);
  if (outer.dims == 0) outer.push(1, {});
  shape.outer = outer;

  constexpr int widest = 16 / sizeof(T);
  bool vectors = is_aligned(data, 16) && shape.row_stride % widest == 0 && shape.columns >= widest;
  for (int d = 0; d < outer.dims; ++d) vectors = vectors && outer.strides[0][d] % widest == 0;
  const int width = vectors ? widest : 1;
  // The lanes of a warp read 512 contiguous bytes of a row; fewer threads if there are fewer columns.
  shape.across = detail::capped_bit_ceil(ceil_div(shape.columns, width), 32);
  shape.tiles = blocks_for(shape.columns, std::int64_t(shape.across) * width);
  const std::int64_t units = outer.numel() * shape.tiles, down = block_size / shape.across;
  // Enough rows for several loads in flight in each thread, few enough that a sum is not a long chain.
  unsigned wanted = detail::chunks_for(shape.rows, down * 4, units);
  wanted = static_cast<unsigned>(std::max<std::int64_t>(wanted, shape.rows / (down * 1024)));
  shape.rows_per_chunk = ceil_div(shape.rows, wanted);
  shape.chunks = static_cast<unsigned>(ceil_div(shape.rows, shape.rows_per_chunk));
  with_partials(kept, shape.chunks, target, stream, [&](const Target<Op>& into) {
    launch(vectors ? detail::reduce_columns<Op, T, widest> : detail::reduce_columns<Op, T, 1>, blocks_for(units * shape.chunks, 1),
           block_size, 0, stream, shape, into);
  });
  return true;
}

/// y = the reduction of x by Op, whose arithmetic type fits elements of T: a short float, or a tag.
template <class Op, class T>
void reduce_as(const View& x, const View& y, double scale) {
  const Reduction whole(x, y);
  for_pieces(whole.kept, [&](const Layout<2>& kept, const std::int64_t* offsets) {
    const auto at = [](const View& view, std::int64_t offset) {
      return view.as<char>() + offset * static_cast<std::int64_t>(size_of(view.dtype));
    };
    const void* data = at(x, offsets[0]);
    const Target<Op> target{at(y, offsets[1]), y.dtype, scale, nullptr, kept.numel()};
    if constexpr (!is_tag<T>) {
      if (whole.reduced.dims == 1) {
        const auto* elements = static_cast<const T*>(data);
        if (whole.reduced.strides[0][0] == 1) return reduce_spans<Op, T>(kept, whole.reduced, data, x.dtype, target, x.stream);
        if (kept.strides[0][0] == 1 && kept.sizes[0] >= 4 && reduce_tiles<Op, T>(kept, whole.reduced, elements, target, x.stream)) return;
      }
    }
    reduce_spans<Op, erased_t<T>>(kept, whole.reduced, data, x.dtype, target, x.stream);
  });
}

/// Reduces floats by Op<C>, where C is the type of the arithmetic.
template <template <class> class Op>
void reduce_floats(const View& x, const View& y, double scale) {
  if (!dispatch_elements(x.dtype, [&]<class T>() { reduce_as<Op<computed_t<T>>, T>(x, y, scale); }))
    fail("reduce", std::string("expected a floating dtype but got ") + name(x.dtype));
}

/// Reduces numbers by Op<C>; integers are computed in int64.
template <template <class> class Op>
void reduce_numbers(const View& x, const View& y, double scale) {
  if (!is_floating(x.dtype)) return reduce_as<Op<std::int64_t>, Any<std::int64_t>>(x, y, scale);
  reduce_floats<Op>(x, y, scale);
}

// The Ops of kernels::ReduceFunction. C is the arithmetic type, Out the type of the results in memory.

/// C, or its unsigned form: integers wrap on overflow.
template <class C>
using wrapping_t = typename std::conditional_t<std::is_integral_v<C>, std::make_unsigned<C>, std::enable_if<true, C>>::type;

template <class C>
struct SumOp {
  using Accumulator = C;
  using Out = Any<C>;
  static __device__ C identity() { return C(0); }
  static __device__ C combine(C a, C b) { return C(wrapping_t<C>(a) + wrapping_t<C>(b)); }
  static __device__ void add(C& sum, C value) { sum = combine(sum, value); }
  static __device__ C finish(C sum, double scale) { return scale == 1 ? sum : C(static_cast<double>(sum) * scale); }
};

template <class C>
struct ProductOp {
  using Accumulator = C;
  using Out = Any<C>;
  static __device__ C identity() { return C(1); }
  static __device__ C combine(C a, C b) { return C(wrapping_t<C>(a) * wrapping_t<C>(b)); }
  static __device__ void add(C& product, C value) { product = combine(product, value); }
  static __device__ C finish(C product, double) { return product; }
};

template <class C>
__device__ __forceinline__ C lowest() {
  if constexpr (std::is_integral_v<C>) return std::numeric_limits<C>::min();
  else return -std::numeric_limits<C>::infinity();
}
template <class C>
__device__ __forceinline__ C highest() {
  if constexpr (std::is_integral_v<C>) return std::numeric_limits<C>::max();
  else return std::numeric_limits<C>::infinity();
}

/// Maximum or minimum; NaN propagates.
template <class C, bool largest>
struct ExtremeOp {
  using Accumulator = C;
  using Out = Any<C>;
  static __device__ C identity() { return largest ? lowest<C>() : highest<C>(); }
  static __device__ C combine(C a, C b) { return (largest ? b > a : b < a) || b != b ? b : a; }
  static __device__ void add(C& extreme, C value) { extreme = combine(extreme, value); }
  static __device__ C finish(C extreme, double) { return extreme; }
};

template <bool any>
struct AnyAllOp {
  using Accumulator = std::int32_t;
  using Out = bool;
  static __device__ std::int32_t identity() { return any ? 0 : 1; }
  static __device__ std::int32_t combine(std::int32_t a, std::int32_t b) { return any ? a | b : a & b; }
  template <class C>
  static __device__ void add(std::int32_t& found, C value) {
    found = combine(found, value != C(0));
  }
  static __device__ bool finish(std::int32_t found, double) { return found != 0; }
};

/// log(sum(exp(x))) in one pass.
template <class C>
struct LogSumExpOp {
  using Accumulator = OnlineSoftmax<C, ExactExp>;
  using Out = Any<C>;
  static __device__ Accumulator identity() { return {-std::numeric_limits<C>::infinity(), C(0)}; }
  static __device__ Accumulator combine(Accumulator a, Accumulator b) { return merge(a, b); }
  static __device__ void add(Accumulator& a, C value) { a.add(value); }
  static __device__ C finish(Accumulator a, double) { return a.log_sum_exp(); }
};

}  // namespace tern::gpu
