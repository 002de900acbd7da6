// Products of integers, which the CPU alone multiplies: by plain loops, and at the ends of the range.
#include <limits>

#include "catch.h"
#include "op_cases.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::op_cases {

namespace {

/// a (B, M, K) times b (B, K, N) by the definition.
std::vector<double> product(const Tensor& a, const Tensor& b) {
  const reference::Array x = read(a), y = read(b);
  std::vector<double> z;
  for (std::int64_t n = 0; n < a.size(0); ++n)
    for (std::int64_t i = 0; i < a.size(1); ++i)
      for (std::int64_t j = 0; j < b.size(2); ++j) {
        double total = 0;
        for (std::int64_t k = 0; k < a.size(2); ++k) total += x({n, i, k}) * y({n, k, j});
        z.push_back(reference::held(a.dtype(), total));
      }
  return z;
}

}  // namespace

TEST_CASE("matmul multiplies integers, whatever the strides (CPU)") {
  for (const DType dtype : integers)
    for (const std::int64_t m : {0, 1, 3, 33})
      for (const std::int64_t k : {0, 1, 5, 31})
        for (const std::int64_t n : {1, 4, 33})
          for (const Layout layout : layouts) {
            INFO(name(dtype) << " " << m << " " << k << " " << n << " " << name(layout));
            const Tensor a = with_layout(make_input(value({2, m, k}, -9, 9), dtype, 0), layout);
            const Tensor b = with_layout(make_input(value({2, k, n}, -9, 9), dtype, 1), layout);
            const Tensor c = matmul(a, b);
            CHECK(c.dtype() == dtype);
            CHECK(read(c).values == product(a, b));
            CHECK(read(matmul(a, b[0])).values == product(a, broadcast_to(b[0], b.shape())));
            CHECK(read(einsum("bij,bjk->bik", {a, b})).values == product(a, b));
          }
  CHECK(matmul(sample({3}, DType::i64), sample({3}, DType::i64)).shape() == Shape{});
}

TEST_CASE("Products of integers wrap") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  const Tensor a = Tensor::from(std::vector<std::int64_t>{most, least, 3, -1}, {2, 2});
  // (2^63 - 1)^2 - 2^63 3 = 1 - 2^63, modulo 2^64.
  CHECK(matmul(a, a).to_vector<std::int64_t>() == std::vector<std::int64_t>{least + 1, 0, most - 5, least + 1});
  const Tensor b = Tensor::from(std::vector<std::int32_t>{1 << 20, 1 << 20}, {2});
  CHECK(dot(b, b).item<std::int32_t>() == 0);
  CHECK(read(matmul(full({1, 2}, 100, DType::u8), full({2, 1}, 100, DType::u8))).values == std::vector<double>{20000 % 256});
  // Of i32 and u8 the products are i64.
  CHECK(cumprod(b, 0).to_vector<std::int64_t>() == std::vector<std::int64_t>{1 << 20, std::int64_t{1} << 40});
  CHECK(prod(full({9}, 255, DType::u8)).dtype() == DType::i64);
  CHECK(prod(full({64}, 2, DType::i64)).item<std::int64_t>() == 0);
  CHECK(cumprod(full({64}, 2, DType::i64), 0)[62].item<std::int64_t>() == least);
}

}  // namespace tern::op_cases
