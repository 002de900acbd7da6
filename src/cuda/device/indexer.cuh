#pragma once
#include "cuda/runtime/launch.h"
#include "tensor/view.h"

// From shapes and strides to what a kernel iterates over.
namespace tern::gpu {

/// Division by a number that is fixed for a launch: a multiplication and a shift, where the processor's division costs
/// some twenty instructions. Exact for n < 2^31. Granlund & Montgomery, "Division by invariant integers", PLDI 1994.
struct Divider {
  std::uint32_t divisor = 1, magic = 1, shift = 0;

  Divider() = default;
  /// A divisor of 0 counts as 1: what iterates over nothing divides nothing.
  explicit Divider(std::int64_t divisor_) : divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(divisor_, 1))) {
    while ((std::uint64_t(1) << shift) < divisor) ++shift;
    magic = static_cast<std::uint32_t>((((std::uint64_t(1) << shift) - divisor) << 32) / divisor + 1);
  }

  __device__ __forceinline__ std::uint32_t divide(std::uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

/// Iteration over n operands at once: the dimensions, innermost first, with every operand's strides in elements.
template <int n>
struct Layout {
  int dims = 0;
  std::int64_t sizes[max_dims] = {};
  std::int64_t strides[n][max_dims] = {};

  std::int64_t numel() const {
    std::int64_t count = 1;
    for (int d = 0; d < dims; ++d) count *= sizes[d];
    return count;
  }

  /// Adds a dimension outside the others.
  void push(std::int64_t size, const std::int64_t (&steps)[n]) {
    sizes[dims] = size;
    for (int i = 0; i < n; ++i) strides[i][dims] = steps[i];
    ++dims;
  }

  /// Puts the dimensions in the order of the first operand's strides, so that neighbouring threads touch its
  /// neighbouring elements, drops those of size 1 and merges those that all operands walk through as if they were one.
  /// At least one dimension remains.
  void simplify() {
    Layout sorted;
    for (int d = 0; d < dims; ++d) {
      if (sizes[d] == 1) continue;
      int at = sorted.dims++;
      for (; at > 0 && magnitude(sorted.strides[0][at - 1]) > magnitude(strides[0][d]); --at) sorted.move(sorted, at - 1, at);
      sorted.move(*this, d, at);
    }
    dims = 0;
    for (int d = 0; d < sorted.dims; ++d) {
      if (dims > 0 && continues(sorted, d)) sizes[dims - 1] *= sorted.sizes[d];
      else move(sorted, d, dims++);
    }
    if (dims == 0) push(1, {});
  }

 private:
  static std::int64_t magnitude(std::int64_t stride) { return stride < 0 ? -stride : stride; }
  void move(const Layout& from, int d, int to) {
    sizes[to] = from.sizes[d];
    for (int i = 0; i < n; ++i) strides[i][to] = from.strides[i][d];
  }
  bool continues(const Layout& from, int d) const {
    for (int i = 0; i < n; ++i)
      if (from.strides[i][d] != strides[i][dims - 1] * sizes[dims - 1]) return false;
    return true;
  }
};

/// The layout of operands of one shape.
template <int n>
Layout<n> layout_of(const Shape& shape, const Strides (&strides)[n]) {
  Layout<n> layout;
  for (int d = shape.size() - 1; d >= 0; --d) {
    std::int64_t steps[n];
    for (int i = 0; i < n; ++i) steps[i] = strides[i][d];
    layout.push(shape[d], steps);
  }
  return layout;
}

/// Cuts an iteration into pieces of at most 2^30 steps, so that kernels count in 32 bits; f takes a piece and each
/// operand's offset to its first element.
template <int n, class F>
void for_pieces(const Layout<n>& layout, F&& f, const std::int64_t* offsets = nullptr) {
  constexpr std::int64_t start[n] = {};
  if (!offsets) offsets = start;
  if (layout.numel() <= std::int64_t(1) << 30) {
    f(layout, offsets);
    return;
  }
  int longest = 0;
  for (int d = 1; d < layout.dims; ++d)
    if (layout.sizes[d] > layout.sizes[longest]) longest = d;
  std::int64_t half = layout.sizes[longest] / 2;
  if (half >= 64) half = half / 64 * 64;  // what can be read as vectors stays so
  Layout<n> first = layout, second = layout;
  first.sizes[longest] = half;
  second.sizes[longest] -= half;
  std::int64_t moved[n];
  for (int i = 0; i < n; ++i) moved[i] = offsets[i] + half * layout.strides[i][longest];
  for_pieces(first, f, offsets);
  for_pieces(second, f, moved);
}

/// A layout as a kernel takes it.
template <int n>
struct Indexer {
  int dims = 0;
  Divider sizes[max_dims];
  std::int64_t strides[n][max_dims] = {};

  Indexer() = default;
  Indexer(const Layout<n>& layout) : dims(layout.dims) {
    for (int d = 0; d < dims; ++d) {
      sizes[d] = Divider(layout.sizes[d]);
      for (int i = 0; i < n; ++i) strides[i][d] = layout.strides[i][d];
    }
  }

  /// Every operand's offset of the element that is reached in `index` steps.
  __device__ __forceinline__ void locate(std::uint32_t index, std::int64_t (&offsets)[n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) offsets[i] = 0;
    // Not unrolled: mostly there are one to three dimensions, and code for eight would take the compiler minutes.
#pragma unroll 1
    for (int d = 0; d + 1 < dims; ++d) {
      const std::uint32_t rest = sizes[d].divide(index);
      const std::int64_t here = index - rest * sizes[d].divisor;
#pragma unroll
      for (int i = 0; i < n; ++i) offsets[i] += here * strides[i][d];
      index = rest;
    }
#pragma unroll
    for (int i = 0; i < n; ++i) offsets[i] += std::int64_t(index) * strides[i][dims - 1];
  }
};

}  // namespace tern::gpu
