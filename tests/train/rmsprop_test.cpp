// RMSprop against loops in f64, and with all that optimizers have to do with: groups, flat buffers, masters, scales, captured steps. A
// schedule that follows a measurement.
#include <cmath>
#include <limits>

#include "nn/fixture.h"
#include "odd_module.h"
#include "ops/captured_step.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "train/train.h"

using namespace tern;

namespace {

using Vector = std::vector<double>;

struct Naive {
  train::RMSpropOptions o;
  Vector v = {}, m = {}, buffer = {};
  void step(Vector& p, const Vector& gradient) {
    v.resize(p.size()), m.resize(p.size()), buffer.resize(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i] + o.weight_decay * p[i];
      v[i] = o.alpha * v[i] + (1 - o.alpha) * g * g;
      m[i] = o.alpha * m[i] + (1 - o.alpha) * g;
      const double quotient = g / (std::sqrt(o.centered ? v[i] - m[i] * m[i] : v[i]) + o.eps);
      buffer[i] = o.momentum * buffer[i] + quotient;
      p[i] -= o.lr * buffer[i];
    }
  }
};

std::vector<train::RMSpropOptions> all_forms() {
  std::vector<train::RMSpropOptions> forms;
  for (const bool centered : {false, true})
    for (const double momentum : {0.0, 0.5})
      forms.push_back({.lr = 0.0625, .alpha = 0.75, .eps = 1e-4, .weight_decay = 0.25, .momentum = momentum, .centered = centered});
  return forms;
}

void set_gradients(const nn::Module& module, std::uint64_t seed) {
  for (Tensor x : nn::parameters(module)) {
    const Tensor gradient = to(cast(Tensor::from(draw(seed++, x.numel(), 1), x.shape()), x.dtype()), x.device());
    const NoGrad unrecorded;
    if (x.grad().defined()) copy_(x.grad(), gradient);
    else x.set_grad(gradient);
  }
}

double worst_difference(const nn::Module& a, const nn::Module& b) {
  double worst = 0;
  const Tensors xs = nn::parameters(a), ys = nn::parameters(b);
  for (std::size_t i = 0; i < xs.size(); ++i)
    worst = std::max(worst, distance(floats(to(cast(xs[i], DType::f32), cpu)), floats(to(cast(ys[i], DType::f32), cpu))));
  return worst;
}

}  // namespace

TEST_CASE("RMSprop agrees with loops in f64", "[optim]") {
  for (const train::RMSpropOptions& form : all_forms())
    for (const std::int64_t size : {1, 33, 1025}) {
      const std::vector<float> start = draw(40, size, 1);
      Vector values(start.begin(), start.end());
      const Tensor p = Tensor::from(values, {size}).set_requires_grad();
      train::RMSprop optimizer({p}, form);
      Naive naive{form};
      for (std::uint64_t step = 0; step < 6; ++step) {
        const std::vector<float> drawn = draw(60 + step, size, 0.5);
        const Vector gradient(drawn.begin(), drawn.end());
        Tensor(p).set_grad(Tensor::from(gradient, {size}));
        optimizer.step();
        naive.step(values, gradient);
      }
      CHECK(distance(p.to_vector<double>(), values) < 1e-12);
      const std::vector<NamedTensor> state = optimizer.state();
      CHECK(state[2].name == "v.0");
      CHECK(distance(state[2].tensor.to_vector<double>(), naive.v) < 1e-12);
      if (form.centered) CHECK(distance(state[3].tensor.to_vector<double>(), naive.m) < 1e-12);
      if (form.momentum != 0) CHECK(distance(state.back().tensor.to_vector<double>(), naive.buffer) < 1e-12);
      CHECK(state.size() == 3u + form.centered + (form.momentum != 0));
    }
}

TEST_CASE("RMSprop centred at gradients that are all equal has no root of a negative number", "[optim]") {
  // Of a thousand numbers some have a mean square that is rounded to below the square of their mean.
  const Tensor p = ones({1000}).set_requires_grad(), gradient = linspace(0.1, 7.3, 1000);
  train::RMSprop optimizer({p}, {.lr = 1e-6, .alpha = 0.9, .centered = true});
  for (int step = 0; step < 400; ++step) {
    Tensor(p).set_grad(gradient);
    optimizer.step();
  }
  CHECK(all(isfinite(p)).item<bool>());
}

TEST_CASE("RMSprop gives flat parameters, masters and scaled gradients the same numbers", "[optim][flat]") {
  for (const train::RMSpropOptions& form : all_forms()) {
    manual_seed(1);
    OddModule plain, flat = nn::clone(plain), narrow = nn::clone(plain), wide = nn::clone(plain), scaled = nn::clone(plain);
    train::set_precision(narrow, train::Precision::bf16);
    nn::to(wide, DType::bf16), nn::to(wide, DType::f32);  // the values that are rounded in `narrow`
    train::RMSprop a(nn::parameters(plain), form), b(nn::parameters(flat), form), c(nn::parameters(scaled), form);
    for (std::uint64_t step = 0; step < 4; ++step) {
      if (step == 1) nn::flatten_parameters(flat);  // between steps: moments follow
      for (const nn::Module* module : {static_cast<const nn::Module*>(&plain), static_cast<const nn::Module*>(&flat)})
        set_gradients(*module, 100 * step);
      set_gradients(scaled, 100 * step);
      for (Tensor x : nn::parameters(scaled)) x.set_grad(x.grad() * 4.0);
      a.step();
      b.step();
      c.step({.factor = full({}, 0.25), .advance = ones({})});
      const Tensor before = clone(nn::parameters(scaled)[0].detach());
      c.step({.factor = full({}, std::numeric_limits<double>::quiet_NaN()), .advance = zeros({})});
      CHECK(distance(before, nn::parameters(scaled)[0]) == 0);
    }
    CHECK(worst_difference(plain, flat) < 1e-6);
    CHECK(worst_difference(plain, scaled) < 1e-6);
    CHECK(b.launches() == 1);
    CHECK(c.steps().item() == 4);
  }
}

TEST_CASE("RMSprop's state restores it, and groups have options of their own", "[optim]") {
  const Tensor x = ones({3}).set_requires_grad(), y = ones({2}).set_requires_grad();
  const auto make = [&] {
    return train::RMSprop({{{x}, {.lr = 0.1, .momentum = 0.9, .centered = true}}, {{y}, {.lr = 0.2, .alpha = 0.5}}});
  };
  const auto step = [&](train::RMSprop& optimizer, float gradient) {
    Tensor(x).set_grad(Tensor::from(std::vector<float>{gradient, -1, 2}, {3}));
    Tensor(y).set_grad(Tensor::from(std::vector<float>{gradient, 3}, {2}));
    optimizer.step();
  };
  train::RMSprop first = make();
  step(first, 1);
  const std::vector<float> x_then = floats(x), y_then = floats(y);
  CHECK(y_then[0] == Approx(1 - 0.2 / std::sqrt(0.5)));
  train::RMSprop second = make();
  const std::vector<NamedTensor> from = first.state(), into = second.state();
  REQUIRE(from.size() == into.size());
  {
    const NoGrad unrecorded;
    for (std::size_t i = 0; i < from.size(); ++i) {
      CHECK(from[i].name == into[i].name);
      copy_(into[i].tensor, from[i].tensor);
    }
  }
  step(first, -2);
  const std::vector<float> expected = floats(x);
  {
    const NoGrad unrecorded;
    copy_(x, Tensor::from(x_then, {3})), copy_(y, Tensor::from(y_then, {2}));
  }
  step(second, -2);
  CHECK(distance(floats(x), expected) == 0);
}

TEST_CASE("RMSprop refuses options out of range", "[optim]") {
  const Tensor x = ones({1}).set_requires_grad(), y = ones({1}).set_requires_grad();
  CHECK_THROWS_WITH(train::RMSprop({x}, {.alpha = 1}), "[RMSprop] expected 0 <= alpha < 1 but got 1");
  CHECK_THROWS_WITH(train::RMSprop({x}, {.eps = 0}), "[RMSprop] expected eps > 0 but got 0");
  CHECK_THROWS_WITH(train::RMSprop({x}, {.momentum = -1}), "[RMSprop] expected a momentum >= 0 but got -1");
  CHECK_THROWS_WITH(train::RMSprop({x}, {.weight_decay = -1}), "[RMSprop] expected a weight decay >= 0 but got -1");
  train::RMSprop plain(Tensors{x});
  CHECK_THROWS_WITH(plain.add_group({{y}, {.alpha = -1}}), "[RMSprop] expected 0 <= alpha < 1 but got -1");
  CHECK_NOTHROW(plain.add_group({{y}, {.momentum = 0.5, .centered = true}}));
  CHECK(plain.state().size() == 3 + 1 + 3);  // the step, two rates, v of x, three moments of y
}

TEST_CASE("RMSprop on a GPU agrees with the CPU, and captured steps with those that are not", "[optim][cuda]") {
  for (const train::RMSpropOptions& form : all_forms())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      manual_seed(3);
      OddModule here, there = nn::clone(here);
      nn::to(here, dtype);
      nn::to(there, dtype), nn::to(there, cuda());
      OddModule captured = nn::clone(there);
      train::RMSprop a(nn::parameters(here), form), b(nn::parameters(there), form), c(nn::parameters(captured), form);
      set_gradients(captured, 7);
      CapturedStep step(
          [&](const Tensors& in) {
            c.step();
            return in[0] + 1;
          },
          cuda());
      for (int i = 0; i < 5; ++i) {
        set_gradients(here, 7), set_gradients(there, 7);
        a.step(), b.step(), step({ones({1}, cuda())});
      }
      CHECK(worst_difference(here, there) < (dtype == DType::f32 ? 1e-5 : 2e-2));
      CHECK(worst_difference(there, captured) == 0);
    }
}

TEST_CASE("ReduceLROnPlateau reduces after measurements without an improvement", "[schedule]") {
  train::ReduceLROnPlateau plateau({.factor = 0.5, .patience = 1, .cooldown = 1, .floor = 0.2});
  CHECK(plateau.factor() == 1);
  CHECK(plateau.update(3) == 1);
  CHECK(plateau.update(2) == 1);
  CHECK(plateau.update(1.9999) == 1);                                      // less than a part of 1e-4 better
  CHECK(plateau.update(std::numeric_limits<double>::quiet_NaN()) == 0.5);  // a NaN is no improvement
  CHECK(plateau.update(5) == 0.5);                                         // in the cooldown
  CHECK(plateau.update(5) == 0.5);
  train::ReduceLROnPlateau resumed({.factor = 0.5, .patience = 1, .cooldown = 1, .floor = 0.2});
  resumed.load(plateau.state());
  for (train::ReduceLROnPlateau* each : {&plateau, &resumed}) {
    CHECK(each->update(5) == 0.25);
    CHECK(each->update(1) == 0.25);
    CHECK(each->update(1) == 0.25);
    CHECK(each->update(1) == 0.2);  // the floor
  }
  train::ReduceLROnPlateau accuracy({.patience = 0, .threshold = 0.5, .is_relative = false, .maximize = true});
  CHECK(accuracy.update(-2) == 1);
  CHECK(accuracy.update(-1.4) == 1);
  CHECK(accuracy.update(-1) == Approx(0.1));
  train::ReduceLROnPlateau negative({.patience = 0});  // a log-likelihood that does not get better
  CHECK(negative.update(-10) == 1);
  CHECK(negative.update(-9.9995) == Approx(0.1));
  CHECK_THROWS_WITH(train::ReduceLROnPlateau({.factor = 1}), "[ReduceLROnPlateau] expected a factor in (0, 1) but got 1");
  CHECK_THROWS_WITH(plateau.load(ones({3})), "[ReduceLROnPlateau] expected a state of f64 (4,) but got f32 (3,)");
}
