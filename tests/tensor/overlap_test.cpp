// Whether windows share memory: against the list of their elements.
#include <algorithm>
#include <random>
#include <set>

#include "catch.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/view.h"
#include "tensor/tensor.h"

namespace tern {

namespace {

std::vector<std::int64_t> places(const Tensor& x) {
  std::vector<std::int64_t> result{x.offset()};
  for (int d = 0; d < x.dims(); ++d) {
    std::vector<std::int64_t> next;
    for (std::int64_t at : result)
      for (std::int64_t i = 0; i < x.shape()[d]; ++i) next.push_back(at + i * x.strides()[d]);
    result = next;
  }
  return result;
}

}  // namespace

TEST_CASE("Overlap is what the elements' places say") {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  const Tensor base = zeros({400});
  const auto window = [&] {
    while (true) {
      Shape shape;
      Strides strides;
      for (std::int64_t d = below(4); d-- > 0;) {
        shape.push_back(1 + below(5));
        strides.push_back(below(20) - 6);
      }
      try {
        return base.window(shape, strides, below(400));
      } catch (const Error&) {  // it left the storage
      }
    }
  };
  int partial = 0, none = 0;
  for (int round = 0; round < 20000; ++round) {
    const Tensor a = window(), b = window();
    auto in_a = places(a), in_b = places(b);
    const bool is_whole = a.shape() == b.shape() && in_a == in_b;
    std::sort(in_a.begin(), in_a.end());
    std::sort(in_b.begin(), in_b.end());
    const bool repeats = std::adjacent_find(in_a.begin(), in_a.end()) != in_a.end();
    std::vector<std::int64_t> both;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(both));
    CAPTURE(a.shape(), a.strides(), a.offset(), b.shape(), b.strides(), b.offset());
    REQUIRE(overlap(a) == (repeats ? Overlap::partial : Overlap::none));
    if (is_whole) REQUIRE(overlap(a, b) != Overlap::none);
    else REQUIRE(overlap(a, b) == (both.empty() ? Overlap::none : Overlap::partial));
    (both.empty() ? none : partial) += 1;
  }
  CHECK(partial > 500);
  CHECK(none > 2000);
  CHECK(overlap(base, base) == Overlap::whole);
  CHECK(overlap(base, zeros({400})) == Overlap::none);
}

TEST_CASE("Windows of a large tensor are told apart at once") {
  const Tensor x = zeros({1 << 20, 8});
  CHECK(overlap(slice(x, 1, 0, 3), slice(x, 1, 3, 6)) == Overlap::none);
  CHECK(overlap(slice(x, 1, 0, 4), slice(x, 1, 3, 7)) == Overlap::partial);
  CHECK(overlap(slice(x, 0, 0, std::nullopt, 2), slice(x, 0, 1, std::nullopt, 2)) == Overlap::none);
  CHECK(overlap(transpose(x, 0, 1)) == Overlap::none);
}

TEST_CASE("In-place ops refuse operands that share memory") {
  const Tensor x = cast(reshape(arange(9), {3, 3}), DType::f32);
  const std::vector<float> before = x.to_vector<float>();
  CHECK_THROWS_AS(copy_(x, transpose(x, 0, 1)), Error);
  CHECK_THROWS_AS(add_(slice(x, 0, 1), slice(x, 0, 0, 2)), Error);
  CHECK_THROWS_AS(copy_(slice(x, 0, 1), slice(x, 0, 0, 2)), Error);
  CHECK_THROWS_AS(add_(x, slice(x, 0, 0, 1)), Error);  // broadcast: its row is written before the others read it
  CHECK_THROWS_AS(fill_(x.window({4, 2}, {1, 1}, 0), 1), Error);
  CHECK_THROWS_AS(add_(broadcast_to(slice(x, 0, 0, 1), {3, 3}), 1), Error);
  CHECK(x.to_vector<float>() == before);
  CHECK(x.version() == 0);
  // The same window, and windows side by side.
  add_(x, x);
  copy_(x, x);
  copy_(select(x, 1, 0), select(x, 1, 2));
  mul_(transpose(x, 0, 1), transpose(x, 0, 1));
  CHECK(x.to_vector<float>() == std::vector<float>{16, 4, 16, 100, 64, 100, 256, 196, 256});
}

}  // namespace tern
