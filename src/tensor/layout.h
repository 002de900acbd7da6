#pragma once
#include <cstdlib>

#include "tensor/view.h"

namespace tern {

/// The order of a layout's dimensions after Layout::simplify.
enum class DimOrder {
  row_major,      ///< as they are
  first_operand,  ///< by the first operand's strides, the smallest innermost: neighbouring threads get neighbouring elements of it
  all_operands    ///< the same, but where the first operand is broadcast, or has equal strides, the next operand decides
};

/// Iteration over n operands of one shape at once: the dimensions, innermost first, with the strides of every operand in elements.
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
  std::int64_t inner() const { return sizes[0]; }                               ///< size of the innermost dimension
  std::int64_t inner_stride(int operand) const { return strides[operand][0]; }  ///< an operand's stride in it

  /// Adds a dimension outside of the others.
  void push(std::int64_t size, const std::int64_t (&steps)[n]) {
    sizes[dims] = size;
    for (int i = 0; i < n; ++i) strides[i][dims] = steps[i];
    ++dims;
  }
  /// The layout without a dimension; it may have none left.
  Layout without(int dim) const {
    Layout rest;
    for (int d = 0; d < dims; ++d)
      if (d != dim) rest.move(*this, d, rest.dims++);
    return rest;
  }

  /// Sorts the dimensions, removes those of size 1 and merges those that all operands step through evenly. At least one dimension remains.
  void simplify(DimOrder order = DimOrder::first_operand) {
    Layout sorted;  // the outermost dimension first
    for (int d = dims - 1; d >= 0; --d) {
      if (sizes[d] == 1) continue;
      int at = sorted.dims++;  // an insertion sort, so that equal strides keep their order
      for (; at > 0 && is_nearer(order, sorted, at - 1, d); --at) sorted.move(sorted, at - 1, at);
      sorted.move(*this, d, at);
    }
    dims = 0;
    for (int d = sorted.dims - 1; d >= 0; --d) {
      if (dims > 0 && continues(sorted, d)) sizes[dims - 1] *= sorted.sizes[d];
      else move(sorted, d, dims++);
    }
    if (dims == 0) push(1, {});
  }

 private:
  void move(const Layout& from, int d, int to) {
    sizes[to] = from.sizes[d];
    for (int i = 0; i < n; ++i) strides[i][to] = from.strides[i][d];
  }
  /// True if the sorted dimension has smaller strides than dimension d of this layout.
  bool is_nearer(DimOrder order, const Layout& sorted, int at, int d) const {
    const auto step = [](const Layout& layout, int i, int of) { return std::abs(layout.strides[i][of]); };
    if (order == DimOrder::row_major) return false;
    if (order == DimOrder::first_operand) return step(sorted, 0, at) < step(*this, 0, d);
    for (int i = 0; i < n; ++i)
      if (const std::int64_t a = step(sorted, i, at), b = step(*this, i, d); a != 0 && b != 0 && a != b) return a < b;
    return false;
  }
  bool continues(const Layout& from, int d) const {
    for (int i = 0; i < n; ++i)
      if (from.strides[i][d] != strides[i][dims - 1] * sizes[dims - 1]) return false;
    return true;
  }
};

/// Layout of operands of one shape, not simplified.
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

/// Splits an iteration into pieces of at most 2^30 steps, so that a GPU's kernels count in 32 bits; calls f with a piece and each operand's
/// offset to its first element.
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

}  // namespace tern
