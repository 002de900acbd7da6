#include "tensor/layout.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "catch.h"

namespace tern {

namespace {

using Place = std::array<std::int64_t, 2>;

/// The offsets of both operands at each step, in the layout's order.
std::vector<Place> places_of(const Layout<2>& layout) {
  std::vector<Place> places;
  for (std::int64_t i = 0; i < layout.numel(); ++i) {
    Place place{};
    std::int64_t rest = i;
    for (int d = 0; d < layout.dims; ++d) {
      for (int k = 0; k < 2; ++k) place[static_cast<std::size_t>(k)] += rest % layout.sizes[d] * layout.strides[k][d];
      rest /= layout.sizes[d];
    }
    places.push_back(place);
  }
  return places;
}

Layout<2> simplified(const Shape& shape, const Strides& first, const Strides& second, DimOrder order) {
  Layout<2> layout = layout_of(shape, {first, second});
  layout.simplify(order);
  return layout;
}

}  // namespace

TEST_CASE("Layout: any shape and strides, simplified -> the same places, in row-major order the same sequence") {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 500; ++round) {
    Shape shape;
    Strides strides[2];
    for (std::int64_t d = below(5); d > 0; --d) {
      shape.push_back(below(4) + (below(8) > 0));
      for (Strides& steps : strides) steps.push_back(below(3) == 0 ? 0 : below(13) - 6);
    }
    if (below(2)) strides[0] = contiguous_strides(shape);
    const std::vector<Place> want = places_of(layout_of(shape, strides));
    CHECK(places_of(simplified(shape, strides[0], strides[1], DimOrder::row_major)) == want);
    for (const DimOrder order : {DimOrder::first_operand, DimOrder::all_operands}) {
      std::vector<Place> sorted = want, got = places_of(simplified(shape, strides[0], strides[1], order));
      std::sort(sorted.begin(), sorted.end());
      std::sort(got.begin(), got.end());
      CHECK(got == sorted);
    }
  }
}

TEST_CASE("Layout: even dimensions merge, those of size 1 go, and one remains") {
  const Layout<2> flat = simplified({2, 1, 3, 4}, {12, 7, 4, 1}, {24, 5, 8, 2}, DimOrder::row_major);
  CHECK(flat.dims == 1);
  CHECK(flat.inner() == 24);
  CHECK(flat.inner_stride(0) == 1);
  CHECK(flat.inner_stride(1) == 2);
  CHECK(simplified({2, 3}, {3, 1}, {4, 1}, DimOrder::row_major).dims == 2);  // the second operand has a gap
  const Layout<2> one = simplified({1, 1}, {3, 1}, {4, 1}, DimOrder::all_operands);
  CHECK(one.dims == 1);
  CHECK(one.numel() == 1);
}

TEST_CASE("Layout: the smallest stride of the first operand is innermost, and of the next where the first is broadcast") {
  const Layout<2> transposed = simplified({3, 4}, {1, 3}, {4, 1}, DimOrder::first_operand);
  CHECK(transposed.sizes[0] == 3);
  CHECK(transposed.inner_stride(1) == 4);
  const Strides broadcast{6, 0, 1};
  CHECK(simplified({2, 5, 6}, broadcast, {30, 6, 1}, DimOrder::first_operand).inner() == 5);
  CHECK(simplified({2, 5, 6}, broadcast, {30, 6, 1}, DimOrder::all_operands).inner() == 6);
}

TEST_CASE("Layout: pieces of at most 2^30 steps reach each place once") {
  const std::int64_t size = (std::int64_t(1) << 31) + 100;
  Layout<2> layout = layout_of({3, size}, {Strides{size, 1}, Strides{0, 2}});
  std::int64_t steps = 0, next = 0;
  for_pieces(layout, [&](const Layout<2>& piece, const std::int64_t* offsets) {
    CHECK(piece.numel() <= std::int64_t(1) << 30);
    CHECK(piece.sizes[1] == 3);
    CHECK(offsets[0] == next);
    CHECK(offsets[1] == 2 * next);
    next += piece.sizes[0];
    steps += piece.numel();
  });
  CHECK(steps == 3 * size);
}

}  // namespace tern
