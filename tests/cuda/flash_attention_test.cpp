#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/attention.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/kernels/attention.h"
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

/// y, dqkv and log_sums in float64, in loops.
struct Reference {
  std::vector<double> y, dqkv, log_sums;

  Reference(const Twin& qkv, const Twin& g, std::int64_t length, std::int64_t width, Mask mask) {
    const std::int64_t batch = 3, heads = 2;
    y.resize(static_cast<std::size_t>(batch * length * heads * width));
    dqkv.resize(3 * y.size());
    log_sums.resize(static_cast<std::size_t>(batch * heads * length));
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    const auto size = static_cast<std::size_t>(length);
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto at = [&](std::int64_t t, int part, std::int64_t d) { return (((b * length + t) * 3 + part) * heads + h) * width + d; };
        const auto at_y = [&](std::int64_t t, std::int64_t d) { return ((b * length + t) * heads + h) * width + d; };
        for (std::int64_t t = 0; t < length; ++t) {
          std::vector<double> p(size), dp(size);
          double total = 0, weighted = 0;
          for (std::int64_t s = 0; s < length; ++s) {
            const double padding = is_padded(mask) ? padding_of(b, s, length) : 0;
            const bool is_seen = (!is_causal(mask) || s <= t || (mask == Mask::prefix && s < prefix_of(b, length))) && padding > -1e4;
            double score = 0;
            for (std::int64_t d = 0; d < width; ++d) {
              score += qkv.get(at(t, 0, d)) * qkv.get(at(s, 1, d));
              dp[std::size_t(s)] += g.get(at_y(t, d)) * qkv.get(at(s, 2, d));
            }
            p[std::size_t(s)] = is_seen ? std::exp(score * scale + padding) : 0;
            total += p[std::size_t(s)];
          }
          log_sums[std::size_t((b * heads + h) * length + t)] = total > 0 ? std::log2(total) : infinity;
          for (std::size_t s = 0; s < size; ++s) {
            p[s] = total > 0 ? p[s] / total : 0;
            weighted += p[s] * dp[s];
          }
          for (std::int64_t s = 0; s < length; ++s) {
            const double weight = p[std::size_t(s)], ds = weight * (dp[std::size_t(s)] - weighted) * scale;
            for (std::int64_t d = 0; d < width; ++d) {
              y[std::size_t(at_y(t, d))] += weight * qkv.get(at(s, 2, d));
              dqkv[std::size_t(at(t, 0, d))] += ds * qkv.get(at(s, 1, d));
              dqkv[std::size_t(at(s, 1, d))] += ds * qkv.get(at(t, 0, d));
              dqkv[std::size_t(at(s, 2, d))] += weight * g.get(at_y(t, d));
            }
          }
        }
      }
  }
};

/// The CPU's copy becomes what is expected; the GPU's has been written.
std::string difference(Twin& got, const std::vector<double>& expected, double tolerance) {
  for (std::size_t i = 0; i < expected.size(); ++i) got.set(static_cast<std::int64_t>(i), expected[i]);
  return got.difference(tolerance);
}

/// `shift` moves what is read off the alignment of vectors.
void check_kernels(DType dtype, std::int64_t length, std::int64_t width, Mask mask, int shift) {
  INFO(fmt::format("{} T {} D {} mask {} shift {}", name(dtype), length, width, int(mask), shift));
  const auto shaped = [&](const Shape& shape) { return Twin(dtype, shape, contiguous_strides(shape), shift); };
  Twin qkv = shaped({3, length, 3, 2, width}), g = shaped({3, length, 2, width});
  Twin y(dtype, {3, length, 2, width}), dqkv(dtype, {3, length, 3, 2, width}), log_sums(DType::f32, {3, 2, length});
  qkv.randomize(1, -1, 1).upload();
  g.randomize(2, -1, 1).upload();
  y.upload();
  dqkv.upload();
  log_sums.upload();
  Twin padding(DType::f32, {3, length}), prefix(DType::i64, {3});
  for (std::int64_t b = 0; b < 3; ++b) {
    prefix.set(b, static_cast<double>(prefix_of(b, length)));
    for (std::int64_t t = 0; t < length; ++t) padding.set(b * length + t, padding_of(b, t, length));
  }
  padding.upload();
  prefix.upload();
  kernels::Attention attention;
  attention.scale = 1 / std::sqrt(static_cast<double>(width));
  attention.mask.causal = is_causal(mask);
  if (is_padded(mask)) attention.mask.padding = padding.device();
  if (mask == Mask::prefix) attention.mask.prefix = prefix.device();

  REQUIRE(kernels::has_projection_attention(Cuda{}, cuda(), dtype, width));
  kernels::projection_attention(Cuda{}, qkv.device(), attention, y.device(), log_sums.device());
  kernels::projection_attention_grad(Cuda{}, qkv.device(), y.device(), log_sums.device(), g.device(), attention, dqkv.device());
  const std::vector<std::byte> first = dqkv.download();
  kernels::projection_attention_grad(Cuda{}, qkv.device(), y.device(), log_sums.device(), g.device(), attention, dqkv.device());
  CHECK(dqkv.download() == first);

  const Reference reference(qkv, g, length, width, mask);
  const double allowed = dtype == DType::f16 ? 2e-3 : 1.6e-2;
  CHECK(difference(y, reference.y, allowed) == "");
  CHECK(difference(log_sums, reference.log_sums, 1e-3) == "");
  CHECK(difference(dqkv, reference.dqkv, allowed) == "");
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

TEST_CASE("flash attention is attention, gradients included, and the same in every run", "[cuda]") {
  int turn = 0;
  for (const std::int64_t width : {8, 16, 24, 32, 40, 64, 80, 96, 128})
    for (const std::int64_t length : {1, 31, 33, 64, 65, 100}) {
      check_kernels(turn % 2 ? DType::f16 : DType::bf16, length, width, masks[turn % 5], 0);
      if (turn % 3 == 0) check_kernels(turn % 2 ? DType::bf16 : DType::f16, length, width, masks[(turn + 2) % 5], 1 + turn % 7);
      ++turn;
    }
  for (const Mask mask : masks)
    for (const DType dtype : {DType::f16, DType::bf16}) check_kernels(dtype, 141, 64, mask, 0);
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
