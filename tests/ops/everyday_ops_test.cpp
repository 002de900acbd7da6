// Cases of the everyday ops that the table cannot show: x[...], which is a member, numbers that are not finite, and the default device.
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "autodiff/engine.h"
#include "catch.h"
#include "op_cases.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"
#include "ops/index.h"
#include "ops/linalg.h"
#include "ops/loss.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/quantize.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
using Doubles = std::vector<double>;

/// 0, 1, 2, ... in f64.
Tensor count(const Shape& shape) { return reshape(arange(numel(shape), DType::f64), shape); }
Doubles list(const Tensor& x) { return op_cases::read(x).values; }
Tensor longs(const std::vector<std::int64_t>& values) { return Tensor::from(values, {static_cast<std::int64_t>(values.size())}); }
/// x[...] has these elements and this shape.
void check(const Tensor& got, const Shape& shape, const Doubles& want) {
  CHECK(to_string(got.shape()) == to_string(shape));
  CHECK(list(got) == want);
}

/// Most memory that f takes, for each of n elements.
template <class F>
double bytes_for_each(std::int64_t n, Device device, F&& f) {
  reset_peak_memory(device);
  const std::size_t before = memory_statistics(device).allocated;
  f();
  return static_cast<double>(memory_statistics(device).peak_allocated - before) / static_cast<double>(n);
}

/// Sums and products of narrow integers read them as they are, and to find elements takes a running sum.
void check_memory_of_counts(Device device) {
  const std::int64_t n = std::int64_t(1) << 21;
  const Tensor numbers = arange(n, DType::i64, device), bits = eq(remainder(numbers, 64), 5), few = cast(bits, DType::u8),
               wide = cast(bits, DType::i32);
  for (const Tensor& x : {bits, few, wide}) {
    INFO(name(x.dtype()));
    CHECK(bytes_for_each(n, device, [&] { CHECK(sum(x).item<std::int64_t>() == n / 64); }) < 0.5);
    // The rows of a tall matrix are added up in parts, more of them with more threads.
    CHECK(bytes_for_each(n, device, [&] { CHECK(sum(reshape(x, {n / 512, 512}), {0}).dtype() == DType::i64); }) < 1);
    CHECK(bytes_for_each(n, device, [&] { CHECK(prod(x).item<std::int64_t>() == 0); }) < 0.5);
    CHECK(bytes_for_each(n, device, [&] { CHECK(any(x).item<bool>()); }) < 0.5);
    CHECK(bytes_for_each(n, device, [&] { CHECK_FALSE(all(x).item<bool>()); }) < 0.5);
    CHECK(bytes_for_each(n, device, [&] { CHECK(cumsum(x, 0)[-1].item<std::int64_t>() == n / 64); }) < 8.5);
    // Beside the positions of a 64th, a flag for each element where x is not bool.
    CHECK(bytes_for_each(n, device, [&] {
            const Tensor found = nonzero(reshape(x, {n / 128, 2, 64}));
            CHECK(found.shape() == Shape{n / 64, 3});
            CHECK(list(found[-1]) == Doubles{double(n / 128 - 1), 1, 5});
          }) < (x.dtype() == DType::boolean ? 9 : 10));
    CHECK(bytes_for_each(n, device, [&] { CHECK(masked_select(x, bits).numel() == n / 64); }) < 9);
  }
  const Tensor rests = remainder(numbers, 7);
  // On a GPU additions at equal indices are put in order by sorting: the indices and their places, twice.
  CHECK(bytes_for_each(n, device, [&] { CHECK(bincount(rests).numel() == 7); }) < (device == cpu ? 0.5 : 17));
}

}  // namespace

TEST_CASE("Indexing takes numbers, slices, new dimensions and an ellipsis, as views") {
  const Tensor x = count({2, 3, 4});
  check(x[1], {3, 4}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
  check(x[-1][0], {4}, {12, 13, 14, 15});
  check(x[{1, 2, 3}], {}, {23});
  check(x[{0, Slice(1)}], {2, 4}, {4, 5, 6, 7, 8, 9, 10, 11});
  check(x[{Slice(), 1, Slice(1, -1)}], {2, 2}, {5, 6, 17, 18});
  check(x[{ellipsis, 0}], {2, 3}, {0, 4, 8, 12, 16, 20});
  check(x[{0, ellipsis, Slice({}, {}, 3)}], {3, 2}, {0, 3, 4, 7, 8, 11});
  check(x[{0, newaxis, 1, newaxis}], {1, 1, 4}, {4, 5, 6, 7});
  check(x[Slice(5)], {0, 3, 4}, {});
  CHECK(x[{0, Slice(1), 2}].data<double>() == x.data<double>() + 6);
  const NoGrad unrecorded;
  x[0] += 100;
  x[{1, 1}] *= 0;
  CHECK(list(x)[5] == 105);
  CHECK(list(x)[16] == 0);
  CHECK(list(x)[12] == 12);
}

TEST_CASE("Indexing takes masks and tensors of indices") {
  const Tensor x = count({2, 3, 4});
  check(x[longs({1, 0, -1})][{Slice(), 0, 0}], {3}, {12, 0, 12});
  check(x[{Slice(), longs({2, 0}), 1}], {2, 2}, {9, 1, 21, 13});
  check(x[{0, Tensor::from(std::vector<std::int64_t>{0, 1, 2, 0}, {2, 2}), 3}], {2, 2}, {3, 7, 11, 3});
  check(x[x > 20], {3}, {21, 22, 23});
  check(x[{Slice(), longs({0, 2}), longs({1, 3})}], {2, 2}, {1, 11, 13, 23});     // neighbours: in their place
  check(x[{longs({0, 1}), Slice(1, 3), longs({1, 3})}], {2, 2}, {5, 9, 19, 23});  // not: in front
  check(x[{longs({0, 1, 1}), Slice(0, 2), longs({0})}], {3, 2}, {0, 4, 12, 16, 12, 16});
  check(x[{Slice(), Tensor::from(std::vector<bool>{true, false, true}, {3}), 0}], {2, 2}, {0, 8, 12, 20});
  check(x[{ellipsis, Tensor::from(std::vector<bool>{false, false, false, true}, {4})}], {2, 3, 1}, {3, 7, 11, 15, 19, 23});
  check(x[{newaxis, 0, 0, Tensor::from(std::vector<std::int32_t>{1, -1}, {2})}], {1, 2}, {1, 3});
  check(x[x > 100], {0}, {});
}

TEST_CASE("Members of a tensor are the ops of their names, and a number may come first") {
  const Tensor x = count({2, 2});
  check(x.sum(), {}, {6});
  check(x.sum(1), {2}, {1, 5});
  check(x.mean(), {}, {1.5});
  check(x.reshape({4}), {4}, {0, 1, 2, 3});
  check(x.T(), {2, 2}, {0, 2, 1, 3});
  check(x.to(cpu), {2, 2}, {0, 1, 2, 3});
  CHECK(x.to(DType::f32).dtype() == DType::f32);
  check(maximum(1.5, x), {2, 2}, {1.5, 1.5, 2, 3});
}

TEST_CASE("Integers are whole: floor, ceil and round copy them") {
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    const Tensor x = cast(Tensor::from({3., 0., 7.}, {3}), dtype);
    for (const auto& f : {static_cast<Tensor (*)(const Tensor&)>(floor), static_cast<Tensor (*)(const Tensor&)>(ceil),
                          static_cast<Tensor (*)(const Tensor&)>(round)}) {
      const Tensor y = f(x);
      CHECK(y.dtype() == dtype);
      check(cast(y, DType::f64), {3}, {3, 0, 7});
      y += 1;
      check(cast(x, DType::f64), {3}, {3, 0, 7});
    }
  }
  CHECK_THROWS_WITH(floor(cast(Tensor::from({1., 0.}, {2}), DType::boolean)), "[floor] expected a floating dtype but got bool");
}

TEST_CASE("Ids of i32 are as good as those of i64") {
  const Tensor table = count({4, 2}), ids = Tensor::from(std::vector<std::int32_t>{3, 0, 3, 1}, {2, 2}), longs = cast(ids, DType::i64);
  const auto same = [](const Tensor& a, const Tensor& b) { return a.shape() == b.shape() && all(eq(a, b)).item<bool>(); };
  CHECK(same(embedding(table, ids), embedding(table, longs)));
  CHECK(same(embedding(cast(table, DType::f32), {}, ids), embedding(cast(table, DType::f32), {}, longs)));
  CHECK(same(one_hot(ids, 4), one_hot(longs, 4)));
  CHECK(list(bincount(reshape(ids, {4}))) == Doubles{1, 1, 0, 2});
  CHECK(list(bincount(cast(reshape(ids, {4}), DType::u8))) == Doubles{1, 1, 0, 2});
  const Tensor few = Tensor::from({3, 0, 3}, {3}), few_longs = cast(few, DType::i64);  // the dtype of C++'s own numbers
  CHECK(same(index_select(table, 0, few), index_select(table, 0, few_longs)));
  CHECK(same(index_add(table, 0, few, count({3, 2})), index_add(table, 0, few_longs, count({3, 2}))));
  CHECK(same(table[few], table[few_longs]));
  CHECK(same(gather(table, 0, ids), gather(table, 0, longs)));
  CHECK(same(scatter(table, 0, ids, count({2, 2})), scatter(table, 0, longs, count({2, 2}))));
  CHECK(same(scatter(table, 0, ids, 7.0), scatter(table, 0, longs, 7.0)));
  CHECK(same(scatter_add(table, 0, ids, count({2, 2})), scatter_add(table, 0, longs, count({2, 2}))));
  const Tensor copied = clone(table), copied_longs = clone(table);
  index_copy_(copied, 0, few, count({3, 2})), index_copy_(copied_longs, 0, few_longs, count({3, 2}));
  CHECK(same(copied, copied_longs));
  const Tensor logits = cast(reshape(count({16}), {2, 2, 4}), DType::f32), head = cast(count({4, 4}), DType::f32);
  CHECK(same(cross_entropy(logits, ids), cross_entropy(logits, longs)));
  CHECK(same(cross_entropy(logits, ids, {.ignore_index = 3}), cross_entropy(logits, longs, {.ignore_index = 3})));
  CHECK(same(nll_loss(log_softmax(logits), ids), nll_loss(log_softmax(logits), longs)));
  CHECK(same(linear_cross_entropy(logits, head, {}, ids), linear_cross_entropy(logits, head, {}, longs)));
  const QuantizedWeight quantized = quantize(head, QuantFormat::int8);
  CHECK(same(quantized_embedding(quantized, ids, DType::f32), quantized_embedding(quantized, longs, DType::f32)));
  // Gradients go back through the indices that were cast.
  for (const Tensor& index : {ids, longs}) {
    const Tensor x = zeros({4, 2}, DType::f32).set_requires_grad();
    sum(gather(x, 0, index) * 2.0).backward();
    CHECK(list(x.grad()) == Doubles{0, 2, 0, 2, 0, 0, 4, 0});
  }
  for (const DType dtype : {DType::u8, DType::f32, DType::boolean}) {
    CHECK_THROWS_WITH(gather(table, 0, cast(ids, dtype)), std::string("[gather] expected indices of i64 or i32 but got ") + name(dtype));
    CHECK_THROWS_WITH(cross_entropy(logits, cast(ids, dtype)),
                      std::string("[cross_entropy] expected indices of i64 or i32 but got ") + name(dtype));
  }
}

TEST_CASE("Bits of i64 beyond 2^53 are exact") {
  const std::int64_t large = (std::int64_t{1} << 62) + 5, other = (std::int64_t{1} << 61) + 4;
  const Tensor x = Tensor::from(std::vector<std::int64_t>{large, -large}, {2});
  const auto values = [](const Tensor& y) { return y.to_vector<std::int64_t>(); };
  CHECK(values(x & other) == std::vector<std::int64_t>{large & other, -large & other});
  CHECK(values(x | other) == std::vector<std::int64_t>{large | other, -large | other});
  CHECK(values(x ^ other) == std::vector<std::int64_t>{large ^ other, -large ^ other});
  CHECK(values(~x) == std::vector<std::int64_t>{~large, ~-large});
  CHECK(values(x >> 3) == std::vector<std::int64_t>{large >> 3, -large >> 3});
  CHECK(values((x & (x - 1)) & Tensor::scalar(std::int64_t{7})) == std::vector<std::int64_t>{4, (-large & (-large - 1)) & 7});
  const Tensor narrow = Tensor::from(std::vector<std::int32_t>{-8}, {1});
  CHECK((narrow | x[{Slice(0, 1)}]).dtype() == DType::i64);
  CHECK((narrow << 1).dtype() == DType::i32);
  CHECK(
      (Tensor::from(std::vector<bool>{true, false}, {2}) ^ Tensor::from(std::vector<std::uint8_t>{3, 3}, {2})).to_vector<std::uint8_t>() ==
      std::vector<std::uint8_t>{2, 3});
}

TEST_CASE("Index::apply is x[...] for a number of indices that is known when the program runs") {
  const Tensor x = reshape(arange(24), {2, 3, 4});
  CHECK(Index::apply(x, {}).shape() == x.shape());
  const std::vector<Index> indices = {1, ellipsis, Slice(1, 3)};
  for (std::size_t count = 0; count <= indices.size(); ++count) {
    const Tensor y = Index::apply(x, std::span(indices).first(count));
    const Tensor expected = count == 0 ? x : count == 1 ? x[1] : count == 2 ? x[{1, ellipsis}] : x[{1, ellipsis, Slice(1, 3)}];
    CHECK(y.shape() == expected.shape());
    CHECK(y.view().data == expected.view().data);
  }
}

TEST_CASE("Indexing says which index was wrong") {
  const Tensor x = count({2, 3});
  CHECK_THROWS_WITH((x[{0, 1, 2}]),
                    "[index] expected indices for at most 2 dimensions and at most one ellipsis but got 3 and 0 for (2, 3)");
  CHECK_THROWS_AS((x[{ellipsis, 0, ellipsis}]), Error);
  CHECK_THROWS_AS(x[2], Error);
  CHECK_THROWS_WITH(x[Tensor::from(std::vector<bool>{true}, {1})],
                    "[index] expected a mask of x's shape (2, 3) from dimension 0 on but got (1,)");
  CHECK_THROWS_WITH(x[count({2})], "[index] expected an index tensor of i64, i32 or bool but got f64");
  CHECK_THROWS_AS(x[longs({2})], Error);
  CHECK_THROWS_AS(x[longs({-3})], Error);
  // Outside of one dimension, and inside of the product of both.
  CHECK_THROWS_AS((x[{longs({0}), longs({4})}]), Error);
  CHECK_THROWS_AS((x[{longs({0, 1}), longs({0, 1, 2})}]), Error);
}

TEST_CASE("Gradients flow through indexing") {
  const auto check_gradient = [](const TensorFunction& f) {
    Tensor x = count({2, 3, 4}).set_requires_grad();
    const GradcheckResult result = gradcheck(f, {x});
    INFO(result.message);
    CHECK(bool(result));
  };
  check_gradient([](const Tensors& x) -> Tensors { return {square(x[0][{ellipsis, Slice(1, 3)}])}; });
  check_gradient([](const Tensors& x) -> Tensors { return {square(x[0][{longs({0, 0, 1}), Slice(), longs({1, 1, -1})}])}; });
  check_gradient([](const Tensors& x) -> Tensors { return {square(x[0][count({2, 3, 4}) > 8])}; });
}

// A write that would be lost does not compile; one to a named handle does.
static_assert(!std::is_assignable_v<Tensor, Tensor> && std::is_assignable_v<Tensor&, Tensor>);

TEST_CASE("x += y edits the memory that handles share, and refuses history") {
  const Tensor x = count({3}), same = x;
  x += x;
  x -= 1;
  x *= longs({1, 2, 3}).to(DType::f64);
  x /= 2;
  CHECK(list(same) == Doubles{-0.5, 1, 4.5});
  Tensor parameter = count({3}).set_requires_grad();
  CHECK_THROWS_AS(parameter += 1, Error);
  CHECK_THROWS_AS(x += parameter * 2, Error);
}

TEST_CASE("New tensors are made on the default device, and a scope changes it for its thread") {
  CHECK(default_device() == cpu);
  {
    const DeviceScope scope(cuda(63));
    CHECK(default_device() == cuda(63));
    // No machine has it: each says so, or that the build has no CUDA.
    CHECK_THROWS_AS(zeros({2}), Error);
    CHECK_THROWS_AS(randn({2}), Error);
    CHECK_THROWS_AS(arange(3), Error);
    CHECK_THROWS_AS(eye(2), Error);
    CHECK_THROWS_AS(Tensor::from({1.f}, {1}), Error);
    CHECK(zeros({2}, cpu).device() == cpu);
    CHECK(ones({2}, {.dtype = DType::f64, .device = cpu}).dtype() == DType::f64);
    CHECK((ones({2}, cpu) + 1).device() == cpu);
    {
      const DeviceScope inner(cpu);
      CHECK(zeros({2}).device() == cpu);
    }
    CHECK(default_device() == cuda(63));
  }
  CHECK(default_device() == cpu);
}

TEST_CASE("NaN and infinities are found, in every floating dtype") {
  for (const DType dtype : op_cases::floats) {
    const Tensor x = cast(Tensor::from(Doubles{1, nan, infinity, -infinity, 0}, {5}), dtype);
    CHECK(list(isnan(x)) == Doubles{0, 1, 0, 0, 0});
    CHECK(list(isinf(x)) == Doubles{0, 0, 1, 1, 0});
    CHECK(list(isfinite(x)) == Doubles{1, 0, 0, 0, 1});
  }
  const Tensor a = Tensor::from(Doubles{nan, infinity, infinity, -infinity, 1}, {5}),
               b = Tensor::from(Doubles{nan, infinity, -infinity, 1, infinity}, {5});
  CHECK(list(isclose(a, b)) == Doubles{0, 1, 0, 0, 0});
  CHECK(list(isclose(a, b, 1e-5, 1e-8, true)) == Doubles{1, 1, 0, 0, 0});
  CHECK_FALSE(allclose(a, a));
  CHECK(allclose(a, a, 1e-5, 1e-8, true));
  CHECK(list(round(Tensor::from(Doubles{0.5, 1.5, -2.5}, {3}))) == Doubles{0, 2, -2});
  CHECK(list(elu(Tensor::from(Doubles{1000, -1000}, {2}))) == Doubles{1000, -1});
  const Unique y = unique(Tensor::from(Doubles{nan, 2, nan, 2}, {4}));
  CHECK(list(y.counts) == Doubles{2, 1, 1});
}

TEST_CASE("Losses are finite at their ends") {
  const Tensor logits = Tensor::from(Doubles{1e4, -1e4, 1e4}, {3}).set_requires_grad(), targets = Tensor::from(Doubles{1, 0, 0}, {3});
  const Tensor loss = binary_cross_entropy_with_logits(logits, targets, {.reduction = Reduction::none});
  CHECK(list(loss) == Doubles{0, 0, 1e4});
  CHECK(list(grad({sum(loss)}, {logits})[0]) == Doubles{0, 0, 1});
  const Tensor zero = zeros({1}, DType::f64).set_requires_grad();
  CHECK(list(grad({binary_cross_entropy_with_logits(zero, ones({1}, DType::f64))}, {zero})[0]) == Doubles{-0.5});
  CHECK(list(binary_cross_entropy(targets, targets, {.reduction = Reduction::none})) == Doubles{0, 0, 0});
  const Tensor p = Tensor::from(Doubles{0, 1}, {2}), log_q = Tensor::from(Doubles{-infinity, 0}, {2});
  CHECK(list(kl_div(log_q, p, {.reduction = Reduction::none})) == Doubles{0, 0});
  // An ignored row's infinity does not reach the loss.
  const Tensor rows = Tensor::from(Doubles{-infinity, nan, -1, -2}, {2, 2});
  CHECK(nll_loss(rows, longs({-100, 1})).item<double>() == 2);
}

TEST_CASE("Derivatives where a root or a power has none") {
  const Tensor x = zeros({3}, DType::f64).set_requires_grad();
  CHECK(list(grad({norm(x)}, {x})[0]) == Doubles{0, 0, 0});
  CHECK(list(grad({stddev(x)}, {x})[0]) == Doubles{0, 0, 0});
  const Tensor y = Tensor::from(Doubles{2, 0, 3}, {3}).set_requires_grad();
  CHECK(list(grad({sum(cumprod(y, 0))}, {y})[0]) == Doubles{1, 8, 0});
}

TEST_CASE("A cumulative maximum stays NaN, and has its gradient at the last of equal elements, or NaN") {
  const Tensor x = Tensor::from(Doubles{1, 3, 3, 2, nan, 5, nan, 7}, {8}).set_requires_grad();
  const Tensor y = cummax(x, 0), weights = Tensor::from(Doubles{1, 2, 4, 8, 16, 32, 64, 128}, {8});
  CHECK(list(slice(y, 0, 0, 4)) == Doubles{1, 3, 3, 3});
  CHECK(list(cast(isnan(y), DType::f64)) == Doubles{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(list(grad({y}, {x}, {weights})[0]) == Doubles{1, 2, 12, 0, 48, 0, 192, 0});
}

TEST_CASE("Counts of narrow integers and of flags take no memory for wide copies") { check_memory_of_counts(cpu); }
TEST_CASE("Counts of narrow integers and of flags take no memory for wide copies, on a GPU", "[cuda]") { check_memory_of_counts(cuda()); }

TEST_CASE("Indexing, new tensors and linear algebra on a GPU", "[cuda]") {
  const DeviceScope scope(cuda());
  const Tensor x = reshape(arange(24, DType::f64), {2, 3, 4});
  CHECK(x.device() == cuda());
  CHECK(Tensor::from({1.f, 2.f}, {2}).device() == cuda());
  check(x[{Slice(), 1, Slice(1, -1)}], {2, 2}, {5, 6, 17, 18});
  check(x[x > 20], {3}, {21, 22, 23});
  check(x[{Slice(), longs({0, 2}), longs({1, -1})}], {2, 2}, {1, 11, 13, 23});
  check(x[{longs({5}), longs({0}), longs({0})}], {1}, {0});  // outside reads as 0 there
  x[0] += 100;
  CHECK(list(x)[11] == 111);
  CHECK(allclose(x, x));
  if (!has_linalg(cuda())) return;
  const Tensor a = Tensor::from({4., 1., 1., 3.}, {2, 2}).set_requires_grad();
  CHECK(inverse(a).device() == cuda());
  const Tensor slope = grad({det(a)}, {a})[0];
  CHECK(slope.device() == cuda());
  const Doubles want = {3, -1, -1, 4};
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(list(slope)[i] == Approx(want[i]));
}

}  // namespace tern
