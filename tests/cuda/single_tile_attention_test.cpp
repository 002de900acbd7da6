#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/attention.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"

namespace tern {

namespace {

/// Of qkv (B, T, 3, H, D), as a projection writes it.
Tensor self_attention(const Tensor& qkv, const AttentionParams& params, bool fused) {
  const Tensors parts = unstack(qkv, 2);
  return (fused ? fused_scaled_dot_product_attention : scaled_dot_product_attention)(parts[0], parts[1], parts[2], params);
}

/// |a - b| / |b|, in float64.
double distance(const Tensor& a, const Tensor& b) {
  const Tensor x = cast(a.detach(), DType::f64), y = cast(b.detach(), DType::f64);
  return std::sqrt(sum(square(x - y)).item<double>() / sum(square(y)).item<double>());
}

/// Self attention of x, and the gradient of x for g.
Tensors results_of(const Tensor& x_, const Tensor& g, const AttentionParams& params, bool fused) {
  Tensor x = clone(x_);
  x.set_requires_grad();
  manual_seed(11);
  const Tensor y = self_attention(x, params, fused);
  y.backward(g);
  return {y, x.grad()};
}

}  // namespace

TEST_CASE("fused self attention is the composition, dropout and gradients included", "[cuda]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t head_dim : {32, 64})
      for (const std::int64_t length : {1, 2, 3, 31, 40, 43, 45, 63, 64, 70})
        for (const double p : {0.0, 0.3}) {
          INFO(fmt::format("{} D {} T {} dropout {}", name(dtype), head_dim, length, p));
          manual_seed(7);
          const Tensor qkv = randn({3, length, 3, 2, head_dim}, 0, 1, DType::f32, cuda());
          const Tensor g = randn({3, length, 2, head_dim}, 0, 1, DType::f32, cuda());
          const Tensor prefix = to(Tensor::from(std::vector<std::int64_t>{0, 2, length}, {3}), cuda());
          const AttentionParams params{.mask = {.causal = true, .prefix = prefix}, .dropout = p, .training = true};
          Tensors results[2];
          for (const bool fused : {false, true}) {
            Tensor x = cast(qkv, fused ? dtype : DType::f32);
            if (dtype != DType::f32) x = cast(cast(qkv, dtype), fused ? dtype : DType::f32);
            x.set_requires_grad();
            manual_seed(11);
            const Tensor y = self_attention(x, params, fused);
            y.backward(cast(cast(g, dtype), x.dtype()));
            results[fused] = {y, x.grad()};
          }
          const double most = dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 2e-3 : 2e-2;
          for (int i = 0; i < 2; ++i) CHECK(distance(results[1][i], results[0][i]) < most);
        }
}

TEST_CASE("fused self attention is as exact as its products may be", "[cuda]") {
  const std::pair<MatmulPrecision, double> modes[] = {
      {MatmulPrecision::fp32, 2e-6}, {MatmulPrecision::tf32, 1e-3}, {MatmulPrecision::tf32x3, 2e-6}};
  for (const auto& [precision, most] : modes)
    for (const std::int64_t head_dim : {32, 64})
      for (const std::int64_t length : {1, 5, 16, 17, 33, 40, 41, 48, 57, 64})
        for (const bool causal : {false, true})
          for (const bool padded : {false, true}) {
            INFO(fmt::format("mode {} D {} T {} causal {} padded {}", int(precision), head_dim, length, causal, padded));
            manual_seed(7);
            const Tensor qkv = randn({3, length, 3, 2, head_dim}, 0, 1, DType::f32, cuda());
            const Tensor g = randn({3, length, 2, head_dim}, 0, 1, DType::f32, cuda());
            std::vector<float> padding(static_cast<std::size_t>(3 * length));
            for (std::int64_t b = 0; b < 3; ++b)  // where causal, the first sequence's first query sees nothing
              for (std::int64_t t = 0; t < length; ++t)
                padding[static_cast<std::size_t>(b * length + t)] = t % 5 == b && length > 2 ? -INFINITY : 0.1f * float(t % 7);
            AttentionParams params{.mask = {.causal = causal}, .dropout = 0.2, .training = true};
            if (padded) params.mask.padding = to(Tensor::from(padding, {3, length}), cuda());
            const Tensors truth = results_of(qkv, g, params, false);
            const MatmulPrecisionMode mode(precision);
            const Tensors results = results_of(qkv, g, params, true);
            for (int i = 0; i < 2; ++i) CHECK(distance(results[i], truth[i]) < most);
          }
}

TEST_CASE("fused self attention takes what begins within a vector", "[cuda]") {
  for (const MatmulPrecision precision : {MatmulPrecision::fp32, MatmulPrecision::tf32}) {
    const std::int64_t length = 41, head_dim = 32, count = 2 * length * 3 * 2 * head_dim;
    manual_seed(7);
    const Tensor memory = randn({count + 1}, 0, 1, DType::f32, cuda()), g = randn({2, length, 2, head_dim}, 0, 1, DType::f32, cuda());
    const Tensor shifted = reshape(slice(memory, 0, 1), {2, length, 3, 2, head_dim});
    const AttentionParams params{.mask = {.causal = true}};
    const MatmulPrecisionMode mode(precision);
    Tensors results[2];
    for (const bool copied : {false, true}) {
      Tensor x = copied ? clone(shifted) : shifted.detach();
      x.set_requires_grad();
      const Tensor y = self_attention(x, params, true);
      y.backward(g);
      results[copied] = {y, x.grad()};
    }
    for (int i = 0; i < 2; ++i) CHECK(distance(results[0][i], results[1][i]) == 0);
  }
}

TEST_CASE("fused self attention passes on what is not a number", "[cuda]") {
  for (const MatmulPrecision precision : {MatmulPrecision::fp32, MatmulPrecision::tf32}) {
    const MatmulPrecisionMode mode(precision);
    std::vector<float> elements(2 * 20 * 3 * 1 * 32, 0.5f);
    const std::uint32_t all_ones = 0x7fffffff;                        // the NaN that kernels make
    std::memcpy(&elements[3 * 32 * 7], &all_ones, sizeof(all_ones));  // of the first sequence's query 7
    const Tensor y = self_attention(to(Tensor::from(elements, {2, 20, 3, 1, 32}), cuda()), {.mask = {.causal = true}}, true);
    const Tensor sums = to(sum(y, {2, 3}), cpu);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t t = 0; t < 20; ++t) CHECK(std::isnan(select(select(sums, 0, b), 0, t).item<float>()) == (b == 0 && t == 7));
  }
}

}  // namespace tern
