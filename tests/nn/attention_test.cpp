#include "ops/attention.h"

#include <numeric>

#include "layer_gradients.h"
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

bool is_visible(const AttentionMask& o, std::int64_t b, std::int64_t query, std::int64_t key) {
  if (o.padding.defined() && padded[b][key]) return false;
  if (!o.causal || key <= query) return true;
  return o.prefix.defined() && key < prefix_lengths[static_cast<std::size_t>(b)];
}

std::vector<AttentionMask> all_masks() {
  return {{},
          {.causal = true},
          {.padding = padding()},
          {.causal = true, .padding = padding()},
          {.causal = true, .prefix = prefix()},
          {.causal = true, .padding = padding(), .prefix = prefix()}};
}

/// softmax(q k^T / sqrt(D)) v with loops over (B, H, T, D), in f64.
std::vector<double> naive(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& o) {
  const std::vector<double> Q = contiguous(q).to_vector<double>(), K = contiguous(k).to_vector<double>(),
                            V = contiguous(v).to_vector<double>();
  const std::int64_t H = q.size(1), D = q.size(3);
  std::vector<double> result(Q.size());
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t h = 0; h < H; ++h)
      for (std::int64_t i = 0; i < T; ++i) {
        const auto at = [&](std::int64_t t, std::int64_t d) { return std::size_t(((b * H + h) * T + t) * D + d); };
        double total = 0;
        std::vector<double> probability(T);
        for (std::int64_t j = 0; j < T; ++j) {
          if (!is_visible(o, b, i, j)) continue;
          double score = 0;
          for (std::int64_t d = 0; d < D; ++d) score += Q[at(i, d)] * K[at(j, d)];
          total += probability[std::size_t(j)] = std::exp(score / std::sqrt(double(D)));
        }
        for (std::int64_t j = 0; j < T && total > 0; ++j)  // who sees nothing gives zeros
          for (std::int64_t d = 0; d < D; ++d) result[at(i, d)] += probability[std::size_t(j)] / total * V[at(j, d)];
      }
  return result;
}

}  // namespace

TEST_CASE("masks that do not fit are refused", "[mask]") {
  const nn::MultiHeadAttention layer(6, {.heads = 2});
  const Tensor x = randn({B, T, 6});
  CHECK_THROWS_AS(layer.forward(slice(x, 1, 0, 4), {.padding = padding()}), Error);
  CHECK_THROWS_AS(layer.forward(slice(x, 0, 0, 2), {.padding = padding()}), Error);
  CHECK_THROWS_AS(layer.forward(x, {.prefix = prefix()}), Error);
  CHECK_THROWS_AS(layer.forward(x, {.causal = true, .prefix = zeros({B, 1}, DType::i64)}), Error);
  CHECK_THROWS_AS(layer.forward(x, {.causal = true, .padding = padding(), .prefix = zeros({B + 1}, DType::i64)}), Error);
}

TEST_CASE("self and cross attention agree with their definition", "[attention]") {
  manual_seed(8);
  const std::int64_t D = 6, H = 3;
  nn::MultiHeadAttention self(D, {.heads = H}), cross(D, {.heads = H, .cross = true});
  nn::to(self, DType::f64);
  nn::to(cross, DType::f64);
  CHECK(nn::named_parameters(cross)[0].name == "query.weight");
  CHECK(nn::named_parameters(cross)[2].name == "key_value.weight");
  const Tensor x = randn({B, T, D}, 0, 1, DType::f64), memory = randn({B, T, D}, 0, 1, DType::f64);
  const NoGrad unrecorded;
  const auto heads = [&](const Tensor& y, std::int64_t part) {
    return transpose(reshape(contiguous(slice(y, 2, part * D, (part + 1) * D)), {B, T, H, D / H}), 1, 2);
  };
  const auto join = [&](const std::vector<double>& y) { return reshape(transpose(Tensor::from(y, {B, H, T, D / H}), 1, 2), {B, T, D}); };
  for (const AttentionMask& o : all_masks()) {
    const Tensor y = self.qkv->forward(x);
    CHECK(distance(self.forward(x, o), self.proj.forward(join(naive(heads(y, 0), heads(y, 1), heads(y, 2), o)))) < 1e-6);
    const Tensor q = cross.query->forward(x), kv = cross.key_value->forward(memory);
    CHECK(distance(cross.forward(x, memory, o), cross.proj.forward(join(naive(heads(q, 0), heads(kv, 0), heads(kv, 1), o)))) < 1e-6);
  }
  CHECK_THROWS_AS(self.forward(x, memory), Error);
  CHECK_THROWS_AS(cross.forward(x), Error);
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

TEST_CASE("a layer's gradients are those of finite differences", "[attention]") { check_layer_gradients(false); }

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

TEST_CASE("a row of padding gives finite gradients", "[attention]") {
  nn::DecoderLM model({.vocab = 11, .length = 4, .width = 8, .layers = 2, .heads = 2, .ff = 8, .dropout = 0});
  Tensor hidden = full({2, 4}, 0, DType::boolean);
  for (int i = 0; i < 4; ++i) hidden.data<bool>()[4 + i] = true;
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  cross_entropy(model.forward(ids, {.causal = true, .padding = hidden}), ids).backward();
  for (const Tensor& x : nn::parameters(model))
    for (float g : floats(x.grad())) REQUIRE(std::isfinite(g));
}
