// NaN, infinities, signed zeros and indices out of range, on either device.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "autodiff/engine.h"
#include "catch.h"
#include "message.h"
#include "op_cases.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"

namespace tern::op_cases {

namespace {

using Doubles = std::vector<double>;
Doubles list(const Tensor& x) { return read(x).values; }

/// "" where results are as expected: bits of what is no number, and other numbers but for their rounding.
std::string unlike(const Tensor& got, const Doubles& want, double tolerance = 0) {
  return difference(read(got), reference::Array{got.shape(), got.dtype(), want}, {tolerance, 0});
}

/// Rows of which all but the first three elements are 1, so that no part of a product underflows; one is -inf throughout.
void check_reductions(Device device) {
  constexpr std::int64_t length = 300;
  const Doubles begins[] = {{NAN, 1, 2},        {INFINITY, 1, 2}, {-INFINITY, -INFINITY, -INFINITY}, {INFINITY, -INFINITY, 0},
                            {1, NAN, INFINITY}, {-INFINITY, 3, 1}};
  Doubles values, sums, products, maxima, minima, logarithms, largest, smallest;
  for (const Doubles& begin : begins) {
    Doubles row(length, std::isinf(begin[2]) ? begin[2] : 1);
    std::copy(begin.begin(), begin.end(), row.begin());
    values.insert(values.end(), row.begin(), row.end());
    const auto first_nan = std::find_if(row.begin(), row.end(), [](double x) { return std::isnan(x); });
    const bool has_nan = first_nan != row.end();
    const auto most = has_nan ? first_nan : std::max_element(row.begin(), row.end());
    const auto least = has_nan ? first_nan : std::min_element(row.begin(), row.end());
    sums.push_back(std::accumulate(row.begin(), row.end(), 0.0));
    products.push_back(std::accumulate(row.begin(), row.end(), 1.0, std::multiplies<>()));
    maxima.push_back(*most), minima.push_back(*least);
    largest.push_back(double(most - row.begin())), smallest.push_back(double(least - row.begin()));
    double total = 0;
    for (const double x : row) total += std::exp(x - (std::isinf(*most) ? 0 : *most));
    logarithms.push_back((std::isinf(*most) ? 0 : *most) + std::log(total));
  }
  for (const DType dtype : floats)
    for (const bool by_columns : {false, true}) {
      INFO(name(dtype) << (by_columns ? " by columns" : " by rows"));
      const Tensor rows = cast(Tensor::from(values, {std::ssize(begins), length}, device), dtype);
      const Tensor x = by_columns ? contiguous(transpose(rows, 0, 1)) : rows;
      const int dim = by_columns ? 0 : 1;
      CHECK(unlike(sum(x, {dim}), sums, 1e-2) == "");
      CHECK(unlike(prod(x, {dim}), products, 1e-2) == "");
      CHECK(unlike(max(x, {dim}), maxima) == "");
      CHECK(unlike(min(x, {dim}), minima) == "");
      CHECK(unlike(logsumexp(x, {dim}), logarithms, 1e-2) == "");
      CHECK(unlike(argmax(x, dim), largest) == "");
      CHECK(unlike(argmin(x, dim), smallest) == "");
      CHECK(list(any(x, {dim})) == Doubles(std::size(begins), 1));
    }
  for (const DType dtype : floats) {
    const Tensor nothing = zeros({3, 0}, dtype, device);
    CHECK(list(sum(nothing, {1})) == Doubles{0, 0, 0});
    CHECK(list(prod(nothing, {1})) == Doubles{1, 1, 1});
    CHECK(list(logsumexp(nothing, {1})) == Doubles(3, -INFINITY));
  }
}

/// Equal elements keep their order, zeros of either sign are equal, and NaN of either sign is largest.
void check_sort(Device device) {
  for (const DType dtype : floats)
    for (const std::int64_t n : {33, 1025, 20000})
      for (const bool descending : {false, true}) {
        INFO(name(dtype) << " " << n << (descending ? " descending" : ""));
        Tensor x = make_input(whole({n}, -50, 50), dtype, 1);
        const Doubles special = {NAN, -NAN, 0.0, -0.0, -INFINITY, INFINITY};
        for (std::int64_t i = 0; i < n; i += 5) fill_(select(x, 0, i), special[std::size_t(i / 5) % special.size()]);
        const Doubles values = list(x);
        std::vector<std::size_t> order(values.size());
        std::iota(order.begin(), order.end(), 0);
        const auto less = [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
          return descending ? less(values[b], values[a]) : less(values[a], values[b]);
        });
        Doubles sorted;
        for (const std::size_t i : order) sorted.push_back(values[i]);
        const Sorted y = sort(to(x, device), 0, descending);
        CHECK(unlike(y.values, sorted) == "");
        CHECK(list(y.indices) == Doubles(order.begin(), order.end()));
      }
}

/// What does not fit into integers goes to their ends, and NaN to 0.
void check_casts(Device device) {
  const Doubles values = {0, -0.0, 1e30, NAN, INFINITY, 3.99, -1e30, -INFINITY, -2.7};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor x = cast(Tensor::from(values, {9}, device), dtype);
    const double high = 0x1p31 - 1, low = -0x1p31;
    CHECK(list(cast(x, DType::i32)) == Doubles{0, 0, high, 0, high, 3, low, low, -2});
    CHECK(list(cast(x, DType::i64)) == Doubles{0, 0, 0x1p63, 0, 0x1p63, 3, -0x1p63, -0x1p63, -2});
    CHECK(list(cast(slice(x, 0, 0, 6), DType::u8)) == Doubles{0, 0, 255, 0, 255, 3});
    CHECK(list(cast(x, DType::boolean)) == Doubles{0, 0, 1, 1, 1, 1, 1, 1, 1});
  }
}

/// A NaN spoils its own row alone, also in the sums and gradients of fused norms.
void check_rows_with_nan(Device device) {
  const std::function<Tensor(const Tensor&)> functions[] = {
      [](T x) { return layer_norm(x, {}, {}); }, test::plain([](T x) { return layer_norm(x, {}, {}); }),
      [](T x) { return rms_norm(x, {}); },       test::plain([](T x) { return rms_norm(x, {}); }),
      [](T x) { return softmax(x, 1); },         [](T x) { return log_softmax(x, 1); }};
  for (const DType dtype : floats)
    for (const std::int64_t length : {40, 1025, 8200})
      for (std::size_t f = 0; f < std::size(functions); ++f) {
        INFO(name(dtype) << " " << length << ", function " << f);
        Tensor x = to(make_input(value({3, length}), dtype, 1), device);
        fill_(select(select(x, 0, 1), 0, 7), NAN);
        x.set_requires_grad();
        const Tensor y = functions[f](x);
        const Doubles results = list(y), gradients = list(grad({y}, {x}, {ones_like(y)})[0]);
        const auto are_nan = [&](const Doubles& of) {
          return std::ranges::all_of(std::views::iota(std::int64_t(0), 3 * length),
                                     [&](std::int64_t i) { return std::isnan(of[std::size_t(i)]) == (i / length == 1); });
        };
        CHECK(are_nan(results));
        CHECK(are_nan(gradients));
      }
}

/// Of logits far from zero, with masked classes, and one class alone. The gradient is finite.
void check_far_logits(Device device) {
  constexpr std::int64_t classes = 3000;
  for (const double offset : {-1000.0, 1000.0, 3e4, 1e12, 1e30}) {
    INFO(offset);
    Tensor x = cast(make_input(value({4, classes}, -6, 6), DType::f64, 1) + offset, DType::f32);
    fill_(slice(select(x, 0, 1), 0, 0, classes, 2), -INFINITY);
    fill_(slice(select(x, 0, 2), 0, 1), -INFINITY);
    const std::vector<std::int64_t> targets = {7, 1, 0, 2999};
    x = to(x, device).set_requires_grad();
    const Tensor losses = cross_entropy(x, Tensor::from(targets, {4}, device), {.reduction = Reduction::none});
    const Doubles logits = list(x), got = list(losses), gradient = list(grad({losses}, {x}, {ones_like(losses)})[0]);
    for (std::size_t r = 0; r < 4; ++r) {
      const auto begin = logits.begin() + std::ptrdiff_t(r) * classes, end = begin + classes;
      const double top = *std::max_element(begin, end);
      double total = 0;
      for (auto logit = begin; logit != end; ++logit) total += std::exp(*logit - top);
      CHECK(got[r] == Approx(std::log(total) + top - begin[targets[r]]).epsilon(1e-6).margin(3e-7 * std::abs(offset)));
      for (auto logit = begin; logit != end; ++logit) {
        const double expected = std::exp(*logit - top) / total - (logit - begin == targets[r]);
        if (std::abs(gradient[std::size_t(logit - logits.begin())] - expected) > 1e-6 * std::max(1.0, 0.3 * std::abs(offset)))
          FAIL_CHECK("gradient of row " << r);
      }
      if (std::any_of(gradient.begin(), gradient.end(), [](double g) { return !std::isfinite(g); }))
        FAIL_CHECK("a gradient that is not finite");
    }
  }
}

}  // namespace

TEST_CASE("cross_entropy of logits far from zero is that of their distances") { check_far_logits(cpu); }
TEST_CASE("cross_entropy of logits far from zero is that of their distances, on a GPU", "[cuda]") { check_far_logits(cuda()); }
TEST_CASE("cross_entropy on a GPU of a target out of range is NaN, and so is that of a NaN among the logits", "[cuda]") {
  const DeviceScope scope(cuda());
  const Tensor x = to(make_input(value({4, 5}), DType::f32, 1), cuda());
  fill_(select(select(x, 0, 3), 0, 2), NAN);
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{5, -1, 4, 0}, {4});
  const Doubles losses = list(cross_entropy(x, targets, {.reduction = Reduction::none}));
  for (const std::size_t r : {0, 1, 2, 3}) CHECK(std::isnan(losses[r]) == (r != 2));
}
TEST_CASE("A NaN spoils its own row of a norm or softmax alone") { check_rows_with_nan(cpu); }
TEST_CASE("A NaN spoils its own row of a norm or softmax alone, on a GPU", "[cuda]") { check_rows_with_nan(cuda()); }
TEST_CASE("Reductions of rows and columns with NaN, infinities and nothing are those of their numbers") { check_reductions(cpu); }
TEST_CASE("Reductions on a GPU with NaN, infinities and nothing are those of their numbers", "[cuda]") { check_reductions(cuda()); }
TEST_CASE("sort of NaN, infinities and zeros of either sign is stable, with NaN largest") { check_sort(cpu); }
TEST_CASE("sort of NaN, infinities and zeros of either sign is stable on a GPU, with NaN largest", "[cuda]") { check_sort(cuda()); }
TEST_CASE("Casts to integers keep floats within their bounds") { check_casts(cpu); }
TEST_CASE("Casts to integers keep floats within their bounds on a GPU", "[cuda]") { check_casts(cuda()); }

TEST_CASE("Pointwise functions of special values on a GPU are the CPU's", "[cuda]") {
  const Doubles values = {0, -0.0, NAN, INFINITY, -INFINITY, 1, -1, 60000};
  const auto n = std::ssize(values);
  using Function = std::function<Tensor(const Tensor&, const Tensor&)>;  // of a value for each row, and of one for each column
  const std::vector<Function> functions = {[](T x, T) { return neg(x); },
                                           [](T x, T) { return abs(x); },
                                           [](T x, T) { return sign(x); },
                                           [](T x, T) { return exp(x); },
                                           [](T x, T) { return log(x); },
                                           [](T x, T) { return sqrt(x); },
                                           [](T x, T) { return relu(x); },
                                           [](T x, T) { return sigmoid(x); },
                                           [](T x, T) { return tanh(x); },
                                           [](T x, T) { return clamp(x, -0.5, 0.75); },
                                           [](T x, T) { return gelu(x); },
                                           [](T a, T b) { return minimum(a, b); },
                                           [](T a, T b) { return maximum(a, b); },
                                           [](T a, T b) { return a / b; },
                                           [](T a, T b) { return pow(a, b); },
                                           [](T a, T b) { return lt(a, b); },
                                           [](T a, T b) { return ge(a, b); },
                                           [](T a, T) { return eq(a, NAN); },
                                           [](T a, T) { return gt(a, -INFINITY); },
                                           [](T a, T) { return le(1e12, a); },
                                           [](T a, T b) { return where(gt(a, b), a, -INFINITY); }};
  for (std::size_t i = 0; i < functions.size(); ++i)
    for (const DType dtype : floats) {
      INFO("function " << i << " of " << name(dtype));
      const Tensor x = cast(Tensor::from(values, {n}), dtype), a = contiguous(broadcast_to(reshape(x, {n, 1}), {n, n})),
                   b = contiguous(broadcast_to(x, {n, n}));
      CHECK(difference(functions[i](to(a, cuda()), to(b, cuda())), functions[i](a, b), tolerance(dtype, 4, 2)) == "");
    }
}

TEST_CASE("An index out of range throws before anything is written") {
  const Tensor x = make_input(value({2, 3, 4}), DType::f32, 0), before = clone(x);
  const Tensor index = Tensor::from(std::vector<std::int64_t>{1, 3}, {2});
  CHECK(message_of([&] { index_copy_(x, 1, index, zeros({2, 2, 4})); }) == "[index_copy_] expected indices from 0 to 2 but got 3");
  CHECK(message_of([&] { index_add(x, 1, index, zeros({2, 2, 4})); }) == "[index_add] expected indices from 0 to 2 but got 3");
  CHECK(message_of([&] { index_select(x, 1, index); }) == "[index_select] expected indices from 0 to 2 but got 3");
  const Tensor places = full({2, 3, 1}, -1, DType::i64);
  CHECK(message_of([&] { gather(x, 2, places); }) == "[gather] expected indices from 0 to 3 but got -1");
  CHECK(message_of([&] { scatter_add(x, 2, places, zeros({2, 3, 1})); }) == "[scatter_add] expected indices from 0 to 3 but got -1");
  CHECK(list(x) == list(before));
}

TEST_CASE("An index out of range reads zero and writes nothing on a GPU", "[cuda]") {
  const DeviceScope scope(cuda());
  const Tensor index = Tensor::from(std::vector<std::int64_t>{-1, 3, 2, std::int64_t(9e15)}, {4}), x = Tensor::from({5., 6., 7.}, {3}),
               source = Tensor::from({1., 2., 3., 4.}, {4});
  CHECK(list(gather(x, 0, index)) == Doubles{0, 0, 7, 0});
  CHECK(list(index_select(x, 0, index)) == Doubles{0, 0, 7, 0});
  CHECK(list(index_add(x, 0, index, source)) == Doubles{5, 6, 10});
  CHECK(list(scatter_add(x, 0, index, source)) == Doubles{5, 6, 10});
}

}  // namespace tern::op_cases
