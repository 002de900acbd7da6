#include "ops/attention.h"

#include <numeric>

#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"

using namespace tern;

namespace {

constexpr std::int64_t B = 3, T = 5;
const std::vector<std::int64_t> prefix_lengths{0, 2, 4};
const bool padded[B][T] = {{false, false, false, false, false}, {false, false, false, true, true}, {true, false, false, false, true}};

Tensor padding() {
  Tensor x = empty({B, T}, DType::boolean);
  for (int i = 0; i < B * T; ++i) x.data<bool>()[i] = padded[i / T][i % T];
  return x;
}
Tensor prefix() { return Tensor::from(prefix_lengths, {B}); }

std::vector<AttentionMask> all_masks() {
  return {{},
          {.causal = true},
          {.padding = padding()},
          {.causal = true, .padding = padding()},
          {.causal = true, .prefix = prefix()},
          {.causal = true, .padding = padding(), .prefix = prefix()}};
}

}  // namespace

TEST_CASE("Self and cross attention are the op between their projections, under every mask", "[attention]") {
  manual_seed(8);
  const std::int64_t D = 6, H = 3;
  nn::MultiHeadAttention self(D, {.heads = H}), cross(D, {.heads = H, .cross = true});
  nn::to(self, DType::f64);
  nn::to(cross, DType::f64);
  CHECK(nn::named_parameters(cross)[0].name == "query.weight");
  CHECK(nn::named_parameters(cross)[2].name == "key_value.weight");
  const Tensor x = randn({B, T, D}, 0, 1, DType::f64), memory = randn({B, T, D}, 0, 1, DType::f64);
  const NoGrad unrecorded;
  const auto heads = [&](const Tensor& y, std::int64_t part) { return reshape(slice(y, 2, part * D, (part + 1) * D), {B, T, H, D / H}); };
  const auto attended = [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& o) {
    return reshape(test::plain(scaled_dot_product_attention)(q, k, v, AttentionParams{.mask = o}), {B, T, D});
  };
  for (const AttentionMask& o : all_masks()) {
    const Tensor y = self.qkv->forward(x);
    CHECK(distance(self.forward(x, o), self.proj.forward(attended(heads(y, 0), heads(y, 1), heads(y, 2), o))) < 1e-6);
    const Tensor q = cross.query->forward(x), kv = cross.key_value->forward(memory);
    CHECK(distance(cross.forward(x, memory, o), cross.proj.forward(attended(heads(q, 0), heads(kv, 0), heads(kv, 1), o))) < 1e-6);
  }
  CHECK_THROWS_AS(self.forward(x, memory), Error);
  CHECK_THROWS_AS(cross.forward(x), Error);
  CHECK_THROWS_AS(nn::TransformerLayer({.width = D, .heads = H, .ff = 5, .dropout = 0}, true).forward(x), Error);
}

TEST_CASE("query heads of a group share keys and values", "[attention]") {
  manual_seed(10);
  const std::int64_t D = 2, heads = 6, kv_heads = 2, width = D * heads;
  const Tensor rope = rope_table(T, D);
  for (const bool is_cross : {false, true})
    for (const bool fused : {false, true}) {
      const nn::AttentionOptions options{.heads = heads, .kv_heads = kv_heads, .cross = is_cross, .rope = is_cross ? Tensor() : rope};
      nn::AttentionOptions ungrouped = options;
      ungrouped.kv_heads = 0;
      nn::MultiHeadAttention layer(width, options), repeated(width, ungrouped);
      const FusedKernels kernels(fused);
      const NoGrad unrecorded;
      // Each head of keys and values stands three times in the layer without groups.
      const auto spread = [&](const Tensor& x, std::int64_t queries) {
        std::vector<std::int64_t> rows(static_cast<std::size_t>(queries));
        std::iota(rows.begin(), rows.end(), 0);
        for (const std::int64_t part : {0, 1})
          for (std::int64_t h = 0; h < heads; ++h)
            for (std::int64_t d = 0; d < D; ++d) rows.push_back(queries + (part * kv_heads + h / (heads / kv_heads)) * D + d);
        return index_select(x, 0, Tensor::from(rows, {static_cast<std::int64_t>(rows.size())}));
      };
      const auto copy_linear = [&](const nn::Linear& from, nn::Linear& to, std::int64_t queries) {
        copy_(to.weight, spread(from.weight, queries));
        copy_(to.bias, spread(from.bias, queries));
      };
      if (is_cross) {
        copy_linear(*layer.key_value, *repeated.key_value, 0);
        repeated.query = layer.query;
      } else {
        copy_linear(*layer.qkv, *repeated.qkv, width);
      }
      repeated.proj = layer.proj;
      const Tensor x = randn({B, T, width}), memory = is_cross ? randn({B, T + 3, width}) : Tensor();
      CHECK(distance(layer.forward(x, memory, {.causal = true}), repeated.forward(x, memory, {.causal = true})) < 1e-6);
      if (is_cross) continue;
      // Positions turn queries and keys, each head by itself.
      const Tensors parts = split(reshape(layer.qkv->forward(x), {B, T, heads + 2 * kv_heads, D}), {heads, kv_heads, kv_heads}, 2);
      const auto turned = [&](const Tensor& part) { return transpose(tern::rope(transpose(part, 1, 2), rope), 1, 2); };
      const AttentionParams causal{.mask = {.causal = true}};
      const Tensor y = test::plain(scaled_dot_product_attention)(turned(parts[0]), turned(parts[1]), parts[2], causal);
      CHECK(distance(layer.forward(x, {.causal = true}), layer.proj.forward(reshape(y, {B, T, width}))) < 1e-6);
    }
  CHECK_THROWS_AS(nn::MultiHeadAttention(width, {.heads = 6, .kv_heads = 4}), Error);
  CHECK_THROWS_AS(nn::MultiHeadAttention(width, {.heads = 6, .kv_heads = -1}), Error);
}

TEST_CASE("a head has a size of its own, and pairs in halves", "[attention]") {
  manual_seed(11);
  const std::int64_t D = 4, heads = 3, width = 10;
  const Tensor table = rope_table(T, D);
  for (const RopePairs pairs : {RopePairs::adjacent, RopePairs::halves})
    for (const bool fused : {false, true}) {
      CAPTURE(int(pairs), fused);
      nn::MultiHeadAttention layer(width, {.heads = heads, .kv_heads = 1, .head_dim = D, .rope = table, .rope_pairs = pairs});
      const FusedKernels kernels(fused);
      CHECK(layer.qkv->weight.shape() == Shape{(heads + 2) * D, width});
      CHECK(layer.proj.weight.shape() == Shape{width, heads * D});
      const NoGrad unrecorded;
      const Tensor x = randn({B, T, width});
      const Tensors parts = split(reshape(layer.qkv->forward(x), {B, T, heads + 2, D}), {heads, 1, 1}, 2);
      const auto turned = [&](const Tensor& part) { return transpose(tern::rope(transpose(part, 1, 2), table, {}, pairs), 1, 2); };
      const AttentionParams causal{.mask = {.causal = true}};
      const Tensor y = test::plain(scaled_dot_product_attention)(turned(parts[0]), turned(parts[1]), parts[2], causal);
      CHECK(distance(layer.forward(x, {.causal = true}), layer.proj.forward(reshape(y, {B, T, heads * D}))) < 1e-6);
    }
  // Cross attention has heads of that size as well.
  const nn::MultiHeadAttention cross(width, {.heads = heads, .head_dim = D, .cross = true});
  CHECK(cross.forward(randn({B, T, width}), randn({B, 2, width})).shape() == Shape{B, T, width});
  CHECK_THROWS_AS(nn::MultiHeadAttention(width, {.heads = heads}), Error);
  CHECK_THROWS_AS(nn::MultiHeadAttention(width, {.heads = heads, .head_dim = -4}), Error);
}

TEST_CASE("no token sees what its mask hides", "[attention]") {
  nn::DecoderLM model({.vocab = 11, .length = 6, .width = 8, .layers = 2, .heads = 2, .ff = 8, .dropout = 0});
  const auto logits = [&](std::vector<std::int64_t> ids, std::int64_t prefix_length) {
    const Tensor prefix = Tensor::from(std::vector<std::int64_t>{prefix_length}, {1});
    return floats(model.forward(Tensor::from(ids, {1, 6}), {.causal = true, .prefix = prefix}));
  };
  const auto rows = [](const std::vector<float>& x, std::size_t first, std::size_t last) {
    return std::vector<float>(x.begin() + std::ptrdiff_t(first * 11), x.begin() + std::ptrdiff_t(last * 11));
  };
  const std::vector<std::int64_t> ids{1, 2, 3, 4, 5, 6}, other_end{1, 2, 3, 4, 5, 9}, other_prefix{1, 2, 9, 4, 5, 6};
  CHECK(distance(rows(logits(ids, 0), 0, 5), rows(logits(other_end, 0), 0, 5)) == 0);
  CHECK(distance(rows(logits(ids, 3), 0, 5), rows(logits(other_end, 3), 0, 5)) == 0);
  CHECK(distance(rows(logits(ids, 3), 0, 1), rows(logits(other_prefix, 3), 0, 1)) > 1e-4);  // token 0 sees token 2
  CHECK(distance(rows(logits(ids, 2), 0, 2), rows(logits(other_prefix, 2), 0, 2)) == 0);
}
