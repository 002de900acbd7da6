// Promises of ops/attention.h beyond values: what it keeps, how much memory it takes, and that its bits do not change.
#include "ops/attention.h"

#include <cmath>
#include <cstring>

#include "autodiff/autograd_state.h"
#include "autodiff/engine.h"
#include "catch.h"
#include "ops/composed_attention.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"

namespace tern {

namespace {

struct Results {
  Tensor y;
  Tensors gradients;
};

template <class F>
Results results_of(F f, const Tensors& inputs, const Tensor& g, const AttentionParams& params) {
  Tensors leaves;
  for (const Tensor& x : inputs) leaves.push_back(x.detach().set_requires_grad());
  AttentionParams given = params;
  if (leaves.size() > 3) given.bias = leaves[3];
  const Tensor y = f(leaves[0], leaves[1], leaves[2], given);
  return {y, grad({y}, leaves, {g})};
}

double largest_difference(const Tensor& a, const Tensor& b) {
  const NoGrad unrecorded;
  return max(abs(cast(a, DType::f64) - cast(b, DType::f64))).item<double>();
}

bool is_bitwise_same(const Tensor& a, const Tensor& b) {
  const Tensor x = contiguous(a.detach()), y = contiguous(b.detach());
  return std::memcmp(x.view().data, y.view().data, static_cast<std::size_t>(x.numel()) * size_of(x.dtype())) == 0;
}

/// Tensors that an op keeps for backward, but for its inputs and its result.
Tensors kept_beside(const Tensor& y, const Tensors& others) {
  Tensors result;
  Node& node = *autograd_state(y)->node;
  for (const Saved& saved : node.saved) {
    const Tensor x = saved.unpack(node);
    bool is_other = !x.defined() || x.view().data == y.view().data;
    for (const Tensor& other : others) is_other = is_other || x.view().data == other.view().data;
    if (!is_other) result.push_back(x);
  }
  return result;
}

}  // namespace

TEST_CASE("Attention of one query depends neither on other sequences nor on hidden keys behind its own") {
  manual_seed(5);
  const Tensor q = randn({3, 1, 4, 24}), k = randn({3, 900, 2, 24}), v = randn({3, 900, 2, 24});
  const std::vector<std::int64_t> lengths = {700, 256, 3};
  const Tensor all = scaled_dot_product_attention(q, k, v, {.mask = {.key_lengths = Tensor::from(lengths, {3})}});
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto own = [&](const Tensor& x, std::int64_t rows) { return slice(slice(x, 0, i, i + 1), 1, 0, rows); };
    const std::int64_t length = lengths[static_cast<std::size_t>(i)];
    CHECK(is_bitwise_same(slice(all, 0, i, i + 1), scaled_dot_product_attention(own(q, 1), own(k, length), own(v, length))));
  }
}

TEST_CASE("Attention of one query by several threads, whatever the width of a head") {
  const int threads = num_threads();
  for (const std::int64_t width : {1, 7, 8, 24, 40}) {
    INFO("width " << width);
    manual_seed(6);
    const std::int64_t B = 5, H = 6, keys = (1 << 20) / (B * H * width);  // products enough for several threads
    const Tensor q = randn({B, 1, H, width}), k = randn({B, keys, H, width}), v = randn({B, keys, H, width});
    const auto in = [&](DType dtype) { return scaled_dot_product_attention(cast(q, dtype), cast(k, dtype), cast(v, dtype), {}); };
    const Tensor exact =
        test::plain(scaled_dot_product_attention)(cast(q, DType::f64), cast(k, DType::f64), cast(v, DType::f64), AttentionParams());
    set_num_threads(1);
    const Tensor alone = in(DType::f32);
    set_num_threads(3);
    CHECK(largest_difference(alone, exact) < 5e-6);
    CHECK(largest_difference(in(DType::f64), exact) < 1e-12);
    CHECK(largest_difference(in(DType::bf16), exact) < 2e-2);
    // A head of keys is the next thread's that is free, so that only many calls have some from each.
    for (int call = 0; call < 40; ++call) REQUIRE(is_bitwise_same(in(DType::f32), alone));
    set_num_threads(threads);
  }
}

TEST_CASE("Attention passes the course's cases: results, log-sum-exp and gradients within 1e-5 of float64, one tensor of (B, N) kept") {
  const std::int64_t B = 4, N = 128, D = 64;
  for (const bool causal : {false, true}) {
    manual_seed(0);
    Tensors inputs;
    for (int i = 0; i < 3; ++i) inputs.push_back(randn({B, N, 1, D}));
    const Tensor g = randn({B, N, 1, D});
    const AttentionParams params{.mask = {.causal = causal}};
    Tensors exact;
    for (const Tensor& x : inputs) exact.push_back(cast(x, DType::f64));
    const Results expected = results_of(test::plain(scaled_dot_product_attention), exact, cast(g, DType::f64), params);
    const Results results = results_of(scaled_dot_product_attention, inputs, g, params);
    CHECK(largest_difference(results.y, expected.y) < 1e-5);
    for (std::size_t i = 0; i < 3; ++i) CHECK(largest_difference(results.gradients[i], expected.gradients[i]) < 1e-5);

    Tensors leaves;
    for (const Tensor& x : inputs) leaves.push_back(x.detach().set_requires_grad());
    const Tensors kept = kept_beside(scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], params), leaves);
    REQUIRE(kept.size() == 1);
    CHECK(kept[0].shape() == Shape{B, 1, N});
    Tensor scores = matmul(transpose(exact[0], 1, 2), transpose(transpose(exact[1], 1, 2), -1, -2), 1 / std::sqrt(double(D)));
    if (causal) scores = masked_fill(scores, triu(full({N, N}, 1, DType::boolean), 1), -INFINITY);
    CHECK(largest_difference(kept[0], logsumexp(scores, {-1}) / std::log(2.0)) < 1e-5);
  }
}

TEST_CASE("Attention takes memory that grows with the number of tokens alone") {
  const auto peak_of = [](std::int64_t length) {
    manual_seed(1);
    const Tensor qkv = randn({1, length, 3, 2, 16}).set_requires_grad(), g = randn({1, length, 2, 16});
    const Tensors parts = unstack(qkv, 2);
    reset_peak_memory(cpu);
    const std::size_t before = memory_statistics(cpu).allocated;
    const Tensor y = scaled_dot_product_attention(parts[0], parts[1], parts[2], {.mask = {.causal = true}});
    const std::size_t forward = memory_statistics(cpu).peak_allocated - before;
    y.backward(g);
    return std::pair(forward, memory_statistics(cpu).peak_allocated - before);
  };
  const auto [forward, both] = peak_of(1024);
  const auto [longer_forward, longer_both] = peak_of(4096);
  CHECK(longer_forward < 4.5 * double(forward));
  CHECK(longer_both < 4.5 * double(both));
  CHECK(longer_both < std::size_t(4096) * 4096 * 2 * sizeof(float) / 4);  // a quarter of the scores
}

TEST_CASE("Attention over packed sequences takes memory by their rows, not by the longest") {
  const auto peak_of = [](const std::vector<std::int64_t>& lengths) {
    std::vector<std::int64_t> starts = {0};
    for (const std::int64_t length : lengths) starts.push_back(starts.back() + length);
    AttentionParams params{.mask = {.causal = true}};
    params.query_starts = params.key_starts = Tensor::from(starts, {std::int64_t(starts.size())});
    params.max_queries = params.max_keys = *std::max_element(lengths.begin(), lengths.end());
    const Tensor x = randn({starts.back(), 2, 8}).set_requires_grad(), g = randn({starts.back(), 2, 8});
    reset_peak_memory(cpu);
    const std::size_t before = memory_statistics(cpu).allocated;
    scaled_dot_product_attention(x, x, x, params).backward(g);
    return memory_statistics(cpu).peak_allocated - before;
  };
  const int threads = num_threads();
  set_num_threads(1);  // a thread has buffers for one sequence of the longest
  std::vector<std::int64_t> uneven(512, 2);
  uneven.insert(uneven.begin() + 5, 1024);
  CHECK(double(peak_of(uneven)) < 1.5 * double(peak_of({1024, 1024})));
  set_num_threads(threads);
}

TEST_CASE("Attention over 16384 tokens gives what its last and first queries see") {
  const std::int64_t N = 16384, D = 8;
  manual_seed(2);
  const Tensor q = randn({1, N, 1, D}), k = randn({1, N, 1, D}), v = randn({1, N, 1, D}), g = randn({1, N, 1, D});
  const AttentionParams params{.mask = {.causal = true, .window = 9000}};
  const Results results = results_of(scaled_dot_product_attention, {q, k, v}, g, params);
  for (const std::int64_t t : {std::int64_t(0), std::int64_t(7777), N - 1}) {
    const auto rows = [&](const Tensor& x, std::int64_t first) { return cast(slice(x, 1, first, t + 1), DType::f64); };
    const Tensor expected = test::plain(scaled_dot_product_attention)(rows(q, t), rows(k, 0), rows(v, 0), params);
    CHECK(largest_difference(slice(results.y, 1, t, t + 1), expected) < 1e-5);
  }
  for (const Tensor& gradient : results.gradients) CHECK(std::isfinite(sum(gradient).item<float>()));
  // Probabilities add up to 1, so that the gradients of values add up to those of results.
  CHECK(largest_difference(sum(cast(results.gradients[2], DType::f64), {1}), sum(cast(g, DType::f64), {1})) < 1e-2);
}

TEST_CASE("Attention gives the same bits in every run and for any number of threads") {
  manual_seed(3);
  const int threads = num_threads();
  for (const std::int64_t heads : {1, 6}) {
    const Tensors inputs = {randn({1, 300, heads, 24}), randn({1, 411, heads, 24}), randn({1, 411, heads, 24}), randn({heads, 1, 411})};
    const Tensor g = randn({1, 300, heads, 24});
    const AttentionParams params{.mask = {.causal = true}, .dropout = 0.1, .training = true};
    std::vector<Results> results;
    for (const int count : {1, 2, 3, 2}) {
      set_num_threads(count);
      manual_seed(4);
      results.push_back(results_of(scaled_dot_product_attention, inputs, g, params));
    }
    set_num_threads(threads);
    for (const Results& other : results) {
      CHECK(is_bitwise_same(other.y, results[0].y));
      for (std::size_t i = 0; i < 4; ++i) CHECK(is_bitwise_same(other.gradients[i], results[0].gradients[i]));
    }
  }
}

TEST_CASE("Fused attention is the plain one at lengths around its tiles, with grouped heads and dropout") {
  for (const std::int64_t queries : {1, 95, 96, 97, 200})
    for (const std::int64_t keys : {1, 96, 97, 191, 300})
      for (const std::int64_t width : {3, 16, 40, 80}) {
        CAPTURE(queries, keys, width);
        manual_seed(6);
        const Tensors inputs = {randn({2, queries, 4, width}), randn({2, keys, 2, width}), randn({2, keys, 2, width}),
                                randn({1, 4, queries, keys})};
        const Tensor g = randn({2, queries, 4, width});
        const AttentionParams params{
            .mask = {.causal = queries % 2 == 0, .key_lengths = Tensor::from(std::vector<std::int64_t>{keys - 1, 97}, {2})},
            .dropout = width == 16 ? 0.2 : 0,
            .training = true};
        manual_seed(7);
        const Results plain = results_of(test::plain(scaled_dot_product_attention), inputs, g, params);
        manual_seed(7);
        const Results fused = results_of(scaled_dot_product_attention, inputs, g, params);
        CHECK(largest_difference(plain.y, fused.y) < 1e-5);
        for (std::size_t i = 0; i < 4; ++i) CHECK(largest_difference(plain.gradients[i], fused.gradients[i]) < 4e-5);
      }
}

TEST_CASE("Keys past a sequence's length are not read") {
  manual_seed(8);
  const Tensor q = randn({2, 5, 2, 8}), k = randn({2, 150, 2, 8}), v = randn({2, 150, 2, 8});
  const AttentionParams params{.mask = {.key_lengths = Tensor::from(std::vector<std::int64_t>{100, 0}, {2})}};
  const Tensor expected = scaled_dot_product_attention(q, k, v, params);
  for (const Tensor& x : {k, v}) {
    fill_(slice(slice(x, 0, 0, 1), 1, 100), NAN);
    fill_(slice(x, 0, 1), NAN);
  }
  const Results results = results_of(scaled_dot_product_attention, {q, k, v}, ones_like(q), params);
  CHECK(is_bitwise_same(results.y, expected));
  for (const Tensor& gradient : results.gradients) CHECK(std::isfinite(sum(gradient).item<float>()));
  for (const Tensor& x : {results.y, results.gradients[0], results.gradients[1], results.gradients[2]})
    CHECK(max(abs(slice(x, 0, 1))).item<float>() == 0);  // the second sequence sees nothing
}

TEST_CASE("Gradients of slices of one projection are written into one tensor") {
  manual_seed(9);
  const Tensor qkv = randn({2, 40, 3, 2, 8}).set_requires_grad(), g = randn({2, 40, 2, 8});
  const auto gradients_of = [&](bool copied, bool whole) {
    Tensors parts = unstack(qkv, 2);
    if (copied)
      for (Tensor& part : parts) part = clone(part);
    const Tensor y = scaled_dot_product_attention(parts[0], parts[1], parts[2], {});
    return whole ? grad({y}, {qkv}, {g}) : grad({y}, parts, {g});
  };
  const Tensors slices = gradients_of(false, false);
  CHECK(slices[1].impl().storage == slices[0].impl().storage);
  CHECK(slices[1].offset() - slices[0].offset() == 2 * 8);
  CHECK(slices[2].offset() - slices[1].offset() == 2 * 8);
  const Tensor joined = gradients_of(false, true)[0];
  CHECK(joined.is_contiguous());
  CHECK(is_bitwise_same(joined, stack(slices, 2)));
  CHECK(is_bitwise_same(joined, gradients_of(true, true)[0]));
  const auto allocations_of = [&](bool copied) {
    const std::size_t before = memory_statistics(cpu).allocations;
    gradients_of(copied, true);
    return memory_statistics(cpu).allocations - before;
  };
  CHECK(allocations_of(true) - allocations_of(false) == 3 + 3);  // three copies; three gradients and their join instead of one tensor
}

TEST_CASE("Attention in chunks of queries is the composition") {
  const std::int64_t B = 2, H = 4, kv_heads = 2, D = 6;
  for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{50, 50}, {40, 70}, {70, 40}})
    for (const Shape& bias : {Shape{}, Shape{H, queries, keys}, Shape{B, 1, 1, keys}, Shape{queries, 1}})
      for (const int form : {0, 1, 2, 3}) {
        CAPTURE(queries, keys, bias.size(), form);
        manual_seed(12);
        const auto random = [](const Shape& shape) { return randn(shape, 0, 1, DType::f64); };
        Tensors inputs = {random({B, queries, H, D}), random({B, keys, kv_heads, D}), random({B, keys, kv_heads, D})};
        if (!bias.empty()) inputs.push_back(random(bias));
        const Tensor g = random({B, queries, H, D});
        AttentionParams params{.mask = {.causal = form > 0, .window = form == 2 ? 9 : 0}};
        if (form == 3) {
          params.mask.padding = gt(random({B, keys}), 0.5);
          params.mask.key_lengths = Tensor::from(std::vector<std::int64_t>{keys, 21}, {B});
        }
        const Results expected = results_of(test::plain(scaled_dot_product_attention), inputs, g, params);
        Tensors leaves;
        for (const Tensor& x : inputs) leaves.push_back(x.detach().set_requires_grad());
        if (!bias.empty()) params.bias = leaves[3];
        const detail::AttentionSizes sizes{B, queries, keys, H, kv_heads, D};
        const Tensor y = detail::attention_in_chunks(sizes, leaves[0], leaves[1], leaves[2], params, B * H * keys * 8 * 16);
        CHECK(largest_difference(y, expected.y) < 1e-12);
        const Tensors gradients = grad({y}, leaves, {g});
        for (std::size_t i = 0; i < leaves.size(); ++i) CHECK(largest_difference(gradients[i], expected.gradients[i]) < 1e-12);
      }
}

}  // namespace tern
