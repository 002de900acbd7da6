#include "ops/attention.h"

#include <fmt/format.h>

#include <cmath>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "tensor/context.h"

namespace tern {

namespace {

/// |a - b| / |b|, in float64.
double distance(const Tensor& a, const Tensor& b) {
  const Tensor x = cast(a.detach(), DType::f64), y = cast(b.detach(), DType::f64);
  return std::sqrt(sum(square(x - y)).item<double>() / sum(square(y)).item<double>());
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
            const Tensor y = (fused ? fused_self_attention : self_attention)(x, params);
            y.backward(cast(cast(g, dtype), x.dtype()));
            results[fused] = {y, x.grad()};
          }
          const double most = dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 2e-3 : 2e-2;
          for (int i = 0; i < 2; ++i) CHECK(distance(results[1][i], results[0][i]) < most);
        }
}

}  // namespace tern
