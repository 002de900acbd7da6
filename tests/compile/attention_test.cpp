// Attention that is written in ops runs as flash attention in the groups of a GPU, and only where nobody sees the difference.
#include "ops/attention.h"

#include <cmath>
#include <functional>

#include "autodiff/engine.h"
#include "catch.h"
#include "compile/compile.h"
#include "message.h"
#include "nn/nn.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"
#include "written_ops.h"

using namespace tern;
using namespace tern::test;

namespace {

constexpr std::int64_t B = 2, H = 6, D = 40;

using Scores = std::function<Tensor(const Tensor&)>;
using Attention = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>;

/// Attention of q, k and v (B, H, T, D), whose scores go through a function.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Scores& probabilities) {
  return matmul(probabilities(matmul(q, transpose(k, -2, -1))), v);
}

/// Kernels of a program that are attention, and those that are products.
struct Counts {
  std::size_t attention, products;
  explicit Counts(const ProgramOverview& overview) : attention(0), products(0) {
    for (const auto& group : overview.groups)
      for (const std::string& kernel : group.kernels) attention += kernel == "attention", products += kernel == "matmul";
  }
};

/// Compares attention of q, k and v (B, H, T, D), or (B, T, D) without heads, and its gradients with those as written, in four calls;
/// returns the counts of its program.
Counts check(const Attention& attention, DType dtype, std::int64_t queries, std::int64_t keys, bool has_gradient, bool has_heads = true) {
  const auto f = [&](const Tensors& in) -> Tensors {
    if (!has_gradient) {
      const NoGrad unrecorded;
      return {attention(in[0], in[1], in[2])};
    }
    Tensors leaves;
    for (std::size_t i = 0; i < 3; ++i) leaves.push_back(in[i].detach().set_requires_grad());
    const Tensor y = attention(leaves[0], leaves[1], leaves[2]);
    Tensors results = grad({y}, leaves, {in[3]});
    results.push_back(y.detach());
    return results;
  };
  auto compiled = tern::compile(f, default_device(), {.as_on_gpu = true});
  // On a GPU products of f32 are those of tf32x3.
  const double bound = dtype == DType::f32 ? default_device() == cpu ? 2e-6 : 2e-5 : dtype == DType::f16 ? 4e-3 : 3e-2;
  manual_seed(3);
  for (int call = 0; call < 4; ++call) {
    Tensors in;
    for (const std::int64_t rows : {queries, keys, keys, queries})
      in.push_back(randn(has_heads ? Shape{B, H, rows, D} : Shape{B, rows, D}, 0, 1, dtype));
    const std::uint64_t position = context().generator.position();
    const Tensors want = f(in);
    context().generator.set_position(position);
    const Tensors got = compiled(in);
    for (std::size_t i = 0; i < want.size(); ++i) {
      INFO("call " << call << ", result " << i);
      const Tensor a = cast(want[i], DType::f64), b = cast(got[i], DType::f64);
      CHECK(std::sqrt(sum((a - b) * (a - b)).item<double>() / sum(a * a).item<double>()) < bound);
    }
  }
  return Counts(compiled.overview());
}
Counts check(const Scores& probabilities, DType dtype, std::int64_t queries, std::int64_t keys, bool has_gradient = true,
             bool has_heads = true) {
  const auto attention = [&](const Tensor& q, const Tensor& k, const Tensor& v) { return attend(q, k, v, probabilities); };
  return check(attention, dtype, queries, keys, has_gradient, has_heads);
}

Tensor causal(std::int64_t queries, std::int64_t keys) {
  return triu(full({queries, keys}, -INFINITY), static_cast<int>(keys - queries) + 1);
}

void spellings() {
  const std::int64_t T = 24, S = 33;
  const Tensor mask = causal(T, S), hidden = mask < 0.0, visible = mask == 0.0;
  const Tensor bias = randn({H, T, S});
  const std::vector<std::pair<const char*, Scores>> all = {
      {"products alone", [](const Tensor& x) { return softmax_of_ops(x); }},
      {"scaled", [](const Tensor& x) { return softmax_of_ops(x * 0.25); }},
      {"divided", [](const Tensor& x) { return softmax(x / 4.0, -1); }},
      {"causal", [=](const Tensor& x) { return softmax_of_ops(x * 0.25 + mask); }},
      {"hidden", [=](const Tensor& x) { return softmax(masked_fill(x * 0.25, hidden, -INFINITY), -1); }},
      {"visible", [=](const Tensor& x) { return softmax(where(visible, x * 0.25, -INFINITY), -1); }},
      {"biased", [=](const Tensor& x) { return softmax(x * 0.25 + cast(bias, x.dtype()), -1); }},
      {"dropped", [=](const Tensor& x) { return dropout(softmax(x * 0.25 + mask, -1), 0.3); }},
  };
  for (const auto& [name, probabilities] : all)
    for (const bool has_gradient : {true, false}) {
      INFO(name << (has_gradient ? ", with gradients" : ""));
      const Counts counts = check(probabilities, DType::f32, T, S, has_gradient);
      if (std::string_view(name) == "biased" && default_device() != cpu) continue;  // no kernel has a bias in f32
      CHECK(counts.attention == (has_gradient ? 2 : 1));
      CHECK(counts.products == 0);
      if (std::string_view(name) == "biased") continue;  // by head
      const Counts without_heads = check(probabilities, DType::f32, T, S, has_gradient, false);
      CHECK(without_heads.attention == (has_gradient ? 2 : 1));
      CHECK(without_heads.products == 0);
    }
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto in_f32 = [=](const Tensor& x) { return cast(softmax_of_ops(cast(x, DType::f32) * 0.25 + mask), x.dtype()); };
    CHECK(check(in_f32, dtype, T, S).attention == 2);
    CHECK(check([=](const Tensor& x) { return dropout(in_f32(x), 0.3); }, dtype, T, S).attention == 2);
    CHECK(check([=](const Tensor& x) { return softmax(x * 0.25, -1); }, dtype, S, S).attention == 2);
    CHECK(check([=](const Tensor& x) { return softmax(x * 0.25 + cast(bias, x.dtype()), -1); }, dtype, T, S).attention == 2);
  }
}

/// Query heads in groups, which broadcast the heads of keys and values.
void in_groups() {
  const std::int64_t T = 24, S = 33;
  const Tensor mask = causal(T, S), hidden = mask < 0.0, bias = randn({T, S}), of_groups = randn({3, T, S});
  const std::vector<std::pair<const char*, Scores>> all = {
      {"products alone", [](const Tensor& x) { return softmax_of_ops(x); }},
      {"causal", [=](const Tensor& x) { return softmax_of_ops(x * 0.25 + mask); }},
      {"hidden", [=](const Tensor& x) { return softmax(masked_fill(x * 0.25, hidden, -INFINITY), -1); }},
      {"biased", [=](const Tensor& x) { return softmax(x * 0.25 + bias, -1); }},
      {"dropped", [=](const Tensor& x) { return dropout(softmax(x * 0.25 + mask, -1), 0.3); }},
      {"biased by group", [=](const Tensor& x) { return softmax(x * 0.25 + of_groups, -1); }},
  };
  for (const auto& [name, probabilities] : all)
    for (const bool has_gradient : {true, false}) {
      INFO(name << (has_gradient ? ", with gradients" : ""));
      const auto attention = [&, scores = probabilities](const Tensor& q, const Tensor& k, const Tensor& v) {
        const auto shared = [](const Tensor& x) { return unsqueeze(slice(x, 1, 0, 2), 2); };
        return reshape(attend(reshape(q, {B, 2, 3, T, D}), shared(k), shared(v), scores), {B, H, T, D});
      };
      const Counts counts = check(attention, DType::f32, T, S, has_gradient);
      if (std::string_view(name) == "biased" && default_device() != cpu) continue;  // no kernel has a bias in f32
      CHECK(counts.attention == (std::string_view(name) == "biased by group" ? 0 : has_gradient ? 2 : 1));
    }
}

/// The op under plain kernels, with its masks.
void of_op() {
  const std::int64_t T = 24, S = 33;
  const Tensor lengths = Tensor::from(std::vector<std::int64_t>{0, 19}, {B}), prefix = Tensor::from(std::vector<std::int64_t>{3, 14}, {B});
  Tensor padding = zeros({B, S});
  copy_(slice(padding, 1, 20), full({B, S - 20}, -INFINITY));
  copy_(slice(padding, 1, 0, 4), full({B, 4}, -1.5));
  const std::vector<std::pair<const char*, AttentionParams>> all = {
      {"no mask", {}},
      {"scale", {.scale = 0.25}},
      {"causal", {.mask = {.causal = true}}},
      {"window", {.mask = {.causal = true, .window = 5}}},
      {"padding", {.mask = {.padding = padding}}},
      {"causal, padding", {.mask = {.causal = true, .padding = padding}}},
      {"prefix", {.mask = {.causal = true, .prefix = prefix}}},
      {"key_lengths", {.mask = {.key_lengths = lengths}}},
      {"all", {.mask = {.causal = true, .padding = padding, .key_lengths = lengths, .window = 7}}},
      {"dropout", {.mask = {.causal = true, .key_lengths = lengths}, .dropout = 0.3, .training = true}},
  };
  const auto op_with = [](const AttentionParams& params, bool is_autocast, std::int64_t kv_heads) {
    return [=](const Tensor& q, const Tensor& k, const Tensor& v) {
      const PlainKernels plain;
      std::optional<Autocast> autocast;
      if (is_autocast) autocast.emplace(q.dtype());
      const auto shared = [=](const Tensor& x) { return transpose(slice(x, 1, 0, kv_heads), 1, 2); };
      return transpose(scaled_dot_product_attention(transpose(q, 1, 2), shared(k), shared(v), params), 1, 2);
    };
  };
  for (const auto& [name, params] : all)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const bool is_autocast : {false, true}) {
        if (dtype == DType::f32 && is_autocast) continue;
        for (const bool has_gradient : {true, false}) {
          INFO(name << ", " << tern::name(dtype) << (is_autocast ? ", autocast" : "") << (has_gradient ? ", with gradients" : ""));
          const Counts counts = check(op_with(params, is_autocast, H), dtype, T, S, has_gradient);
          CHECK(counts.attention == (has_gradient ? 2 : 1));
          CHECK(counts.products == 0);
        }
      }
  for (const std::int64_t kv_heads : {1, 2, 3})
    for (const bool has_gradient : {true, false}) {
      INFO(kv_heads << " heads of k" << (has_gradient ? ", with gradients" : ""));
      const Counts counts = check(op_with({.mask = {.causal = true}}, false, kv_heads), DType::bf16, T, S, has_gradient);
      CHECK(counts.attention == (has_gradient ? 2 : 1));
      CHECK(counts.products == 0);
    }
}

void others() {
  const std::int64_t T = 16;
  // A mask that is not causal, and is not of the dtype of q.
  const Tensor window = causal(T, T) + transpose(triu(full({T, T}, -INFINITY), 5), 0, 1);
  CHECK(check([=](const Tensor& x) { return cast(softmax_of_ops(cast(x, DType::f32) * 0.25 + window), x.dtype()); }, DType::bf16, T, T)
            .attention == 0);
  CHECK(check([=](const Tensor& x) { return softmax(where(window == 0.0, x, -INFINITY), -1); }, DType::f32, T, T).attention == 0);
  // Temperatures, a sum of another dimension, a number that is not -inf.
  const Tensor temperatures = rand({H, 1, 1}) + 0.5;
  CHECK(check([=](const Tensor& x) { return softmax(x * temperatures, -1); }, DType::f32, T, T).attention == 0);
  CHECK(check([=](const Tensor& x) { return softmax(x, -2); }, DType::f32, T, T).attention == 0);
  const Tensor hidden = causal(T, T) < 0.0;
  CHECK(check([=](const Tensor& x) { return softmax(masked_fill(x, hidden, -5.0), -1); }, DType::f32, T, T).attention == 0);
  // Exponentials that are divided by something else than their sum, which is there.
  const Tensor given = rand({B, H, T, 1}) + 1.0;
  const auto divided = [&](const Tensor& x) {
    const Tensor e = exp(x - max(x, -1, true));
    sum(e, -1, true);
    return e / given;
  };
  CHECK(check(divided, DType::f32, T, T, false).attention == 0);
  CHECK(check([](const Tensor& x) { return transpose(softmax(x, -1), -2, -1); }, DType::f32, T, T).attention == 0);
  // Scores without heads whose mask is made within, as the op makes it.
  const auto hides = [=](const Tensor& x) { return softmax(masked_fill(x, gt(arange(T, DType::i64), 7.0), -INFINITY), -1); };
  CHECK(check(hides, DType::f32, T, T, true, false).attention == 0);
  // The op's softmax, with another diagonal than its own.
  const auto sees_more = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    const PlainKernels plain;
    const Tensor columns = arange(T, DType::i64), own = reshape(arange(T, DType::i64), {T, 1}) + 3.0;
    const Tensor is_hidden = gt(columns, own), scores = matmul(q, transpose(k, -1, -2), 0.25);
    const Tensor y = detail::softmax(masked_fill(scores, is_hidden, -INFINITY), -1, detail::Hidden::is_zero);
    return matmul(masked_fill(y, is_hidden, 0), v);
  };
  CHECK(check(sees_more, DType::f32, T, T, true).attention == 0);
  // Probabilities that somebody else sees.
  Tensor kept = zeros({B, H, T, T});
  const auto keeps = [&](const Tensor& x) {
    const Tensor y = softmax(x * 0.25, -1);
    const NoGrad unrecorded;
    return copy_(kept, y.detach()), y;
  };
  CHECK(check(keeps, DType::f32, T, T).attention == 0);
  CHECK(check(keeps, DType::f32, T, T, false).attention == 0);
}

}  // namespace

TEST_CASE("Attention whose gradients are no part of the function is flash attention, with its gradients") {
  const auto attention = [](const Tensor& q, const Tensor& k, const Tensor& v) {
    return attend(q, k, v, [](const Tensor& x) { return softmax_of_ops(x * 0.25); });
  };
  auto f = tern::compile(attention, cpu, {.as_on_gpu = true});
  for (int call = 0; call < 6; ++call) {
    Tensors in;
    for (int i = 0; i < 3; ++i) in.push_back(randn({B, H, 24, D}).set_requires_grad());
    const Tensor dy = randn({B, H, 24, D});
    const Tensors got = grad({f(in[0], in[1], in[2])}, in, {dy}), want = grad({attention(in[0], in[1], in[2])}, in, {dy});
    for (std::size_t i = 0; i < 3; ++i) CHECK(max(abs(got[i] - want[i])).item<float>() < 5e-5f);
  }
  const Counts counts(f.overview());
  CHECK(counts.attention == 2);
  CHECK(counts.products == 0);
}

TEST_CASE("Attention of ops is flash attention, however it is written") { spellings(); }
TEST_CASE("Attention of ops is flash attention on a GPU, however it is written", "[cuda]") {
  const DeviceScope on_gpu(cuda());
  const ScopedValue<MatmulPrecision> tf32(context().kernels.matmul_precision, MatmulPrecision::tf32x3);
  spellings();
}
TEST_CASE("Attention of ops whose heads are in groups is flash attention") { in_groups(); }
TEST_CASE("Attention of ops whose heads are in groups is flash attention on a GPU", "[cuda]") {
  const DeviceScope on_gpu(cuda());
  const ScopedValue<MatmulPrecision> tf32(context().kernels.matmul_precision, MatmulPrecision::tf32x3);
  in_groups();
}
TEST_CASE("The attention op is flash attention under plain kernels, with any mask") { of_op(); }
TEST_CASE("The attention op is flash attention on a GPU under plain kernels, with any mask", "[cuda]") {
  const DeviceScope on_gpu(cuda());
  const ScopedValue<MatmulPrecision> tf32(context().kernels.matmul_precision, MatmulPrecision::tf32x3);
  of_op();
}
TEST_CASE("Models under plain kernels have flash attention in each layer") {
  constexpr std::int64_t vocab = 31, length = 12;
  nn::TransformerOptions options{.vocab = vocab, .length = length, .width = 48, .layers = 2, .heads = 6, .ff = 64, .dropout = 0.1};
  const nn::DecoderLM gpt(options);
  const nn::EncoderDecoder translator({options});
  options.kv_heads = 2, options.positions = nn::Positions::rotary, options.norm = nn::NormKind::rms;
  const nn::DecoderLM llama(options);
  using Loss = std::function<Tensor(const Tensor& ids, const Tensor& labels, const Tensor& lengths)>;
  struct Case {
    const char* name;
    const nn::Module& model;
    std::size_t attentions;
    Loss loss;
  };
  const std::vector<Case> cases = {
      {"gpt", gpt, 2, [&](const Tensor& ids, const Tensor& labels, const Tensor&) { return gpt.loss(ids, labels); }},
      {"llama", llama, 2, [&](const Tensor& ids, const Tensor& labels, const Tensor&) { return llama.loss(ids, labels); }},
      {"translator", translator, 6, [&](const Tensor& ids, const Tensor& labels, const Tensor& lengths) {
         return translator.loss(flip(ids, {1}), lengths, ids, labels);
       }}};
  for (const Case& c : cases)
    for (const bool is_autocast : {false, true}) {
      INFO(c.name << (is_autocast ? ", autocast" : ""));
      const Tensors leaves = nn::parameters(c.model);
      const auto step = [&](const Tensors& in) {
        const PlainKernels plain;
        std::optional<Autocast> autocast;
        if (is_autocast) autocast.emplace(DType::bf16);
        const Tensor loss = c.loss(in[0], in[1], in[2]);
        Tensors results = grad({loss}, leaves);
        results.push_back(loss.detach());
        return results;
      };
      auto compiled = tern::compile(step, cpu, {.as_on_gpu = true});
      for (int call = 0; call < 4; ++call) {
        const Tensors in = {randint(0, vocab, {3, length}), randint(0, vocab, {3, length}), randint(1, length + 1, {3})};
        const std::uint64_t position = context().generator.position();
        const Tensors want = step(in);
        context().generator.set_position(position);
        const Tensors got = compiled(in);
        for (std::size_t i = 0; i < want.size(); ++i) {
          const Tensor apart = want[i] - got[i];
          const double size = sum(want[i] * want[i]).item<double>();
          CHECK(sum(apart * apart).item<double>() <= (is_autocast ? 1e-3 : 1e-9) * size + 1e-12);
        }
      }
      CHECK(Counts(compiled.overview()).attention == 2 * c.attentions);
    }
}
TEST_CASE("Attention of ops stays as it is where flash attention is something else") { others(); }
TEST_CASE("Attention of ops stays as it is on a GPU where flash attention is something else", "[cuda]") {
  const DeviceScope on_gpu(cuda());
  others();
}

TEST_CASE("Attention of ops has the gradients of a result that is edited afterwards") {
  const std::int64_t T = 16, W = H * D;
  for (const bool is_copy : {false, true}) {
    const auto f = [&](const Tensors& in) {
      Tensors leaves;
      for (const Tensor& x : in) leaves.push_back(x.detach().set_requires_grad());
      const Tensor y = attend(leaves[0], leaves[1], leaves[2], [](const Tensor& x) { return softmax(x * 0.25, -1); });
      const Tensor z = reshape(transpose(y, 1, 2), {B, T, W});
      {
        const NoGrad unrecorded;
        Tensor edited = (is_copy ? z : y).detach();
        add_(edited, 1.0);
      }
      Tensors results = grad({z}, leaves, {reshape(in[0], {B, T, W})});
      results.push_back((is_copy ? z : y).detach() * 2.0);
      return results;
    };
    auto compiled = tern::compile(f, cpu, {.as_on_gpu = true});
    for (int call = 0; call < 4; ++call) {
      Tensors in;
      for (int i = 0; i < 3; ++i) in.push_back(randn({B, H, T, D}));
      const Tensors want = f(in), got = compiled(in);
      for (std::size_t i = 0; i < want.size(); ++i)
        CHECK(max(abs(got[i] - want[i])).item<float>() < 1e-5F * max(abs(want[i])).item<float>());
    }
  }
}

TEST_CASE("A mask that was causal is looked at again after an edit") {
  const std::int64_t T = 16;
  const Tensor mask = causal(T, T);
  const auto f = [&](const Tensor& q) {
    return attend(q, q * 2.0, q + 1.0, [&](const Tensor& x) { return softmax(x * 0.25 + mask, -1); });
  };
  auto compiled = tern::compile(f, cpu, {.as_on_gpu = true});
  for (int call = 0; call < 8; ++call) {
    INFO("call " << call);
    if (call == 5) copy_(mask, zeros({T, T}));
    const Tensor q = randn({B, H, T, D});
    CHECK(max(abs(compiled(q) - f(q))).item<float>() < 1e-5F);
    if (call == 2) CHECK(Counts(compiled.overview()).attention == 1);
  }
  CHECK(Counts(compiled.overview()).attention == 1);  // with the mask as a bias
}

TEST_CASE("Attention of ops reads parts of a projection and writes its gradient, without copies") {
  const std::int64_t T = 16, W = H * D;
  Tensor weight = (randn({W, 3 * W}) * 0.1).set_requires_grad();
  const Tensor mask = causal(T, T);
  const auto f = [&](const Tensor& x) {
    const Tensors parts = split(transpose(reshape(matmul(x, weight), {B, T, 3 * H, D}), 1, 2), H, 1);
    const Tensor y = attend(parts[0], parts[1], parts[2], [&](const Tensor& s) { return softmax_of_ops(s * 0.25 + mask); });
    const Tensor z = reshape(transpose(y, 1, 2), {B, T, W});
    return grad({z}, {weight}, {x * x})[0];
  };
  auto compiled = tern::compile(f, cpu, {.as_on_gpu = true});
  for (int call = 0; call < 4; ++call) {
    const Tensor x = randn({B, T, W}), want = f(x);
    CHECK(max(abs(compiled(x) - want)).item<float>() < 1e-5F * max(abs(want)).item<float>());
  }
  const ProgramOverview overview = compiled.overview();
  INFO(compiled.show(Stage::groups));
  CHECK(overview.groups.size() == 5);  // two products, two of attention, x * x
}
