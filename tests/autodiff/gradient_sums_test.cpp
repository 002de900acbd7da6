// Note [Sums in 16 bits]: gradients of f16 and bf16 that many passes, or many calls of one pass, add up.
#include <cmath>

#include "autodiff/autograd_state.h"
#include "autodiff/engine.h"
#include "autodiff/parameter_buffer.h"
#include "catch.h"
#include "ops/captured_step.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

constexpr DType halves[] = {DType::f16, DType::bf16};

double value(const Tensor& x) { return cast(x, DType::f64).item<double>(); }
/// Largest error of x, in parts of the largest number of `exact`.
double error(const Tensor& x, const Tensor& exact) {
  const Tensor wide = cast(exact, DType::f64);
  return value(max(abs(cast(x, DType::f64) - wide))) / value(max(abs(wide)));
}
double rounding(DType dtype) { return dtype == DType::f16 ? 0x1p-11 : 0x1p-8; }

/// Leaf whose gradient is a slice of a flat buffer, as an optimizer has it.
Tensor flat_leaf(const Tensor& values) {
  Tensor x = values.detach().set_requires_grad();
  x.set_grad(reshape(slice(flat_zeros(values.numel(), values.dtype(), values.device()), 0, 0, values.numel()), values.shape()));
  return x;
}

void check_many_passes(Device device) {
  for (const DType dtype : halves)
    for (const int n : {2, 64, 1024, 4096}) {
      INFO(name(dtype) << " " << n);
      Tensor w = zeros({3}, dtype, device).set_requires_grad();
      for (int pass = 0; pass < n; ++pass) (sum(w * 1.0) * (1.0 / n)).backward();
      for (const double g : cast(w.grad(), DType::f64).to_vector<double>()) CHECK(g == 1);
    }
}

/// Parameters of all kinds of kernels that write into a gradient, beside the exact sum of the micro-batches' own gradients.
void check_micro_batches(Device device) {
  for (const DType dtype : halves) {
    manual_seed(1);
    const Tensor table = to(randn({7, 16}), device), weight = to(randn({16, 16}), device), gamma = to(rand({16}), device) + 0.5,
                 beta = to(randn({16}), device);
    Tensors exact, together, alone;
    for (const Tensor& x : {table, weight, gamma, beta}) {
      together.push_back(flat_leaf(cast(x, dtype)));
      alone.push_back(flat_leaf(cast(x, dtype)));
      exact.push_back(zeros(x.shape(), DType::f64, device));
    }
    const int parts = 600;
    const auto loss_of = [&](const Tensors& p, const Tensor& ids) {
      const Tensor x = embedding(p[0], ids), y = layer_norm(x, p[2], p[3]);
      return linear_cross_entropy(linear(y, p[1], p[3]), p[0], {}, ids) * (1.0 / parts);
    };
    for (int part = 0; part < parts; ++part) {
      const Tensor ids = to(Tensor::from(std::vector<std::int64_t>{part % 7, (part / 7) % 7}, {2}), device);
      loss_of(together, ids).backward();
      loss_of(alone, ids).backward();
      for (std::size_t i = 0; i < exact.size(); ++i) {
        add_(exact[i], cast(alone[i].grad(), DType::f64));
        gradient_sink(alone[i]).clear();
      }
    }
    for (std::size_t i = 0; i < exact.size(); ++i) {
      INFO(name(dtype) << " parameter " << i);
      CHECK(error(together[i].grad(), exact[i]) < rounding(dtype));
    }
  }
}

}  // namespace

TEST_CASE("Gradients of many passes add up in 16 bits without a loss") { check_many_passes(cpu); }
TEST_CASE("Gradients of many micro-batches are their exact sum, rounded once") { check_micro_batches(cpu); }

TEST_CASE("Gradients of many uses within one pass add up in 16 bits without a loss") {
  for (const DType dtype : halves) {
    const int n = 1024;
    Tensor leaf = zeros({2}, dtype).set_requires_grad(), flat = flat_leaf(zeros({2}, dtype)), inner = zeros({2}, dtype).set_requires_grad();
    const Tensor cast_inner = inner * 1.0, one = ones({1, 2}, dtype);
    Tensor weight = flat_leaf(zeros({1, 2}, dtype)), total = zeros({}, DType::f32);
    for (int use = 0; use < n; ++use)
      for (const Tensor& x : {leaf, flat, cast_inner, reshape(linear(one, weight), {1})})
        total = total + cast(sum(x * (1.0 / n)), DType::f32);
    total.backward();
    for (const Tensor& x : {leaf, flat, inner, weight})
      for (const double g : cast(x.grad(), DType::f64).to_vector<double>()) CHECK(g == Approx(1).epsilon(2 * rounding(dtype)));
  }
}

TEST_CASE("An edit of a 16-bit gradient between passes counts, and zeroing starts anew") {
  for (const bool is_flat : {false, true}) {
    Tensor w = is_flat ? flat_leaf(zeros({2}, DType::bf16)) : zeros({2}, DType::bf16).set_requires_grad();
    const auto pass = [&](double slope) { (sum(w) * slope).backward(); };
    for (int round = 0; round < 2; ++round) {
      pass(1), pass(1), pass(0x1p-9);
      CHECK(value(sum(w.grad())) == 4);  // 2 + 2^-9 rounds to 2
      mul_(w.grad(), 0.5);
      pass(0x1p-7);
      CHECK(value(sum(w.grad())) == 2 * (1 + 0x1p-7));
      pass(0x1p-9), pass(0x1p-9), pass(0x1p-8);
      CHECK(value(sum(w.grad())) == 2 * (1 + 0x1p-6));
      gradient_sink(w).clear();
    }
    pass(2), pass(0x1p-8), pass(0x1p-9);
    CHECK(value(sum(w.grad())) == 4);  // what was left of a sum before zeroing would round up
    gradient_sink(w).clear();
    pass(2), pass(0x1p-8), pass(0x1p-9);
    CHECK(value(sum(w.grad())) == 4);
    gradient_sink(w).clear();
    pass(2), pass(0x1p-8), pass(0x1p-8), pass(0x1p-8);
    CHECK(value(sum(w.grad())) == 4 + 0x1p-5);  // three parts of a quarter of a unit each, from the second pass on
    const std::size_t before = memory_statistics(cpu).allocated;
    Tensor once = flat_leaf(zeros({1 << 16}, DType::bf16));
    sum(once).backward();
    CHECK(memory_statistics(cpu).allocated - before < (1 << 16) * 5);  // no sum beside a gradient that one pass writes
  }
}

TEST_CASE("The gradient of a head's weight adds up over many chunks") {
  for (const DType dtype : halves)
    for (const Reduction reduction : {Reduction::none, Reduction::sum})
      for (const bool is_filled : {false, true}) {
        manual_seed(4);
        const Tensor x = cast(rand({512, 8}), dtype), targets = zeros({512}, DType::i64), g = ones({512});
        const auto gradient = [&](DType of, std::int64_t chunk_rows) {
          Tensor w = cast(cast(rand({3, 8}), dtype), of);
          w = is_filled ? flat_leaf(w) : w.set_requires_grad();
          manual_seed(5);
          linear_cross_entropy(cast(x, of), w, {}, targets, {.reduction = reduction}, chunk_rows)
              .backward(reduction == Reduction::none ? g : Tensor());
          return w.grad();
        };
        manual_seed(5);
        const Tensor exact = gradient(DType::f32, 0);
        INFO(name(dtype) << (reduction == Reduction::none ? " none" : " sum") << is_filled);
        for (const std::int64_t rows : {1, 7, 100}) CHECK(error(gradient(dtype, rows), exact) < 3 * rounding(dtype));
      }
}

TEST_CASE("Gradients of many passes add up in 16 bits on a GPU, and in recorded graphs", "[cuda]") {
  check_many_passes(cuda());
  check_micro_batches(cuda());
  // As a trainer records them: the first part overwrites the gradient, the others add to it.
  for (const DType dtype : halves) {
    Tensor w = flat_leaf(zeros({16, 16}, dtype, cuda()));
    const Tensor x = full({1, 16}, 1, dtype, cuda());
    const auto part = [&](bool is_first, const Tensor& share) {
      if (is_first) gradient_sink(w).clear();
      const Tensor loss = cast(sum(linear(x, w)), DType::f32) * share;
      loss.backward();
      return loss.detach();
    };
    CapturedStep first([&](const Tensors& in) { return part(true, in[0]); }, cuda());
    CapturedStep next([&](const Tensors& in) { return part(false, in[0]); }, cuda());
    const int n = 600;
    const Tensor share = full({}, 1.0 / n, DType::f32, cuda());
    for (int update = 0; update < 4; ++update) {
      for (int i = 0; i < n; ++i) (i == 0 ? first : next)({share});
      for (const double g : cast(w.grad(), DType::f64).to_vector<double>()) CHECK(g == Approx(1).epsilon(2 * rounding(dtype)));
    }
  }
}

}  // namespace tern
