// Views: what shares memory and what is copied, against brute force over indices.
#include "ops/view.h"

#include "catch.h"
#include "tensor/random.h"

namespace tern {

namespace {

using Offsets = std::vector<std::int64_t>;

/// The place in the storage of every element, in row-major order.
Offsets offsets(const Tensor& x) {
  Offsets result;
  Shape index = Shape::filled(x.dims(), 0);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t at = x.offset();
    for (int d = 0; d < x.dims(); ++d) at += index[d] * x.strides()[d];
    result.push_back(at);
    for (int d = x.dims() - 1; d >= 0 && ++index[d] == x.shape()[d]; --d) index[d] = 0;
  }
  return result;
}

Tensor count(const Shape& shape) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  return Tensor::from(values, shape);
}

bool shares(const Tensor& a, const Tensor& b) { return a.impl().storage == b.impl().storage; }

/// Small random numbers, one after the other.
struct Dice {
  std::uint64_t seed, next = 0;
  int roll(int sides) { return static_cast<int>(philox(seed, next++).words[0] % static_cast<std::uint32_t>(sides)); }
};

/// True where strides exist that put the elements of `shape` at these offsets: each dimension's first step decides its
/// stride.
bool has_strides(const Offsets& places, const Shape& shape) {
  const Strides step = contiguous_strides(shape);
  Strides strides;
  for (int d = 0; d < shape.size(); ++d) strides.push_back(shape[d] > 1 ? places[static_cast<std::size_t>(step[d])] - places[0] : 0);
  Shape index = Shape::filled(shape.size(), 0);
  for (std::int64_t place : places) {
    std::int64_t at = places[0];
    for (int d = 0; d < shape.size(); ++d) at += index[d] * strides[d];
    if (at != place) return false;
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) index[d] = 0;
  }
  return true;
}

/// A random factorisation of n into at most 8 sizes, ones included.
Shape random_shape(std::int64_t n, Dice& dice) {
  Shape shape;
  while (shape.size() < 7) {
    if (n == 1 && dice.roll(3)) break;
    std::int64_t factor = 1;
    for (int tries = 0; tries < 3; ++tries) {
      const int f = 1 + dice.roll(6);
      if (n % f == 0) factor = f;
    }
    shape.push_back(factor);
    n /= factor;
  }
  shape.insert(dice.roll(shape.size() + 1), n);
  return shape;
}

}  // namespace

TEST_CASE("reshape is a view exactly where strides allow it") {
  int views = 0, copies = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Dice dice{seed};
    Shape shape;
    for (int d = dice.roll(7); d > 0; --d) shape.push_back(dice.roll(12) == 0 ? 0 : 1 + dice.roll(4));
    Tensor x = count(shape);
    for (int edits = dice.roll(4); edits > 0 && x.dims() > 0; --edits) {
      const int dim = dice.roll(x.dims());
      switch (dice.roll(4)) {
        case 0: x = transpose(x, dim, dice.roll(x.dims())); break;
        case 1: x = slice(x, dim, dice.roll(2), std::nullopt, 1 + dice.roll(2)); break;
        case 2:
          if (x.dims() < 8) x = unsqueeze(x, dim);
          break;
        default:
          if (x.shape()[dim] == 1)
            x = broadcast_to(x, [&] {
              Shape s = x.shape();
              s[dim] = 2;
              return s;
            }());
      }
    }
    const Shape into = x.numel() == 0 ? Shape{3, 0, 2} : random_shape(x.numel(), dice);
    INFO("seed " << seed << ": " << to_string(x.shape()) << " strides " << to_string(x.strides()) << " into " << to_string(into));
    const Tensor y = reshape(x, into);
    if (y.shape() != into || y.to_vector<std::int32_t>() != x.to_vector<std::int32_t>()) FAIL_CHECK("other elements");
    if (x.numel() == 0) continue;
    const bool possible = has_strides(offsets(x), into);
    if (shares(x, y) != possible) FAIL_CHECK((possible ? "a copy where a view is possible" : "a view where none is possible"));
    (possible ? views : copies)++;
  }
  CHECK(views > 1000);
  CHECK(copies > 300);
}

TEST_CASE("slice takes what Python's slices take") {
  const Tensor x = count({7, 2});
  for (std::int64_t start = -9; start <= 9; ++start)
    for (std::int64_t stop = -9; stop <= 9; ++stop)
      for (std::int64_t step = 1; step <= 4; ++step) {
        std::vector<std::int32_t> want;
        const auto bound = [](std::int64_t i) { return std::min<std::int64_t>(std::max<std::int64_t>(i < 0 ? i + 7 : i, 0), 7); };
        for (std::int64_t i = bound(start); i < bound(stop); i += step)
          for (int column = 0; column < 2; ++column) want.push_back(static_cast<std::int32_t>(2 * i + column));
        const Tensor y = slice(x, 0, start, stop, step);
        if (y.to_vector<std::int32_t>() != want) FAIL_CHECK(start << ":" << stop << ":" << step);
        if (!shares(x, y)) FAIL_CHECK("a copy");
      }
  CHECK(slice(x, 0, 2).size(0) == 5);
  CHECK(slice(x, -1, 1).to_vector<std::int32_t>() == std::vector<std::int32_t>{1, 3, 5, 7, 9, 11, 13});
}

TEST_CASE("Views share memory") {
  const Tensor x = count({2, 3, 4});
  CHECK(shares(x, transpose(x, 0, 2)));
  CHECK(shares(x, permute(x, {2, 0, 1})));
  CHECK(shares(x, select(x, 1, -1)));
  CHECK(shares(x, squeeze(unsqueeze(x, 1), 1)));
  CHECK(shares(x, squeeze(unsqueeze(x, 0))));
  CHECK(shares(x, broadcast_to(x, {5, 2, 3, 4})));
  CHECK(shares(x, expand(x, {5, -1, -1, -1})));
  CHECK(shares(x, flatten(x)));
  CHECK(shares(x, x.detach()));
  for (const Tensor& y : split(x, 1, 2)) CHECK(shares(x, y));
  for (const Tensor& y : unstack(x, 1)) CHECK(shares(x, y));
  CHECK(shares(x, sliding_window(x, 2, 2)));
  CHECK(sliding_window(x, 1, 2, 1).strides() == Strides{12, 4, 1, 4});
  CHECK_FALSE(shares(x, flatten(transpose(x, 0, 2))));
  CHECK(permute(x, {2, 0, 1}).strides() == Strides{1, 12, 4});
  CHECK(broadcast_to(select(x, 2, 0), {4, 2, 3}).strides() == Strides{0, 12, 4});
  CHECK(select(x, 1, 2).offset() == 8);
  // A write through one is seen through the other.
  const Tensor column = select(select(x, 2, 1), 0, 0);
  column.data<std::int32_t>()[0] = 77;
  CHECK(x.to_vector<std::int32_t>()[1] == 77);
}

TEST_CASE("Views keep all eight dimensions, and a ninth is an error") {
  const Tensor x = count(Shape::filled(8, 2));
  CHECK(permute(x, {7, 6, 5, 4, 3, 2, 1, 0}).to_vector<std::int32_t>()[1] == 128);
  CHECK(select(x, 7, 1).dims() == 7);
  CHECK_THROWS_AS(unsqueeze(x, 0), Error);
  CHECK(reshape(x, {-1}).size(0) == 256);
}

}  // namespace tern
