// What autocast casts for, op by op, and what a scope does with weights and gradients.
#include "ops/autocast.h"

#include <map>
#include <memory>

#include "autodiff/parameter_buffer.h"
#include "catch.h"
#include "message.h"
#include "ops/attention.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"

using namespace tern;

namespace {

/// The dtype of an op's result under autocast, and every form of the op.
struct Calls {
  CastTo to;
  std::vector<std::function<Tensor(const Tensor&)>> forms;
};

/// The ops that autocast casts for, as functions of x (4, 4), which is positive.
const std::map<std::string, Calls>& calls() {
  const auto ids = [] { return Tensor::from(std::vector<std::int64_t>{0, 3, 1, 2}, {4}); };
  const auto row = [](const Tensor& x) { return cast(ones({4}), x.dtype()); };
  static const std::map<std::string, Calls> all = {
      {"matmul",
       {CastTo::lower,
        {[](const Tensor& x) { return matmul(x, x); }, [=](const Tensor& x) { return matmul(x, row(x)); },
         [](const Tensor& x) { return matmul(x, ones({4, 4})); }}}},
      {"linear",
       {CastTo::lower,
        {[](const Tensor& x) { return linear(x, x, {}); }, [](const Tensor& x) { return linear(x, ones({3, 4}), ones({3})); }}}},
      {"depthwise_conv1d",
       {CastTo::lower,
        {[](const Tensor& x) { return depthwise_conv1d(reshape(x, {1, 4, 4}), x); },
         [](const Tensor& x) { return depthwise_conv1d_step(zeros({4, 3, 4}), x, ones({4, 4}), ones({4})).y; }}}},
      {"conv1d",
       {CastTo::lower,
        {[](const Tensor& x) { return conv1d(reshape(x, {1, 4, 4}), reshape(x, {4, 4, 1})); },
         [](const Tensor& x) { return conv1d(reshape(x, {1, 4, 4}), ones({2, 4, 1}), ones({2})); }}}},
      {"conv2d", {CastTo::lower, {[](const Tensor& x) { return conv2d(reshape(x, {1, 1, 4, 4}), reshape(x, {4, 1, 2, 2})); }}}},
      {"conv_transpose2d",
       {CastTo::lower, {[](const Tensor& x) { return conv_transpose2d(reshape(x, {1, 4, 2, 2}), reshape(x, {4, 1, 2, 2})); }}}},
      {"softmax", {CastTo::f32, {[](const Tensor& x) { return softmax(x); }}}},
      {"log_softmax", {CastTo::f32, {[](const Tensor& x) { return log_softmax(x); }}}},
      {"attention_softmax",
       {CastTo::f32,
        {test::plain([](const Tensor& x) { return attention_softmax(x, {.causal = true}); }),
         [](const Tensor& x) { return attention_softmax(x); }}}},
      {"layer_norm",
       {CastTo::f32,
        {test::plain([=](const Tensor& x) { return layer_norm(x, row(x), {}); }),
         [](const Tensor& x) { return layer_norm(x, ones({4}), ones({4})); },
         test::plain([](const Tensor& x) { return residual_layer_norm(x, ones({4, 4}), {}, {}).y; }),
         [](const Tensor& x) { return residual_layer_norm(x, ones({4, 4}), ones({4}), {}, 1e-5, {.bias = ones({4})}).sum; }}}},
      {"rms_norm",
       {CastTo::f32,
        {test::plain([=](const Tensor& x) { return rms_norm(x, row(x)); }), [](const Tensor& x) { return rms_norm(x, ones({4})); },
         test::plain([](const Tensor& x) { return residual_rms_norm(x, ones({4, 4}), {}).y; }),
         [](const Tensor& x) { return residual_rms_norm(x, ones({4, 4}), {}).y; }}}},
      {"cross_entropy", {CastTo::f32, {[=](const Tensor& x) { return cross_entropy(x, ids()); }}}},
      {"mse_loss",
       {CastTo::f32, {[](const Tensor& x) { return mse_loss(x, x * 2); }, [](const Tensor& x) { return mse_loss(x, ones({4, 4})); }}}},
      {"exp", {CastTo::f32, {[](const Tensor& x) { return exp(x); }}}},
      {"log", {CastTo::f32, {[](const Tensor& x) { return log(x); }}}},
      {"log1p", {CastTo::f32, {[](const Tensor& x) { return log1p(x); }}}},
      {"expm1", {CastTo::f32, {[](const Tensor& x) { return expm1(x); }}}},
      {"pow",
       {CastTo::f32,
        {[](const Tensor& x) { return pow(x, 2.0); }, [](const Tensor& x) { return pow(2.0, x); },
         [](const Tensor& x) { return pow(x, x); }}}},
      {"rsqrt", {CastTo::f32, {[](const Tensor& x) { return rsqrt(x); }}}},
      {"reciprocal", {CastTo::f32, {[](const Tensor& x) { return reciprocal(x); }, [](const Tensor& x) { return 1.0 / x; }}}},
      {"sum", {CastTo::f32, {[](const Tensor& x) { return sum(x); }, [](const Tensor& x) { return sum(x, {1}, true); }}}},
      {"prod", {CastTo::f32, {[](const Tensor& x) { return prod(x, {1}); }}}},
      {"cumsum", {CastTo::f32, {[](const Tensor& x) { return cumsum(x, 0); }}}},
      {"logsumexp", {CastTo::f32, {[](const Tensor& x) { return logsumexp(x, {1}); }}}},
      {"cat", {CastTo::widest, {[](const Tensor& x) { return cat({x, x}, 0); }}}},
      {"stack", {CastTo::widest, {[](const Tensor& x) { return stack({x, x}, 0); }}}},
  };
  return all;
}

Tensor positive(DType dtype) { return cast(rand({4, 4}, 0.5, 1.5), dtype); }

}  // namespace

TEST_CASE("every op that autocast casts for computes in the dtype that it says", "[autocast]") {
  manual_seed(1);
  for (const DType lower : {DType::bf16, DType::f16})
    for (const auto& [op, rule] : calls())
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        INFO(op << " of " << name(dtype) << " in " << name(lower));
        for (std::size_t form = 0; form < rule.forms.size(); ++form) {
          INFO("form " << form);
          const auto& call = rule.forms[form];
          const Tensor x = positive(dtype);
          const Autocast autocast(lower);
          if (dtype == DType::f64) {
            if (form == 0) CHECK(call(x).dtype() == DType::f64);
            continue;
          }
          const DType expected = rule.to == CastTo::lower ? lower : rule.to == CastTo::f32 ? DType::f32 : dtype;
          CHECK(call(x).dtype() == expected);
        }
      }
}

TEST_CASE("other ops follow their inputs under autocast", "[autocast]") {
  const Tensor wide = positive(DType::f32), narrow = positive(DType::bf16), whole = full({4, 4}, 2, DType::i64);
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{0, 3}, {2});
  const Autocast autocast(DType::bf16);
  for (const Tensor& x : {wide, narrow}) {
    for (const Tensor& y :
         {gelu(x), relu(x), tanh(x), sqrt(x), x + x, x * 2, x / 3, mean(x), var(x), max(x), embedding(x, ids), dropout(x, 0.5, true)})
      CHECK(y.dtype() == x.dtype());
  }
  CHECK((wide + narrow).dtype() == DType::f32);
  CHECK(cat({wide, narrow}, 0).dtype() == DType::f32);
  CHECK(stack({narrow, wide}, 0).dtype() == DType::f32);
  CHECK(sum(whole).dtype() == DType::i64);
  CHECK(pow(whole, 2.0).dtype() == DType::i64);
}

TEST_CASE("autocast ends with its scope, and scopes nest", "[autocast]") {
  const Tensor x = positive(DType::f32);
  {
    const Autocast outer(DType::bf16);
    CHECK(matmul(x, x).dtype() == DType::bf16);
    {
      const Autocast inner(DType::f16);
      CHECK(matmul(x, x).dtype() == DType::f16);
      const NoAutocast none;
      CHECK(matmul(x, x).dtype() == DType::f32);
    }
    CHECK(matmul(x, x).dtype() == DType::bf16);
  }
  CHECK(matmul(x, x).dtype() == DType::f32);
  CHECK(context().autocast == nullptr);
  CHECK_THROWS_AS(Autocast(DType::f32), Error);
  CHECK(context().autocast == nullptr);
}

TEST_CASE("a weight is cast once for each of its versions", "[autocast]") {
  Tensor weight = positive(DType::f32).set_requires_grad();
  const Tensor x = positive(DType::f32);
  Autocast autocast(DType::bf16);
  const Tensor first = autocast.operand(CastTo::lower, weight);
  CHECK(first.is_same(autocast.operand(CastTo::lower, weight)));
  CHECK(!autocast.operand(CastTo::lower, x).is_same(autocast.operand(CastTo::lower, x)));  // not a weight
  {
    const NoGrad unrecorded;
    CHECK(!autocast.operand(CastTo::lower, weight).requires_grad());
  }
  CHECK(autocast.operand(CastTo::lower, weight).requires_grad());
  {
    const NoGrad unrecorded;
    fill_(weight, 2);
  }
  CHECK(autocast.operand(CastTo::lower, weight).to_vector<bf16>()[0] == 2.f);
  // A cast whose graph a backward pass has freed is made anew.
  for (int step = 0; step < 2; ++step) {
    sum(linear(x, weight, {}) + matmul(x, weight)).backward();
    CHECK(weight.grad().dtype() == DType::f32);
  }
}

TEST_CASE("A weight whose memory is freed is cast by the copy that stands for it, until it is edited", "[autocast]") {
  const Tensor flat = flat_freed(16, DType::f32, cpu);
  const Tensor weight = windows_of(flat, {positive(DType::f32)}, DType::f32)[0].set_requires_grad();
  const Tensor copy = full(weight.shape(), 3.0, DType::bf16);
  Autocast autocast(DType::bf16);
  CHECK(
      contains(message_of([&] { autocast.operand(CastTo::lower, weight); }), "[data] expected memory but it is freed: sharded parameters"));
  autocast.use(weight, copy);
  const Tensor used = autocast.operand(CastTo::lower, weight);
  CHECK(used.impl().storage == copy.impl().storage);
  autocast.use(weight, copy);
  CHECK(autocast.operand(CastTo::lower, weight).is_same(used));
  sum(linear(positive(DType::f32), weight, {})).backward();
  CHECK(weight.grad().dtype() == DType::f32);
  flat_storage(flat)->take(ones({16}));
  weight.impl().storage->bump_version();
  CHECK(autocast.operand(CastTo::lower, weight).to_vector<bf16>()[0] == 1.f);
}

TEST_CASE("gradients flow through autocast's casts", "[autocast]") {
  manual_seed(2);
  const Tensor x = randn({8, 4}), targets = Tensor::from(std::vector<std::int64_t>{0, 2, 1, 1, 0, 2, 2, 1}, {8});
  const auto loss = [&](const Tensors& w) {
    const Tensor h = layer_norm(gelu(linear(x, w[0], w[1])), w[2], w[3]);
    return cross_entropy(linear(h, w[4], {}), targets);
  };
  Tensors plain{randn({6, 4}), randn({6}), ones({6}), zeros({6}), randn({3, 6})}, cast_weights;
  for (Tensor& w : plain) {
    cast_weights.push_back(clone(w).set_requires_grad());
    w.set_requires_grad();
  }
  const Tensor expected = loss(plain);
  expected.backward();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Tensor value;
    for (Tensor& w : cast_weights) w.set_grad({});
    {
      const Autocast autocast(dtype);
      value = loss(cast_weights);
      value.backward();  // inside as well as outside of the scope
    }
    CHECK(value.dtype() == DType::f32);
    const double bound = dtype == DType::bf16 ? 0.03 : 0.005;
    CHECK(value.item<double>() == Approx(expected.item<double>()).epsilon(bound));
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const std::vector<float> a = plain[i].grad().to_vector<float>(), b = cast_weights[i].grad().to_vector<float>();
      double error = 0, norm = 0;
      for (std::size_t j = 0; j < a.size(); ++j) {
        error += (a[j] - b[j]) * (a[j] - b[j]);
        norm += a[j] * a[j];
      }
      CHECK(std::sqrt(error) <= bound * std::sqrt(norm) + 1e-6);
    }
  }
}

TEST_CASE("Autocasts end in any order") {
  auto outer = std::make_unique<Autocast>(DType::bf16), inner = std::make_unique<Autocast>(DType::f16);
  const Tensor x = ones({2, 2});
  outer.reset();
  CHECK(matmul(x, x).dtype() == DType::f16);
  auto none = std::make_unique<NoAutocast>();
  inner.reset();
  CHECK(matmul(x, x).dtype() == DType::f32);
  none.reset();
  CHECK(matmul(x, x).dtype() == DType::f32);
  CHECK(context().autocast == nullptr);
}
