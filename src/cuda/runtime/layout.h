#pragma once
#include "cuda/device/indexer.cuh"

// Layouts: shapes and strides, simplified to the dimensions that a kernel iterates over.
namespace tern::gpu {

/// Iteration over n operands at once: the dimensions, innermost first, with the strides of every operand in elements.
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

  /// Converts to the form that a kernel takes.
  operator Indexer<n>() const {
    Indexer<n> indexer;
    indexer.dims = dims;
    for (int d = 0; d < dims; ++d) {
      indexer.sizes[d] = Divider(sizes[d]);
      for (int i = 0; i < n; ++i) indexer.strides[i][d] = strides[i][d];
    }
    return indexer;
  }

  /// Adds a dimension outside of the others.
  void push(std::int64_t size, const std::int64_t (&steps)[n]) {
    sizes[dims] = size;
    for (int i = 0; i < n; ++i) strides[i][dims] = steps[i];
    ++dims;
  }

  /// Sorts the dimensions by the first operand's strides, so that adjacent threads access its adjacent elements, removes those of size 1
  /// and merges those that all operands step through evenly. At least one dimension remains.
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

/// Layout of operands of one shape.
template <int n, class Dims>
Layout<n> layout_of(const Dims& shape, const Dims (&strides)[n]) {
  Layout<n> layout;
  for (int d = shape.size() - 1; d >= 0; --d) {
    std::int64_t steps[n];
    for (int i = 0; i < n; ++i) steps[i] = strides[i][d];
    layout.push(shape[d], steps);
  }
  return layout;
}

/// Splits an iteration into pieces of at most 2^30 steps, so that kernels count in 32 bits; calls f with a piece and each operand's offset
/// to its first element.
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
  if (half >= 64) half = half / 64 * 64;  // vectors stay aligned
  Layout<n> first = layout, second = layout;
  first.sizes[longest] = half;
  second.sizes[longest] -= half;
  std::int64_t moved[n];
  for (int i = 0; i < n; ++i) moved[i] = offsets[i] + half * layout.strides[i][longest];
  for_pieces(first, f, offsets);
  for_pieces(second, f, moved);
}

}  // namespace tern::gpu
