// Attention in tiles on a GPU, against the composition in float64 on the CPU.
#include <bit>
#include <cmath>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"
#include "tensor/context.h"

namespace tern {

namespace {

using Lengths = std::vector<std::int64_t>;

/// Sizes and options of a call.
struct Case {
  std::string name;
  std::int64_t batch = 2, queries = 333, keys = 333, heads = 2, kv_heads = 2;
  AttentionParams params = {.mask = {.causal = true}};
  bool is_packed = false;
  bool is_short = false;  ///< see check_gradients
};

Tensor numbers(const Lengths& values) { return Tensor::from(values, {static_cast<std::int64_t>(values.size())}); }

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({.name = "causal"});
  all.push_back({.name = "full, several tiles", .queries = 512, .keys = 512, .params = {}});
  all.push_back({.name = "fewer queries than keys, grouped heads", .queries = 333, .keys = 517, .heads = 6, .kv_heads = 2});
  all.push_back({.name = "more queries than keys", .queries = 333, .keys = 200});
  all.push_back({.name = "one query, as in decoding", .queries = 1, .keys = 700, .heads = 8});
  all.push_back({.name = "one of each", .batch = 1, .queries = 1, .keys = 1});
  all.push_back({.name = "window", .queries = 600, .keys = 600, .params = {.mask = {.causal = true, .window = 100}}});
  all.push_back({.name = "lengths, one of them 0", .batch = 3, .params = {.mask = {.key_lengths = numbers({300, 0, 129})}}});
  all.push_back({.name = "prefix and lengths",
                 .batch = 3,
                 .params = {.mask = {.causal = true, .prefix = numbers({0, 40, 333}), .key_lengths = numbers({333, 200, 333})}}});
  manual_seed(3);
  all.push_back({.name = "padding to add", .params = {.mask = {.causal = true, .padding = randn({2, 333})}}});
  all.push_back({.name = "padding that hides", .params = {.mask = {.padding = ge(randn({2, 333}), 0.0)}}});
  all.push_back({.name = "dropout", .params = {.mask = {.causal = true}, .dropout = 0.1, .training = true}});
  all.push_back({.name = "scale", .params = {.scale = 0.05}});
  all.push_back({.name = "packed",
                 .queries = 900,
                 .keys = 700,
                 .heads = 4,
                 .params = {.mask = {.causal = true},
                            .query_starts = numbers({0, 1, 400, 400, 900}),
                            .key_starts = numbers({0, 100, 400, 500, 700}),
                            .max_queries = 500,
                            .max_keys = 300},
                 .is_packed = true});
  return all;
}

/// Lengths at the borders of tiles and of the kernel that holds a sequence in one, each with another mask, with and without dropout.
std::vector<Case> short_cases() {
  std::vector<Case> all;
  for (const std::int64_t length : {1, 2, 3, 5, 16, 17, 31, 33, 40, 41, 45, 48, 57, 63, 64, 65, 70, 100, 257, 515})
    for (const int mask : {0, 1, 2, 3}) {
      Case c{.name = "length " + std::to_string(length) + ", mask " + std::to_string(mask), .batch = 3, .queries = length, .keys = length};
      c.is_short = true;
      c.params.mask.causal = mask != 3;
      if (mask == 1) c.params.mask.prefix = numbers({0, length * 2 / 3 + 1, length});
      if (mask > 1) {  // the second sequence sees nothing, the others not every third key or no key past the middle
        std::vector<float> padding;
        for (std::int64_t b = 0; b < 3; ++b)
          for (std::int64_t t = 0; t < length; ++t) {
            const bool is_hidden = b == 1 || (b == 0 ? t % 3 == 1 : t > length / 2);
            padding.push_back(is_hidden ? (t % 2 ? -INFINITY : -65504.0f) : 0.25f * float(t % 5));
          }
        c.params.mask.padding = Tensor::from(padding, {3, length});
      }
      if ((length + mask) % 2) c.params.dropout = 0.3, c.params.training = true;
      all.push_back(c);
    }
  return all;
}

/// Whether one tile holds the case's sequences of float32.
bool is_single_tile(const Case& c, std::int64_t width) { return c.queries <= 64 && (width == 32 || width == 64); }

std::vector<Case> both(std::vector<Case> first, const std::vector<Case>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

Tensor moved(const Tensor& x, Device device) { return x.defined() ? to(x, device) : x; }

AttentionParams moved(AttentionParams params, Device device, DType dtype) {
  AttentionMask& mask = params.mask;
  mask = {mask.causal, moved(mask.padding, device), moved(mask.prefix, device), moved(mask.key_lengths, device), mask.window};
  if (mask.padding.defined() && is_floating(mask.padding.dtype())) mask.padding = cast(mask.padding, dtype);
  params.query_starts = moved(params.query_starts, device);
  params.key_starts = moved(params.key_starts, device);
  return params;
}

struct Results {
  Tensor y;
  Tensors gradients;
};

template <class F>
Results results_of(F f, const Tensors& inputs, const Tensor& g, const AttentionParams& params) {
  manual_seed(11);
  const Tensor y = f(inputs[0], inputs[1], inputs[2], params);
  return {y, grad({y}, inputs, {g})};
}

/// The root mean square of a - b over all tensors, in those of b. Where b is zero, as the gradients are of a softmax over one key, its
/// terms have cancelled each other: in those of `terms`, whose products with a row of elements of about 1 they are.
double relative_difference(const Tensors& a, const Tensors& b, const Tensor& terms) {
  const NoGrad unrecorded;
  const auto squares = [](const Tensor& x) { return sum(x * x).item<double>(); };
  double off = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Tensor exact = b[i].detach();
    off += squares(cast(to(a[i].detach(), cpu), DType::f64) - exact);
    size += squares(exact);
  }
  return std::sqrt(off / (size > 0 ? size : squares(cast(terms, DType::f64))));
}
double relative_difference(const Tensor& a, const Tensor& b, const Tensor& terms) {
  return relative_difference(Tensors{a}, Tensors{b}, terms);
}

/// Checks the gradients of q, k and v: each by itself or, of short sequences, in which those of q and k may have cancelled all but their
/// last digits, all together.
void check_gradients(const Case& c, const Tensors& gradients, const Tensors& exact, const Tensor& g, double bound) {
  if (c.is_short) CHECK(relative_difference(gradients, exact, g) < bound);
  else
    for (std::size_t i = 0; i < 3; ++i) CHECK(relative_difference(gradients[i], exact[i], g) < bound);
}

/// q, k and v of a case. Keys and values are slices of one projection, with a gap behind them.
Tensors inputs_of(const Case& c, std::int64_t width, DType dtype, Device device) {
  manual_seed(5);
  const auto random = [&](std::int64_t rows, std::int64_t heads) {
    const Tensor x = randn(c.is_packed ? Shape{rows, heads, width} : Shape{c.batch, rows, heads, width});
    return to(cast(x, dtype), device);
  };
  const Tensor kv = random(c.keys, 3 * c.kv_heads);
  Tensors inputs = {random(c.queries, c.heads), slice(kv, -2, 0, c.kv_heads), slice(kv, -2, c.kv_heads, 2 * c.kv_heads)};
  for (Tensor& x : inputs) x.set_requires_grad();
  return inputs;
}

/// The shape of a case's scores, (B, H, T, S).
Shape scores_of(const Case& c) {
  if (c.is_packed) return {c.params.query_starts.numel() - 1, c.heads, c.params.max_queries, c.params.max_keys};
  return {c.batch, c.heads, c.queries, c.keys};
}

double norm_of(const Tensor& x) {
  const NoGrad unrecorded;
  const Tensor all = cast(to(x.detach(), cpu), DType::f64);
  return std::sqrt(sum(all * all).item<double>());
}

Tensor gradient_like(const Tensor& q, DType dtype) {
  manual_seed(6);
  return cast(randn(q.shape()), dtype);
}

}  // namespace

TEST_CASE("Attention on a GPU is that of float64 in every mask and head size", "[cuda]") {
  const DType dtype = GENERATE(DType::bf16, DType::f16, DType::f32);
  // Probabilities and the gradients of scores are rounded before their products, and so are results: errors of at most half a unit in
  // the last place, by root mean square together less than one unit roundoff. In f32 sums of 333 to 900 terms add to it.
  const double bound = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-20;
  for (const Case& c : both(cases(), short_cases()))
    for (const std::int64_t width : c.is_short ? std::vector{16, 32, 64, 128} : std::vector{16, 40, 64, 96, 128}) {
      if (c.is_short && dtype == DType::f32 && !is_single_tile(c, width)) continue;
      CAPTURE(c.name, width, name(dtype));
      const Tensors inputs = inputs_of(c, width, dtype, cuda());
      Tensors exact;
      for (const Tensor& x : inputs) exact.push_back(cast(to(x.detach(), cpu), DType::f64).set_requires_grad());
      const Tensor g = gradient_like(inputs[0], dtype);
      const Results expected =
          results_of(test::plain(scaled_dot_product_attention), exact, cast(g, DType::f64), moved(c.params, cpu, DType::f64));
      const Results results = results_of(scaled_dot_product_attention, inputs, to(g, cuda()), moved(c.params, cuda(), dtype));
      const double allowed = !c.is_short ? bound : dtype == DType::bf16 ? 2e-2 : dtype == DType::f16 ? 2e-3 : 2e-6;
      CHECK(relative_difference(results.y, expected.y, g) < allowed);
      check_gradients(c, results.gradients, expected.gradients, g, allowed);
    }
}

TEST_CASE("Attention on a GPU gives the gradient of a bias of every shape", "[cuda]") {
  const DType dtype = GENERATE(DType::bf16, DType::f16);
  const double bound = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;  // as above
  int number = 0;
  for (const Case& c : cases())
    for (const unsigned kept : {15u, 7u, 3u, 9u, 5u, 14u, 4u, 0u}) {  // dimensions that the bias is not broadcast along: S is bit 0
      const std::int64_t width = std::vector{16, 40, 64, 128, 200}[static_cast<std::size_t>(number++ % 5)];
      CAPTURE(c.name, kept, width, name(dtype));
      Shape shape = scores_of(c);
      Dims summed;
      for (int d = 0; d < 4; ++d)
        if (!(kept >> (3 - d) & 1)) shape[d] = 1, summed.push_back(d);
      Tensors inputs = inputs_of(c, width, dtype, cuda());
      inputs.push_back(to(cast(randn(shape), dtype), cuda()).set_requires_grad());
      Tensors exact;  // with a bias for each score, whose gradient is that of the scores
      for (std::size_t i = 0; i < 3; ++i) exact.push_back(cast(to(inputs[i].detach(), cpu), DType::f64).set_requires_grad());
      exact.push_back(clone(broadcast_to(cast(to(inputs[3].detach(), cpu), DType::f64), scores_of(c))).set_requires_grad());
      const Tensor g = gradient_like(inputs[0], dtype);
      const auto results_with_bias = [](auto f, const Tensors& in, const Tensor& gradient, AttentionParams params) {
        params.bias = in[3];
        return results_of(f, in, gradient, params);
      };
      const Results expected =
          results_with_bias(test::plain(scaled_dot_product_attention), exact, cast(g, DType::f64), moved(c.params, cpu, DType::f64));
      const Results results = results_with_bias(scaled_dot_product_attention, inputs, to(g, cuda()), moved(c.params, cuda(), dtype));
      CHECK(relative_difference(results.y, expected.y, g) < bound);
      for (std::size_t i = 0; i < 3; ++i) CHECK(relative_difference(results.gradients[i], expected.gradients[i], g) < bound);
      // The result is rounded, and so is y, from which all keys of a query have the same error: a sum over keys, 0 itself, is that error.
      // Each is less than a unit roundoff of the addends' root sum of squares; where those vanish, roundings of float32 are left.
      REQUIRE(results.gradients[3].shape() == shape);
      const Tensor &of_scores = expected.gradients[3], sums = summed.empty() ? of_scores : sum(of_scores, summed, true);
      const NoGrad unrecorded;
      CHECK(norm_of(cast(to(results.gradients[3].detach(), cpu), DType::f64) - sums.detach()) < 2 * bound * norm_of(of_scores) + 0x1p-17);
    }
}

TEST_CASE("Attention on a GPU in the modes tf32 and tf32x3 is that of float64, whatever the mode is in backward", "[cuda]") {
  const auto precision = GENERATE(MatmulPrecision::tf32, MatmulPrecision::tf32x3);
  // Numbers in two parts of 11 bits each: products are off by 2^-21, and by as much again where probabilities are products' results. Those
  // of one part, in short sequences, by 2^-11.
  const double bound = precision == MatmulPrecision::tf32 ? 1e-3 : 0x1p-19;  // 1.9e-6
  for (const Case& c : precision == MatmulPrecision::tf32 ? short_cases() : both(cases(), short_cases()))
    for (const std::int64_t width : {32, 40, 64, 128}) {
      if (c.is_short && !is_single_tile(c, width)) continue;
      CAPTURE(c.name, width, int(precision));
      const Tensors inputs = inputs_of(c, width, DType::f32, cuda());
      Tensors exact;
      for (const Tensor& x : inputs) exact.push_back(cast(to(x.detach(), cpu), DType::f64).set_requires_grad());
      const Tensor g = gradient_like(inputs[0], DType::f32);
      const Results expected =
          results_of(test::plain(scaled_dot_product_attention), exact, cast(g, DType::f64), moved(c.params, cpu, DType::f64));
      const AttentionParams params = moved(c.params, cuda(), DType::f32);
      manual_seed(11);
      Tensor y;
      {
        const MatmulPrecisionMode mode(precision);
        y = scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], params);
      }
      CHECK(relative_difference(y, expected.y, g) < bound);
      for (const MatmulPrecision in_backward : {MatmulPrecision::fp32, precision}) {
        const MatmulPrecisionMode mode(in_backward);
        check_gradients(c, grad({y}, inputs, {to(g, cuda())}, false, true), expected.gradients, g,
                        c.is_short && bound < 2e-6 ? 2e-6 : bound);
      }
    }
}

TEST_CASE("Attention on a GPU takes what begins within a vector, and passes on what is not a number", "[cuda]") {
  const auto precision = GENERATE(MatmulPrecision::fp32, MatmulPrecision::tf32);
  const MatmulPrecisionMode mode(precision);
  const std::int64_t length = 41, width = 32, count = 2 * length * 3 * 2 * width;
  manual_seed(7);
  const Tensor memory = randn({count + 1}, 0, 1, DType::f32, cuda()), g = randn({2, length, 2, width}, 0, 1, DType::f32, cuda());
  const Tensor shifted = reshape(slice(memory, 0, 1), {2, length, 3, 2, width});
  const auto self_attention = [](const Tensor& qkv) {
    const Tensors parts = unstack(qkv, 2);
    return scaled_dot_product_attention(parts[0], parts[1], parts[2], {.mask = {.causal = true}});
  };
  Tensors results[2];
  for (const bool copied : {false, true}) {
    const Tensor x = (copied ? clone(shifted) : shifted.detach()).set_requires_grad(), y = self_attention(x);
    results[copied] = {y.detach(), grad({y}, {x}, {g})[0]};
  }
  for (int i = 0; i < 2; ++i) CHECK(relative_difference(results[0][i], to(cast(results[1][i], DType::f64), cpu), g) == 0);

  std::vector<float> elements(2 * 20 * 3 * width, 0.5f);
  elements[3 * width * 7] = std::bit_cast<float>(0x7fffffff);  // the NaN that kernels make, in the first sequence's query 7
  const Tensor qkv = Tensor::from(elements, {2, 20, 3, 1, width}, cuda());
  const std::vector<float> sums = sum(self_attention(qkv), {2, 3}).to_vector<float>();
  for (std::size_t i = 0; i < sums.size(); ++i) CHECK(std::isnan(sums[i]) == (i == 7));
}

TEST_CASE("The gradient of attention on a GPU can be differentiated again", "[cuda]") {
  manual_seed(3);
  const Tensor given = cast(randn({1, 21, 3, 2, 16}, 0, 1, DType::f32, cuda()), DType::bf16);
  Tensor results[2];
  for (const bool fused : {false, true}) {
    const Tensor x = cast(given, fused ? DType::bf16 : DType::f64).detach().set_requires_grad();
    const Tensors parts = unstack(x, 2);
    const FusedKernels kernels(fused);
    const Tensor y = scaled_dot_product_attention(parts[0], parts[1], parts[2], {.mask = {.causal = true}});
    const Tensor dx = grad({sum(square(y))}, {x}, {}, true)[0];
    results[fused] = grad({sum(square(dx))}, {x})[0];
  }
  CHECK(relative_difference(results[1], to(results[0], cpu), given) < 5e-2);
}

TEST_CASE("Attention of one query on a GPU is that of float64 in every mask and head size", "[cuda]") {
  const NoGrad unrecorded;
  const DType dtype = GENERATE(DType::bf16, DType::f16, DType::f32);
  // Results are rounded once, by half a unit in the last place at most: the unit roundoff. Sums are of f32.
  const double bound = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-20;
  const Tensor padding = cast(cast(randn({2, 333}), DType::bf16), DType::f32);  // the same number in each dtype
  std::vector<Case> all;
  all.push_back({.name = "all keys", .keys = 700});
  all.push_back({.name = "one key", .batch = 1, .keys = 1});
  all.push_back({.name = "grouped heads", .keys = 1025, .heads = 12, .kv_heads = 2});
  all.push_back(
      {.name = "lengths, one of them 0", .batch = 4, .heads = 4, .params = {.mask = {.key_lengths = numbers({300, 0, 129, 256})}}});
  all.push_back({.name = "window", .keys = 900, .params = {.mask = {.causal = true, .window = 300}}});
  all.push_back({.name = "padding to add", .params = {.mask = {.padding = padding}}});
  all.push_back({.name = "padding that hides", .heads = 6, .params = {.mask = {.padding = ge(randn({2, 333}), 0.0)}, .scale = 0.05}});
  all.push_back({.name = "bias", .heads = 4, .params = {.bias = randn({4, 1, 333})}});
  for (Case& c : all)
    for (const std::int64_t width : {8, 40, 64, 80, 128, 256}) {
      CAPTURE(c.name, width, name(dtype));
      c.queries = 1;
      const Tensors inputs = inputs_of(c, width, dtype, cuda());
      Tensors exact;
      for (const Tensor& x : inputs) exact.push_back(cast(to(x.detach(), cpu), DType::f64));
      AttentionParams params = moved(c.params, cuda(), dtype), exactly = moved(c.params, cpu, DType::f64);
      if (c.params.bias.defined()) {
        params.bias = to(cast(c.params.bias, dtype), cuda());
        exactly.bias = cast(cast(c.params.bias, dtype), DType::f64);
      }
      const Tensor y = scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], params);
      const Tensor expected = test::plain(scaled_dot_product_attention)(exact[0], exact[1], exact[2], exactly);
      CHECK(relative_difference(y, expected, exact[0]) < bound);
    }
}

TEST_CASE("Attention on a GPU gives the same bits in every run", "[cuda]") {
  Case c{.name = "many blocks", .queries = 2048, .keys = 2048, .heads = 8, .kv_heads = 4};
  Tensors inputs = inputs_of(c, 64, DType::bf16, cuda());
  const Tensor g = to(gradient_like(inputs[0], DType::bf16), cuda());
  if (GENERATE(false, true)) {  // a bias, whose gradient several blocks have parts of
    c.params.bias = to(cast(randn({8, 1, 2048}), DType::bf16), cuda()).set_requires_grad();
    inputs.push_back(c.params.bias);
  }
  const Results first = results_of(scaled_dot_product_attention, inputs, g, c.params);
  const auto differences = [](const Tensor& a, const Tensor& b) {
    const NoGrad unrecorded;
    return sum(cast(ne(a, b), DType::i64));
  };
  Tensor off = zeros({}, DType::i64, cuda());
  for (int run = 0; run < 1000; ++run) {
    const Results again = results_of(scaled_dot_product_attention, inputs, g, c.params);
    off = off + differences(again.y.detach(), first.y.detach());
    for (std::size_t i = 0; i < inputs.size(); ++i) off = off + differences(again.gradients[i], first.gradients[i]);
  }
  CHECK(off.item<std::int64_t>() == 0);
}

TEST_CASE("Attention on a GPU takes memory that grows with the number of tokens alone", "[cuda]") {
  const bool is_biased = GENERATE(false, true);
  const auto peak_of = [&](std::int64_t length) {
    Case c{.name = "long", .batch = 1, .queries = length, .keys = length};
    Tensors inputs = inputs_of(c, 64, DType::bf16, cuda());
    if (is_biased) {
      c.params.bias = to(cast(randn({length}), DType::bf16), cuda()).set_requires_grad();
      inputs.push_back(c.params.bias);
    }
    const Tensor g = to(gradient_like(inputs[0], DType::bf16), cuda());
    reset_peak_memory(cuda());
    const std::size_t before = memory_statistics(cuda()).allocated;
    results_of(scaled_dot_product_attention, inputs, g, c.params);
    return memory_statistics(cuda()).peak_allocated - before;
  };
  const std::size_t peak = peak_of(4096), longer = peak_of(16384);
  CHECK(longer < 4.5 * double(peak));
  CHECK(longer < std::size_t(16384) * 16384 * 2 / 4);  // a quarter of a head's scores
}

TEST_CASE("Attention over packed sequences on a GPU takes memory by their rows, not by the longest", "[cuda]") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const ScopedValue<MatmulPrecision> precision(context().kernels.matmul_precision, MatmulPrecision::tf32x3);
  const auto peak_of = [&](const std::vector<std::int64_t>& lengths) {
    std::vector<std::int64_t> starts = {0};
    for (const std::int64_t length : lengths) starts.push_back(starts.back() + length);
    AttentionParams params{.mask = {.causal = true}};
    params.query_starts = params.key_starts = Tensor::from(starts, {std::int64_t(starts.size())}, cuda());
    params.max_queries = params.max_keys = *std::max_element(lengths.begin(), lengths.end());
    Tensors inputs;
    for (int i = 0; i < 3; ++i) inputs.push_back(to(cast(randn({starts.back(), 2, 64}), dtype), cuda()).set_requires_grad());
    const Tensor g = to(cast(randn({starts.back(), 2, 64}), dtype), cuda());
    reset_peak_memory(cuda());
    const std::size_t before = memory_statistics(cuda()).allocated;
    results_of(scaled_dot_product_attention, inputs, g, params);
    return memory_statistics(cuda()).peak_allocated - before;
  };
  std::vector<std::int64_t> uneven(128, 32);
  uneven.insert(uneven.begin() + 5, 4096);
  CHECK(double(peak_of(uneven)) < 2.5 * double(peak_of({4096, 4096})));  // each sequence begins a tile of 64
}

}  // namespace tern
