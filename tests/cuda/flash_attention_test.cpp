#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "attention_problem.h"
#include "autodiff/engine.h"
#include "catch.h"
#include "cuda/attention/attention.h"
#include "ops/attention.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

enum class Mask { none, causal, prefix, padding, causal_padding };
constexpr Mask masks[] = {Mask::none, Mask::causal, Mask::prefix, Mask::padding, Mask::causal_padding};

bool is_causal(Mask mask) { return mask == Mask::causal || mask == Mask::prefix || mask == Mask::causal_padding; }
bool is_padded(Mask mask) { return mask == Mask::padding || mask == Mask::causal_padding; }

/// Of three sequences, the second sees nothing; in the others every third key is hidden, or every key past the middle.
double padding_of(std::int64_t sequence, std::int64_t key, std::int64_t length) {
  if (sequence == 1) return key % 2 ? -infinity : -1e30;
  if (sequence == 0) return key % 3 == 1 ? -65504 : 0.25 * static_cast<double>(key % 5);
  return key > length / 2 ? -infinity : 0;
}
/// None, some, and more than there are.
std::int64_t prefix_of(std::int64_t sequence, std::int64_t length) {
  return sequence == 0 ? 0 : sequence == 1 ? length * 2 / 3 + 1 : length + 5;
}

/// `shift` moves addresses and strides off the alignment of vectors.
void check_kernels(const AttentionCase& c, DType dtype) {
  INFO(fmt::format("{} {} T {} S {} D {} shift {}", name(dtype), c.name, c.queries, c.keys, c.head_dim, c.shift));
  const AttentionProblem problem(c, dtype);
  REQUIRE(gpu::has_mma_attention(problem.q.device(), problem.k.device(), problem.v.device(), problem.attention));
  check_attention(problem, dtype, gpu::mma_attention, gpu::mma_attention_grad);
}

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

AttentionParams params_of(Mask mask, std::int64_t length, double dropout) {
  AttentionParams params{.mask = {.causal = is_causal(mask)}, .dropout = dropout, .training = true};
  std::vector<std::int64_t> prefix;
  std::vector<float> padding;
  for (std::int64_t b = 0; b < 3; ++b) {
    prefix.push_back(prefix_of(b, length));
    for (std::int64_t t = 0; t < length; ++t) padding.push_back(static_cast<float>(padding_of(b, t, length)));
  }
  if (mask == Mask::prefix) params.mask.prefix = to(Tensor::from(prefix, {3}), cuda());
  if (is_padded(mask)) params.mask.padding = to(Tensor::from(padding, {3, length}), cuda());
  return params;
}

}  // namespace

TEST_CASE("flash attention by mma is attention, gradients included, and the same in every run", "[cuda]") {
  int turn = 0;
  for (const std::int64_t d : {8, 16, 24, 32, 40, 64, 80, 96, 128, 192, 256})
    for (const std::int64_t length : {1, 31, 33, 64, 65, 100}) {
      const DType dtype = turn % 2 ? DType::f16 : DType::bf16;
      const int shift = turn % 3 == 0 ? 1 + turn % 7 : 0;
      const bool is_causal = turn % 5 == 1 || turn % 5 == 2 || turn % 5 == 4;
      check_kernels({.name = "mask",
                     .sequences = 3,
                     .queries = length,
                     .keys = length,
                     .heads = 2,
                     .kv_heads = 2,
                     .head_dim = d,
                     .causal = is_causal,
                     .has_prefix = turn % 5 == 2,
                     .has_padding = turn % 5 >= 3,
                     .shift = shift},
                    dtype);
      ++turn;
    }
}

TEST_CASE("flash attention by mma takes all heads and masks", "[cuda]") {
  for (const auto& [d, dtype] : {std::pair<std::int64_t, DType>{24, DType::bf16}, {64, DType::f16}, {128, DType::bf16}, {256, DType::f16}})
    for (const AttentionCase& c : {AttentionCase{"one", 1, 1, 1, 1, 1, d, true},
                                   {"full", 2, 100, 167, 2, 2, d},
                                   {"causal", 1, 161, 161, 4, 2, d, true},
                                   {"more queries than keys", 1, 167, 100, 2, 1, d, true},
                                   {"more keys than queries", 1, 66, 250, 2, 1, d, true},
                                   {"window", 1, 200, 200, 2, 2, d, true, 50},
                                   {"lengths", 3, 150, 150, 1, 1, d, false, 0, true},
                                   {"prefix", 3, 130, 150, 1, 1, d, true, 0, true, true},
                                   {"padding", 2, 100, 150, 2, 1, d, true, 0, false, false, true},
                                   {"dropout", 1, 100, 151, 2, 2, d, true, 0, false, false, false, false, 0.1},
                                   {"packed", 4, 150, 150, 2, 1, d, true, 0, false, false, false, true},
                                   {"short packed", 4, 60, 50, 2, 2, d, true, 0, false, false, false, true},
                                   {"bias", 2, 100, 150, 4, 2, d, false, 0, false, false, false, false, 0, true},
                                   {"bias and all", 3, 50, 60, 2, 2, d, true, 20, true, false, true, false, 0.2, true},
                                   {"odd strides", 2, 100, 150, 2, 1, d, true, 0, false, false, false, false, 0, false, 1},
                                   {"negative scale", 2, 100, 100, 2, 2, d, true, 0, false, false, false, false, 0, false, 0, -1},
                                   {"zero scale", 1, 40, 40, 2, 2, d, true, 0, false, false, false, false, 0, false, 0, 0}})
      check_kernels(c, dtype);
}

TEST_CASE("flash attention by mma says what it has no kernel for", "[cuda]") {
  const auto has = [](DType dtype, std::int64_t d) {
    const Twin q(dtype, {1, 16, 2, d});
    return gpu::has_mma_attention(q.device(), q.device(), q.device(), {});
  };
  CHECK(has(DType::bf16, 8));
  CHECK(has(DType::f16, 256));
  CHECK_FALSE(has(DType::f32, 64));
  CHECK_FALSE(has(DType::bf16, 60));
  CHECK_FALSE(has(DType::bf16, 264));
}

TEST_CASE("flash attention is the composition in float64 with the same draws", "[cuda]") {
  int turn = 0;
  for (const std::int64_t width : {16, 32, 64, 80, 128})
    for (const std::int64_t length : {1, 3, 31, 33, 40, 64, 65, 100, 257, 515})
      for (const double p : {0.0, 0.3}) {
        const Mask mask = masks[turn % 5];
        const DType dtype = turn % 2 ? DType::f16 : DType::bf16;
        ++turn;
        INFO(fmt::format("{} D {} T {} mask {} dropout {}", name(dtype), width, length, int(mask), p));
        manual_seed(7);
        const Tensor qkv = cast(randn({3, length, 3, 2, width}, 0, 1, DType::f32, cuda()), dtype);
        const Tensor g = cast(randn({3, length, 2, width}, 0, 1, DType::f32, cuda()), dtype);
        const AttentionParams params = params_of(mask, length, p);
        Tensors results[2];
        for (const bool fused : {false, true}) {
          const DType computed = fused ? dtype : DType::f64;
          const Tensor x = cast(qkv, computed).detach().set_requires_grad();
          manual_seed(11);
          const Tensor y = self_attention(x, params, fused);
          y.backward(cast(g, computed));
          results[fused] = {y, x.grad()};
          if (fused && is_padded(mask)) {  // the second sequence sees nothing
            CHECK(max(abs(cast(select(y.detach(), 0, 1), DType::f32))).item<float>() == 0);
            CHECK(max(abs(cast(select(x.grad(), 0, 1), DType::f32))).item<float>() == 0);
          }
        }
        // A sequence of one token has gradients of values alone.
        for (int i = 0; i < 2; ++i) CHECK(distance(results[1][i], results[0][i]) < (dtype == DType::f16 ? 2e-3 : 1.2e-2));
      }
}

TEST_CASE("flash attention can be differentiated twice", "[cuda]") {
  manual_seed(3);
  const Tensor given = randn({1, 21, 3, 2, 16}, 0, 1, DType::f32, cuda());
  Tensor results[2];
  for (const bool fused : {false, true}) {
    const Tensor x = cast(cast(given, DType::bf16), fused ? DType::bf16 : DType::f64).detach().set_requires_grad();
    const Tensor y = self_attention(x, {.mask = {.causal = true}}, fused);
    const Tensor dx = grad({sum(square(y))}, {x}, {}, true)[0];
    sum(square(dx)).backward();
    results[fused] = x.grad();
  }
  CHECK(distance(results[1], results[0]) < 5e-2);
}

}  // namespace tern
