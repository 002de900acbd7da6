// Sizes, shapes, strides and the rules of broadcasting.
#include <cstdint>

#include "catch.h"
#include "tensor/sizes.h"
#include "tensor/tensor.h"

namespace tern {

TEST_CASE("DimVec holds up to eight numbers") {
  Shape shape = {2, 3};
  shape.push_back(4);
  shape.insert(0, 7);
  CHECK(shape == Shape{7, 2, 3, 4});
  shape.insert(4, 9);
  CHECK(shape == Shape{7, 2, 3, 4, 9});
  shape.erase(1);
  CHECK(shape == Shape{7, 3, 4, 9});
  shape.pop_back();
  CHECK(shape.back() == 4);
  CHECK(shape.size() == 3);
  CHECK_FALSE(shape == Shape{7, 3});
  CHECK_FALSE(shape == Shape{7, 3, 5});
  CHECK(Shape{}.empty());
  CHECK(Shape::filled(8, 2).size() == 8);
  CHECK_THROWS_WITH((Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}), "[shape] expected at most 8 dimensions");
  Shape full = Shape::filled(8, 1);
  CHECK_THROWS_AS(full.push_back(1), Error);
  CHECK_THROWS_AS(full.insert(0, 1), Error);
  CHECK(full == Shape::filled(8, 1));
}

TEST_CASE("Shapes print as tuples") {
  CHECK(to_string(Shape{}) == "()");
  CHECK(to_string(Shape{3}) == "(3,)");
  CHECK(to_string(Shape{4, 8}) == "(4, 8)");
  CHECK(to_string(Dims{-1, 0}) == "(-1, 0)");
  CHECK(to_string(cpu) == "cpu");
  CHECK(to_string(cuda(1)) == "cuda:1");
}

TEST_CASE("Strides are row-major, and sizes of 1 do not count") {
  CHECK(contiguous_strides({}) == Strides{});
  CHECK(contiguous_strides({5}) == Strides{1});
  CHECK(contiguous_strides({2, 3, 4}) == Strides{12, 4, 1});
  CHECK(contiguous_strides({2, 0, 4}) == Strides{4, 4, 1});
  CHECK(is_contiguous({2, 3}, {3, 1}));
  CHECK_FALSE(is_contiguous({2, 3}, {1, 2}));
  CHECK_FALSE(is_contiguous({2, 3}, {4, 1}));
  CHECK(is_contiguous({1, 3}, {77, 1}));
  CHECK(is_contiguous({2, 1, 3}, {3, -5, 1}));
  CHECK(is_contiguous({0, 3}, {0, 9}));
  CHECK(is_contiguous({}, {}));
  CHECK_FALSE(is_contiguous({3}, {0}));
  CHECK_FALSE(is_contiguous({3}, {-1}));
  CHECK(numel(Shape{}) == 1);
  CHECK(numel(Shape{3, 0, 5}) == 0);
}

TEST_CASE("Dimensions count from either end") {
  CHECK(normalize_dim(0, 3, "op") == 0);
  CHECK(normalize_dim(-1, 3, "op") == 2);
  CHECK(normalize_dim(-3, 3, "op") == 0);
  CHECK_THROWS_WITH(normalize_dim(3, 3, "op"), "[op] expected a dimension in [-3, 3) but got 3");
  CHECK_THROWS_WITH(normalize_dim(-4, 3, "op"), "[op] expected a dimension in [-3, 3) but got -4");
  CHECK_THROWS_AS(normalize_dim(0, 0, "op"), Error);
}

TEST_CASE("Shapes broadcast from the last dimension") {
  CHECK(broadcast_shapes({}, {}, "op") == Shape{});
  CHECK(broadcast_shapes({3}, {}, "op") == Shape{3});
  CHECK(broadcast_shapes({4, 1}, {5}, "op") == Shape{4, 5});
  CHECK(broadcast_shapes({1, 3}, {2, 1, 1}, "op") == Shape{2, 1, 3});
  CHECK(broadcast_shapes({0}, {1}, "op") == Shape{0});
  CHECK(broadcast_shapes({1}, {0, 1}, "op") == Shape{0, 1});
  CHECK_THROWS_WITH(broadcast_shapes({2, 3}, {2}, "op"), "[op] expected shapes that broadcast but got (2, 3) and (2,)");
  CHECK_THROWS_AS(broadcast_shapes({0}, {2}, "op"), Error);
}

TEST_CASE("An index beyond a shape is an error") {
  const Shape shape{2, 3};
  Shape edited = shape;
  CHECK_THROWS_WITH(shape[2], "[shape] expected an index in [0, 2) but got 2");
  CHECK_THROWS_AS(shape[100], Error);
  CHECK_THROWS_AS(edited[-1] = 4, Error);
  CHECK_THROWS_AS(edited.erase(2), Error);
  CHECK_THROWS_AS(edited.insert(5, 1), Error);
  CHECK_THROWS_AS(Shape{}.back(), Error);
  CHECK_THROWS_AS(Shape{}.pop_back(), Error);
  CHECK(shape[1] == 3);
}

static_assert(std::is_same_v<decltype(ceil_div(std::int64_t(1), 2)), std::int64_t>);

TEST_CASE("ceil_div counts the steps that cover a number") {
  for (std::int64_t n = 0; n < 40; ++n)
    for (int step = 1; step < 12; ++step) {
      CAPTURE(n, step);
      CHECK(ceil_div(n, step) * step >= n);
      CHECK((ceil_div(n, step) - 1) * step < n);
      CHECK(round_up(n, step) == ceil_div(n, step) * step);
    }
  CHECK(ceil_div(std::size_t(1) << 40, std::size_t(3)) == 366503875926);
}

}  // namespace tern
