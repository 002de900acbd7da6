#include <algorithm>

#include "cuda/device/convert.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/index.h"
#include "tensor/dispatch.h"
#include "tensor/layout.h"
#include "tensor/sizes.h"

// Gather, index_select, index_copy, scatter_add and positions: reads, writes and additions at indices from memory. One thread per element
// (or per 16 bytes, if rows are contiguous); an index outside the range reads as zero and writes nothing.
namespace tern::kernels {

using namespace gpu;

namespace {

/// 16 bytes that are copied as one.
struct alignas(16) Chunk {
  std::uint32_t words[4] = {};
};

__device__ void atomic_add(float* at, float value) { atomicAdd(at, value); }
__device__ void atomic_add(double* at, double value) { atomicAdd(at, value); }
__device__ void atomic_add(f16* at, f16 value) { atomicAdd(reinterpret_cast<__half*>(at), __ushort_as_half(value.bits)); }
__device__ void atomic_add(bf16* at, bf16 value) { atomicAdd(reinterpret_cast<__nv_bfloat16*>(at), __ushort_as_bfloat16(value.bits)); }
__device__ void atomic_add(std::int32_t* at, std::int32_t value) { atomicAdd(at, value); }
__device__ void atomic_add(std::int64_t* at, std::int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}
/// Adds to a byte, for which there is no atomic: compare-and-swap of the aligned word that contains it.
__device__ void atomic_add(std::uint8_t* at, std::uint8_t value) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto* const word = reinterpret_cast<unsigned*>(address & ~std::uintptr_t(3));
  const unsigned shift = (address & 3) * 8;
  unsigned seen = *word, expected;
  do {
    expected = seen;
    const unsigned sum = ((expected >> shift) + value) & 0xffu;
    seen = atomicCAS(word, expected, (expected & ~(0xffu << shift)) | (sum << shift));
  } while (seen != expected);
}

// Functors: the operation on an element of one side, and its position along one dimension of the other side, the table, which may be out of
// range.

/// y[i] = x[index[i]]
struct GatherElement {
  template <class Bits>
  static __device__ __forceinline__ void apply(const Bits* x, Bits* y, std::int64_t element, std::int64_t place, bool is_inside) {
    y[element] = is_inside ? x[place] : Bits();
  }
};
/// y[index[i]] = source[i]
struct ScatterElement {
  template <class Bits>
  static __device__ __forceinline__ void apply(const Bits* source, Bits* y, std::int64_t element, std::int64_t place, bool is_inside) {
    if (is_inside) y[place] = source[element];
  }
};
/// y[index[i]] += source[i]
struct AddElement {
  template <class T, class Sum>
  static __device__ __forceinline__ void apply(const T* source, Sum* y, std::int64_t element, std::int64_t place, bool is_inside) {
    if (is_inside) atomic_add(y + place, convert<Sum>(source[element]));
  }
};

/// The indexer iterates over elements, index and table, with the table's stride along that dimension 0: the index's value is multiplied by
/// `stride`.
template <class F, class From, class To>
__global__ void __launch_bounds__(block_size)
    index_elements(const From* __restrict__ from, const std::int64_t* __restrict__ index, To* __restrict__ to,
                   __grid_constant__ const Indexer<3> indexer, std::uint32_t count, std::int64_t length, std::int64_t stride) {
  const std::uint32_t i = blockIdx.x * block_size + threadIdx.x;
  if (i >= count) return;
  std::int64_t offsets[3];
  indexer.locate(i, offsets);
  const std::int64_t at = index[offsets[1]];
  F::apply(from, to, offsets[0], offsets[2] + at * stride, at >= 0 && at < length);
}

template <class F, class From, class To>
void index_as(const Layout<3>& whole, const View& from, const View& index, const View& to, int dim) {
  constexpr bool gathers = std::is_same_v<F, GatherElement>;
  const View& table = gathers ? from : to;
  for_pieces(whole, [&](const Layout<3>& layout, const std::int64_t* offsets) {
    const std::int64_t count = layout.numel();
    launch(index_elements<F, From, To>, blocks_for(count), block_size, 0, to.stream, from.as<const From>() + offsets[gathers ? 2 : 0],
           index.as<const std::int64_t>() + offsets[1], to.as<To>() + offsets[gathers ? 0 : 2], layout, static_cast<std::uint32_t>(count),
           table.shape[dim], table.strides[dim]);
  });
}

/// Layout of that kernel's iteration: over the index's elements, with a stride of 0 along `dim` in `table`, which is x or y.
Layout<3> layout_along(int dim, const View& elements, const View& index, const View& table) {
  Strides held = table.strides;
  held[dim] = 0;
  Layout<3> layout = layout_of(index.shape, {elements.strides, index.strides, held});
  layout.simplify();
  return layout;
}

__global__ void __launch_bounds__(block_size)
    write_positions(const bool* flags, const std::int64_t* ends, std::int64_t* found, std::int64_t count) {
  const std::int64_t step = std::int64_t(gridDim.x) * block_size;
  for (std::int64_t i = std::int64_t(blockIdx.x) * block_size + threadIdx.x; i < count; i += step)
    if (flags[i]) found[ends[i] - 1] = i;
}

/// True if rows, along the last dimension, can be copied in 16-byte chunks.
bool takes_chunks(const View& view) { return view.strides[2] == 1 && has_vec16_rows(view); }
View in_chunks(View view, std::int64_t per_chunk) {
  view.shape[2] /= per_chunk;
  view.strides[0] /= per_chunk;
  view.strides[1] /= per_chunk;
  return view;
}

/// Layout of slices (A, I, C) of `rows` (A, N, C), with an index that is broadcast along A and C.
Layout<3> layout_of_slices(const View& slices, const View& index, const View& rows) {
  Layout<3> layout =
      layout_of(slices.shape, {slices.strides, Strides{0, index.strides[0], 0}, Strides{rows.strides[0], 0, rows.strides[2]}});
  layout.simplify();
  return layout;
}

/// Calls f with the element type, and the views (A, N, C) and (A, I, C) in its elements: 16 bytes if both can be copied so.
template <class F>
void in_largest_elements(const View& rows, const View& slices, F&& f) {
  const auto per_chunk = static_cast<std::int64_t>(16 / size_of(slices.dtype));
  if (takes_chunks(rows) && takes_chunks(slices))
    return f.template operator()<Chunk>(in_chunks(rows, per_chunk), in_chunks(slices, per_chunk));
  dispatch_bits(slices.dtype, [&]<class Bits>() { f.template operator()<Bits>(rows, slices); });
}

}  // namespace

void Gather::run(Cuda) const {
  if (y.numel() == 0) return;
  dispatch_bits(y.dtype, [&]<class Bits>() { index_as<GatherElement, Bits, Bits>(layout_along(dim, y, index, x), x, index, y, dim); });
}

void ScatterAdd::run(Cuda) const {
  if (source.numel() == 0) return;
  if (y.dtype == DType::boolean) fail("scatter_add", "expected a numeric dtype but got bool");
  const auto add = [&]<class T, class Sum>(const View& to) {
    index_as<AddElement, T, Sum>(layout_along(dim, source, index, to), source, index, to, dim);
  };
  dispatch_all(y.dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, float> || is_half<T>) {
      // More additions than a sum of this type allows; see Note [Long sums] in ops/cpu/index.cpp.
      if (index.shape[dim] > (is_half<T> ? 1 : 16)) {
        const Workspace memory(static_cast<std::size_t>(y.numel()) * sizeof(double), y.stream);
        const View sums{memory.as(), y.shape, contiguous_strides(y.shape), DType::f64, y.stream};
        Copy{y, sums}.run(Cuda{});
        add.template operator()<T, double>(sums);
        return Copy{sums, y}.run(Cuda{});
      }
    }
    if constexpr (!std::is_same_v<T, bool>) add.template operator()<T, T>(y);
  });
}

void Positions::run(Cuda) const {
  if (found.numel() == 0) return;
  const std::int64_t count = flags.numel();
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(ceil_div(count, std::int64_t(block_size)), 1 << 16));
  launch(write_positions, blocks, block_size, 0, found.stream, flags.as<const bool>(), ends.as<const std::int64_t>(),
         found.as<std::int64_t>(), count);
}

void IndexSelect::run(Cuda) const {
  if (y.numel() == 0) return;
  in_largest_elements(x, y, [&]<class Bits>(const View& rows, const View& slices) {
    index_as<GatherElement, Bits, Bits>(layout_of_slices(slices, index, rows), rows, index, slices, 1);
  });
}

void IndexCopy::run(Cuda) const {
  if (source.numel() == 0) return;
  in_largest_elements(y, source, [&]<class Bits>(const View& rows, const View& slices) {
    index_as<ScatterElement, Bits, Bits>(layout_of_slices(slices, index, rows), slices, index, rows, 1);
  });
}

}  // namespace tern::kernels
