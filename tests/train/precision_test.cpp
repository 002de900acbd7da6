// Training below float32: masters, what moves and saves them, clipping within the update, and loss scaling.

#include "autodiff/parameter_buffer.h"
#include "ops/autocast.h"
#include "ops/captured_step.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "support.h"
#include "train/train.h"

using namespace tern;

namespace {

constexpr DType halves[] = {DType::bf16, DType::f16};

std::vector<float> rounded(const Tensor& x, DType dtype) { return floats(cast(x.detach(), dtype)); }

/// A step that clips within the update against one that scales the gradients first.
void check_clipping(Device device) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const bool flat : {true, false}) {
      manual_seed(6);
      OddModule inside, before = nn::clone(inside);
      for (OddModule* model : {&inside, &before}) {
        nn::to(*model, device);
        nn::to(*model, dtype);
        if (flat) nn::flatten_parameters(*model);
        set_gradients(*model, 3);
      }
      train::SGD a(nn::parameters(inside), {.lr = 0.5}), b(nn::parameters(before), {.lr = 0.5});
      double squares = 0;
      for (const Tensor& x : nn::parameters(inside))
        for (float g : floats(x.grad())) squares += double(g) * g;
      const train::ClippedNorm clip = train::clip_factor(a.parameters(), 0.25);
      a.step({.factor = clip.factor});
      INFO(name(dtype) << (flat ? ", flat" : ""));
      CHECK(clip.norm.item<double>() == Approx(std::sqrt(squares)).epsilon(1e-6));
      CHECK(clip.factor.item<double>() == Approx(0.25 / (std::sqrt(squares) + 1e-6)).epsilon(1e-6));
      CHECK(train::clip_grad_norm(b.parameters(), 0.25).item() == Approx(std::sqrt(squares)).epsilon(1e-6));
      b.step();
      const double bound = dtype == DType::bf16 ? 8e-3 : dtype == DType::f16 ? 1e-3 : 1e-6;
      for (std::size_t i = 0; i < a.parameters().size(); ++i) CHECK(distance(a.parameters()[i], b.parameters()[i]) < bound);
      CHECK(train::clip_factor(a.parameters(), 1e6).factor.item() == 1);
    }
}

/// Loss scaling over steps of which one overflows.
void check_scaler(Device device) {
  manual_seed(7);
  OddModule model, reference = nn::clone(model);
  nn::to(model, device);
  nn::to(reference, device);
  nn::flatten_parameters(model, DType::f16);
  train::Adam optimizer(nn::parameters(model), {.lr = 0.1}), plain(nn::parameters(reference), {.lr = 0.1});
  train::GradScaler scaler({.scale = 256, .interval = 3}, device);
  const double scales[] = {256, 256, 512, 256, 256, 256, 512};
  for (std::uint64_t step = 0; step < 7; ++step) {
    set_gradients(model, 100 * step);
    set_gradients(reference, 100 * step);
    const double before = scaler.scale().item<double>();
    const bool overflows = step == 3;
    const NoGrad unrecorded;
    for (const Tensor& x : nn::parameters(model)) mul_(x.grad(), before / 64);  // exact in f16, beside the 64 taken out here:
    for (const Tensor& x : nn::parameters(reference)) mul_(x.grad(), 1.0 / 64);
    if (overflows) fill_(nn::parameters(model)[1].grad(), INFINITY);
    const std::vector<float> weights = floats(model.a.weight);
    const Tensor norm = scaler.step(optimizer, 100);
    CHECK(scaler.scale().item<double>() == scales[step]);
    if (overflows) {
      CHECK(!std::isfinite(norm.item<float>()));
      CHECK(floats(model.a.weight) == weights);
      CHECK(optimizer.steps().item() == 3);
    } else {
      plain.step();
    }
  }
  CHECK(optimizer.steps().item() == 6);
  CHECK(worst_master(model, reference) < 1e-4);
  check_rounded(model);
}

/// Without an end to overflows the scale stops at 1, or where it began if that is less; without one it grows to 2^126. Steps with these
/// scales are as with any other.
void check_bounds_of_scale(Device device) {
  const auto moved = [&](train::GradScaler& scaler, float factor) {
    Tensor x = to(Tensor::from({3.f}, {1}), device).set_requires_grad();
    train::SGD optimizer({x}, {.lr = 0.5});
    scaler.scaled(sum(x) * factor).backward();
    scaler.step(optimizer);
    return 3 - x.detach().item<double>();
  };
  for (const double first : {65536.0, 1.0, 0.375, 0x1p-126}) {
    INFO(first);
    train::GradScaler scaler({.scale = first, .interval = 3}, device);
    for (int i = 0; i < 200; ++i) CHECK(moved(scaler, INFINITY) == 0);
    CHECK(scaler.scale().item<double>() == std::min(first, 1.0));
    CHECK(moved(scaler, 1) == Approx(0.5));
  }
  train::GradScaler scaler({.scale = 0x1p120, .growth = 4, .interval = 1}, device);
  for (int i = 0; i < 200; ++i) CHECK(moved(scaler, 0x1p-20f) == Approx(0x1p-21));
  CHECK(scaler.scale().item<double>() == 0x1p126);
  // A scale that was set below the bound is not raised by an overflow.
  fill_(scaler.scale(), 0.125);
  moved(scaler, INFINITY);
  CHECK(scaler.scale().item<double>() == 0.125);
}

/// A norm that 1e-6 is not small beside: the clipped one is less than max_norm.
void check_tiny_norm(Device device) {
  Tensor x = to(Tensor::from({1.f, 1.f}, {2}), device).set_requires_grad();
  x.set_grad(to(Tensor::from({3e-6f, 4e-6f}, {2}), device));
  const double factor = 2.5e-6 / (5e-6 + 1e-6);
  CHECK(train::clip_factor({x}, 2.5e-6).factor.item<double>() == Approx(factor).epsilon(1e-5));
  CHECK(train::clip_factor({x}, 5.5e-6).factor.item<double>() == Approx(5.5 / 6).epsilon(1e-5));
  train::clip_grad_norm({x}, 2.5e-6);
  CHECK(floats(x.grad())[1] == Approx(4e-6 * factor).epsilon(1e-5));
}

/// SGD's steps have the size of the gradients, which Adam divides out: a scale that stays in shows.
void check_scaled_step(Device device) {
  for (const double max_norm : {100.0, 0.25}) {
    INFO(max_norm);
    Tensor x = to(Tensor::from(std::vector<float>{3, 4}, {2}), device).set_requires_grad();
    train::SGD optimizer({x}, {.lr = 0.5});
    train::GradScaler scaler({.scale = 1024}, device);
    scaler.scaled(sum(x * to(Tensor::from(std::vector<float>{0.3f, 0.4f}, {2}), device))).backward();
    const std::vector<float> scaled = floats(x.grad());
    CHECK(scaled[0] == Approx(1024 * 0.3));
    CHECK(scaled[1] == Approx(1024 * 0.4));
    CHECK(scaler.step(optimizer, max_norm).item<double>() == Approx(0.5));
    const double step = 0.5 * std::min(1.0, max_norm / 0.5);
    const std::vector<float> moved = floats(x.detach());
    CHECK(moved[0] - 3 == Approx(-step * 0.3).epsilon(1e-5));
    CHECK(moved[1] - 4 == Approx(-step * 0.4).epsilon(1e-5));
  }
}

/// A decoder with f32 parameters learns one batch, under autocast or not: the losses of 30 steps, and the weights.
struct Trained {
  std::vector<float> losses, weights;
};
Trained learn(std::optional<DType> dtype, bool captured, bool is_fused, Device device) {
  const FusedKernels kernels(is_fused);
  manual_seed(11);
  nn::DecoderLM model({.vocab = 19, .length = 8, .width = 24, .layers = 2, .heads = 3, .ff = 40, .dropout = 0.1, .device = device});
  nn::flatten_parameters(model);
  train::Adam optimizer(nn::parameters(model), {.lr = 5e-3});
  train::GradScaler scaler({}, device);
  model.train();
  const auto step = [&](const Tensors& batch) {
    std::optional<Autocast> autocast;
    if (dtype) autocast.emplace(*dtype);
    const Tensor logits = model.forward(batch[0]), loss = cross_entropy(logits, batch[0]);
    CHECK(logits.dtype() == dtype.value_or(DType::f32));
    CHECK(loss.dtype() == DType::f32);
    autocast.reset();
    train::update(loss, optimizer, {.max_norm = 1, .scaler = &scaler});
    return loss.detach();
  };
  CapturedStep replay(step, device);
  std::vector<std::int64_t> ids;
  for (float x : draw(12, 32, 9, 9)) ids.push_back(static_cast<std::int64_t>(x));
  const Tensor batch = Tensor::from(ids, {4, 8}, device);
  Trained result;
  for (int i = 0; i < 30; ++i) result.losses.push_back((captured ? replay({batch}) : step({batch})).item<float>());
  for (const Tensor& x : nn::parameters(model)) {
    CHECK(x.dtype() == DType::f32);
    for (float value : floats(x)) result.weights.push_back(value);
  }
  return result;
}

}  // namespace

TEST_CASE("clipping within the update is clipping before it", "[precision]") { check_clipping(cpu); }
TEST_CASE("clipping within the update is clipping before it on a GPU", "[precision][cuda]") { check_clipping(cuda()); }
TEST_CASE("the loss scale grows, shrinks and skips", "[precision]") { check_scaler(cpu); }
TEST_CASE("the loss scale grows, shrinks and skips on a GPU", "[precision][cuda]") { check_scaler(cuda()); }

TEST_CASE("the loss scale has bounds, in which a step works", "[precision]") { check_bounds_of_scale(cpu); }
TEST_CASE("the loss scale has bounds, in which a step works, on a GPU", "[precision][cuda]") { check_bounds_of_scale(cuda()); }

TEST_CASE("a tiny norm is clipped by max_norm / (norm + 1e-6)", "[precision]") { check_tiny_norm(cpu); }
TEST_CASE("a tiny norm is clipped by max_norm / (norm + 1e-6) on a GPU", "[precision][cuda]") { check_tiny_norm(cuda()); }

TEST_CASE("the loss scale is taken out of the norm and the update", "[precision]") { check_scaled_step(cpu); }
TEST_CASE("the loss scale is taken out of the norm and the update on a GPU", "[precision][cuda]") { check_scaled_step(cuda()); }

TEST_CASE("a precision keeps the values that a seed gave", "[precision]") {
  for (const train::Precision precision :
       {train::Precision::fp32, train::Precision::tf32, train::Precision::tf32x3, train::Precision::bf16, train::Precision::fp16}) {
    CHECK(train::precision_of(train::name(precision)) == precision);
    manual_seed(8);
    OddModule model;
    manual_seed(8);
    OddModule reference;
    train::set_precision(model, precision);
    CHECK(context().kernels.matmul_precision == MatmulPrecision::fp32);  // the thread's products are not the module's
    for (const Tensor& x : nn::parameters(model)) CHECK(x.dtype() == train::dtype_of(precision));
    CHECK(worst_master(model, reference) == 0);
    check_rounded(model);
    train::set_precision(model, train::Precision::fp32);
    for (const Tensor& x : nn::parameters(model)) CHECK(x.dtype() == DType::f32);
    CHECK(worst_master(model, reference) == 0);
  }
  CHECK(!train::precision_of("fp8"));

  OddModule frozen;  // what is not trained has no master, and no gradient
  nn::set_requires_grad(frozen, false);
  train::set_precision(frozen, train::Precision::bf16);
  CHECK(frozen.a.weight.dtype() == DType::bf16);
  CHECK(!is_flat(frozen.a.weight));
}

TEST_CASE("f32 products have a precision within its scope alone", "[precision]") {
  using train::Precision;
  for (const auto& [precision, products] : {std::pair{Precision::fp32, MatmulPrecision::fp32},
                                            {Precision::tf32, MatmulPrecision::tf32},
                                            {Precision::tf32x3, MatmulPrecision::tf32x3},
                                            {Precision::bf16, MatmulPrecision::fp32},
                                            {Precision::fp16, MatmulPrecision::fp32}}) {
    const train::PrecisionScope outer(Precision::tf32);
    {
      const train::PrecisionScope scope(precision);
      CHECK(context().kernels.matmul_precision == products);
      CHECK(train::has_precision(precision, cpu) == (context().kernels.matmul_precision == MatmulPrecision::fp32));
    }
    CHECK(context().kernels.matmul_precision == MatmulPrecision::tf32);
  }
  CHECK(context().kernels.matmul_precision == MatmulPrecision::fp32);
}

TEST_CASE("the state of 16-bit training holds the masters", "[precision]") {
  manual_seed(9);
  OddModule model;
  train::set_precision(model, train::Precision::bf16);
  train::AdamW optimizer(nn::parameters(model), {.lr = 0.01});
  const auto step = [](OddModule& m, train::AdamW& with, std::uint64_t seed) {
    set_gradients(m, seed);
    with.step();
  };
  step(model, optimizer, 1);
  // As a checkpoint is read: the model from its f32 file, then the optimizer's state.
  OddModule other;
  const auto saved = nn::named_masters(model), into = nn::named_parameters(other);
  {
    const NoGrad unrecorded;
    for (std::size_t i = 0; i < saved.size(); ++i) copy_(into[i].tensor, saved[i].tensor);
  }
  train::set_precision(other, train::Precision::bf16);
  train::AdamW restored(nn::parameters(other), {.lr = 0.01});
  const auto from = optimizer.state(nn::named_parameters(model)), state = restored.state(nn::named_parameters(other));
  CHECK(state.back().name == "master.c.weight");
  CHECK(state.back().tensor.dtype() == DType::f32);
  CHECK(state.size() == 2 + 3 * saved.size());
  for (std::size_t i = 0; i < from.size(); ++i) copy_(state[i].tensor, from[i].tensor);
  for (std::uint64_t seed : {2, 3}) {
    step(model, optimizer, seed);
    step(other, restored, seed);
  }
  const auto a = nn::named_masters(model), b = nn::named_masters(other);
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(floats(a[i].tensor) == floats(b[i].tensor));
}

TEST_CASE("a value written to a 16-bit parameter reaches its master", "[precision]") {
  for (const bool flat : {true, false}) {
    OddModule model;
    if (flat) train::set_precision(model, train::Precision::bf16);
    else nn::to(model, DType::bf16);
    train::SGD optimizer(nn::parameters(model), {.lr = 1.0 / 1024});
    for (int round = 0; round < 2; ++round) {
      set_gradients(model, 4);
      const std::vector<float> gradient = floats(model.b.bias.grad());
      {
        const NoGrad unrecorded;
        fill_(model.b.bias, 2 + round);
      }
      optimizer.step();
      const Tensor master = optimizer.state(nn::named_parameters(model)).back().tensor;  // of c.weight, which nobody wrote to
      CHECK(floats(model.c.weight) == rounded(master, DType::bf16));
      for (const auto& entry : optimizer.state(nn::named_parameters(model)))
        if (entry.name == "master.b.bias")
          for (std::size_t i = 0; i < gradient.size(); ++i) CHECK(floats(entry.tensor)[i] == 2.f + float(round) - gradient[i] / 1024);
    }
  }
}

TEST_CASE("masters follow to a GPU and back", "[precision][cuda]") {
  manual_seed(10);
  OddModule moved, still = nn::clone(moved);
  train::set_precision(moved, train::Precision::bf16);
  train::set_precision(still, train::Precision::bf16);
  nn::to(moved, cuda());
  nn::to(moved, cpu);
  CHECK(worst_master(moved, still) > 0);  // the reference's parameters are rounded
  const auto a = nn::named_masters(moved), b = nn::named_masters(still);
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(floats(a[i].tensor) == floats(b[i].tensor));
  train::AdamW x(nn::parameters(moved), {.lr = 0.1}), y(nn::parameters(still), {.lr = 0.1});
  for (std::uint64_t step = 0; step < 4; ++step) {
    nn::to(moved, step % 2 == 0 ? cuda() : cpu);
    set_gradients(moved, 10 * step);
    set_gradients(still, 10 * step);
    x.step();
    y.step();
    CHECK(x.launches() == 1);
  }
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(distance(nn::named_masters(moved)[i].tensor, nn::named_masters(still)[i].tensor) < 1e-6);
}

TEST_CASE("a model trains under autocast", "[precision]") {
  for (const bool is_fused : {false, true}) {
    const Trained plain = learn(std::nullopt, false, is_fused, cpu);
    CHECK(plain.losses.back() < 0.7f * plain.losses.front());
    for (const DType dtype : halves) {
      INFO(name(dtype));
      CHECK(learn(dtype, false, is_fused, cpu).losses.back() == Approx(plain.losses.back()).epsilon(0.02));
    }
  }
}

TEST_CASE("a captured step under autocast is bitwise the plain one", "[precision][cuda]") {
  for (const bool is_fused : {false, true})
    for (const DType dtype : halves) {
      INFO(name(dtype));
      const Trained captured = learn(dtype, true, is_fused, cuda()), plain = learn(dtype, false, is_fused, cuda());
      CHECK(captured.losses == plain.losses);
      CHECK(captured.weights == plain.weights);
      CHECK(captured.losses.back() == Approx(learn(std::nullopt, false, is_fused, cuda()).losses.back()).epsilon(0.02));
    }
}

TEST_CASE("precision options are checked", "[precision]") {
  CHECK_THROWS_AS(train::clip_factor({}, 0), Error);
  for (const double scale : {0.0, 1e-40, 0x1p127, double(NAN)}) CHECK_THROWS_AS(train::GradScaler({.scale = scale}), Error);
  CHECK_THROWS_AS(train::GradScaler({.backoff = 1}), Error);
  CHECK_THROWS_AS(train::GradScaler({.interval = 0}), Error);
  OddModule model;
  CHECK_THROWS_AS(nn::flatten_parameters(model, DType::i64), Error);
}
