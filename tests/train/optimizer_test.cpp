#include <cmath>
#include <limits>
#include <memory>
#include <numbers>

#include "autodiff/parameter_buffer.h"
#include "nn/fixture.h"
#include "odd_module.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "train/train.h"

using namespace tern;
using nlohmann::json;

namespace {

using Vector = std::vector<double>;

Vector doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

struct NaiveAdam {
  double lr, b1, b2, eps, decay;
  bool decoupled;
  Vector m, v;
  int t = 0;
  void step(Vector& p, const Vector& gradient) {
    m.resize(p.size());
    v.resize(p.size());
    ++t;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i] + (decoupled ? 0 : decay * p[i]);
      if (decoupled) p[i] -= lr * decay * p[i];
      m[i] = b1 * m[i] + (1 - b1) * g;
      v[i] = b2 * v[i] + (1 - b2) * g * g;
      p[i] -= lr * (m[i] / (1 - std::pow(b1, t))) / (std::sqrt(v[i] / (1 - std::pow(b2, t))) + eps);
    }
  }
};

struct NaiveSgd {
  double lr, momentum, decay;
  bool nesterov;
  Vector buffer;
  void step(Vector& p, const Vector& gradient) {
    buffer.resize(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      double g = gradient[i] + decay * p[i];
      if (momentum != 0) {
        buffer[i] = momentum * buffer[i] + g;
        g = nesterov ? g + momentum * buffer[i] : buffer[i];
      }
      p[i] -= lr * g;
    }
  }
};

/// Six steps on f64 parameters of several sizes against loops. The rate is a power of two: exact in f32.
template <class Naive, class MakeOptimizer>
void check_against_loops(const Naive& naive, MakeOptimizer make) {
  const std::vector<std::int64_t> sizes{1, 31, 33, 1025, 70000};
  Tensors parameters;
  std::vector<Vector> values;
  std::vector<Naive> references(sizes.size(), naive);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    values.push_back(doubles(draw(40 + i, sizes[i], 1)));
    parameters.push_back(Tensor::from(values[i], {sizes[i]}).set_requires_grad());
  }
  auto optimizer = make(parameters);
  for (int step = 0; step < 6; ++step) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Vector gradient = doubles(draw(60 + 10 * std::uint64_t(step) + i, sizes[i], 0.5));
      parameters[i].set_grad(Tensor::from(gradient, {sizes[i]}));
      references[i].step(values[i], gradient);
    }
    optimizer.step();
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(distance(parameters[i].to_vector<double>(), values[i]) < 1e-12);
  CHECK(optimizer.steps().item() == 6);
}

template <class Options>
Options adam_options(const json& o) {
  Options options{.lr = o["lr"]};
  if (o.contains("betas")) {
    options.beta1 = o["betas"][0];
    options.beta2 = o["betas"][1];
  }
  options.eps = o.value("eps", options.eps);
  options.weight_decay = o.value("weight_decay", 0.0);
  return options;
}

std::unique_ptr<train::Optimizer> optimizer_of(const std::string& name, const json& o, const Tensors& parameters) {
  if (name.starts_with("sgd"))
    return std::make_unique<train::SGD>(parameters, train::SGDOptions{.lr = o["lr"],
                                                                      .momentum = o.value("momentum", 0.0),
                                                                      .weight_decay = o.value("weight_decay", 0.0),
                                                                      .nesterov = o.value("nesterov", false)});
  if (name == "adamw") return std::make_unique<train::AdamW>(parameters, adam_options<train::AdamWOptions>(o));
  return std::make_unique<train::Adam>(parameters, adam_options<train::AdamOptions>(o));
}

void set_gradients(const Tensors& parameters, std::uint64_t seed) {
  for (Tensor x : parameters) {
    const Tensor gradient = Tensor::from(draw(seed++, x.numel(), 1), x.shape());
    const NoGrad unrecorded;
    if (x.grad().defined()) copy_(x.grad(), gradient);
    else x.set_grad(to(gradient, x.device()));
  }
}

double worst_difference(const nn::Module& a, const nn::Module& b) {
  double worst = 0;
  const Tensors xs = nn::parameters(a), ys = nn::parameters(b);
  for (std::size_t i = 0; i < xs.size(); ++i) worst = std::max(worst, distance(xs[i], ys[i]));
  return worst;
}

void check_fixture(Device device) {
  const json& entry = Fixture::get().index["optimizers"];
  const std::vector<float> start = Fixture::get().values(entry["start"]), gradients = Fixture::get().values(entry["gradients"]);
  const auto n = std::int64_t(start.size());
  for (const auto& [name, test] : entry["cases"].items()) {
    INFO(name);
    Tensor p = Tensor::from(start, {n}, device);
    p.set_requires_grad();
    const auto optimizer = optimizer_of(name, test["options"], {p});
    const std::vector<float> path = Fixture::get().values(test["path"]);
    for (std::size_t step = 0; step < path.size() / start.size(); ++step) {
      const auto at = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + std::ptrdiff_t(step) * n, all.begin() + std::ptrdiff_t(step + 1) * n);
      };
      p.set_grad(Tensor::from(at(gradients), {n}, device));
      optimizer->step();
      CHECK(distance(floats(p), at(path)) < 2e-6);
    }
  }
}

}  // namespace

TEST_CASE("Adam and AdamW agree with loops in f64", "[optim]") {
  for (double decay : {0.0, 0.1}) {
    check_against_loops(NaiveAdam{0.0625, 0.9, 0.98, 1e-9, decay, false}, [&](const Tensors& parameters) {
      return train::Adam(parameters, {.lr = 0.0625, .beta2 = 0.98, .eps = 1e-9, .weight_decay = decay});
    });
    check_against_loops(NaiveAdam{0.0625, 0.9, 0.98, 1e-9, decay, true}, [&](const Tensors& parameters) {
      return train::AdamW(parameters, {.lr = 0.0625, .beta2 = 0.98, .eps = 1e-9, .weight_decay = decay});
    });
  }
}

TEST_CASE("SGD agrees with loops in f64", "[optim]") {
  for (double momentum : {0.0, 0.9})
    for (double decay : {0.0, 0.1})
      for (bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;
        check_against_loops(NaiveSgd{0.125, momentum, decay, nesterov}, [&](const Tensors& parameters) {
          return train::SGD(parameters, {.lr = 0.125, .momentum = momentum, .weight_decay = decay, .nesterov = nesterov});
        });
      }
}

TEST_CASE("optimizers agree with PyTorch", "[optim]") { check_fixture(cpu); }
TEST_CASE("optimizers on a GPU agree with PyTorch", "[optim][cuda]") { check_fixture(cuda()); }

TEST_CASE("flat parameters take one kernel and give the same numbers", "[optim][flat]") {
  manual_seed(1);
  OddModule plain, flat = nn::clone(plain);
  const auto buffers = nn::flatten_parameters(flat);
  train::AdamW a(nn::parameters(plain), {.lr = 0.1, .weight_decay = 0.1}), b(nn::parameters(flat), {.lr = 0.1, .weight_decay = 0.1});
  for (std::uint64_t step = 0; step < 3; ++step) {
    set_gradients(nn::parameters(plain), 100 * step);
    set_gradients(nn::parameters(flat), 100 * step);
    a.step();
    b.step();
  }
  CHECK(a.launches() == nn::parameters(plain).size());
  CHECK(b.launches() == 1);
  CHECK(worst_difference(plain, flat) < 1e-6);
  // The padding is still zero: the sum over the buffer is that over the parameters.
  double total = 0, expected = 0;
  for (float x : floats(buffers[0].parameters)) total += std::abs(x);
  for (const Tensor& p : nn::parameters(flat))
    for (float x : floats(p)) expected += std::abs(x);
  CHECK(total == Approx(expected).epsilon(1e-12));
}

TEST_CASE("groups have options of their own", "[optim]") {
  manual_seed(2);
  OddModule model, reference = nn::clone(model);
  const auto split = [](const nn::Module& module) {
    Tensors matrices, vectors;
    for (const Tensor& x : nn::parameters(module)) (x.dims() > 1 ? matrices : vectors).push_back(x);
    return std::vector<train::AdamW::Group>{{matrices, {.lr = 0.1, .weight_decay = 0.5}}, {vectors, {.lr = 0.2}}};
  };
  nn::flatten_parameters(model);
  train::AdamW optimizer(split(model));
  set_gradients(nn::parameters(model), 5);
  optimizer.step();
  CHECK(optimizer.launches() == 2);  // matrices are laid out before vectors

  train::AdamW first({split(reference)[0]}), second({split(reference)[1]});
  set_gradients(nn::parameters(reference), 5);
  first.step();
  second.step();
  CHECK(worst_difference(model, reference) < 1e-6);

  optimizer.set_lr_factor(0.5);
  CHECK(optimizer.lr(0).item() == Approx(0.05));
  CHECK(optimizer.lr(1).item() == Approx(0.1));
  optimizer.set_lr(0.3);
  CHECK(optimizer.lr(1).item() == Approx(0.3));
}

TEST_CASE("parameters without a gradient stay as they are", "[optim]") {
  OddModule model;
  nn::flatten_parameters(model);
  const Tensors parameters = nn::parameters(model);
  train::SGD optimizer(parameters, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  set_gradients(parameters, 9);
  Tensor skipped = model.b.weight;
  skipped.set_grad({});
  const std::vector<float> before = floats(skipped), other = floats(model.a.weight);
  optimizer.step();
  CHECK(floats(skipped) == before);
  CHECK(distance(floats(model.a.weight), other) > 0);
  CHECK(optimizer.launches() == 2);
}

TEST_CASE("moments follow parameters that move", "[optim]") {
  manual_seed(4);
  OddModule moved, still = nn::clone(moved);
  train::Adam a(nn::parameters(moved), {.lr = 0.1}), b(nn::parameters(still), {.lr = 0.1});
  for (std::uint64_t step = 0; step < 4; ++step) {
    if (step == 2) nn::flatten_parameters(moved);
    set_gradients(nn::parameters(moved), 10 * step);
    set_gradients(nn::parameters(still), 10 * step);
    a.step();
    b.step();
  }
  CHECK(a.launches() == 1);
  CHECK(worst_difference(moved, still) < 1e-6);
}

TEST_CASE("a storage that stands where another has gone is another place", "[optim]") {
  for (std::int64_t count = 64; count <= 1 << 20; count *= 4) {
    const Place before = place_of(flat_zeros(8, DType::f32, cpu));
    const Tensor larger = flat_zeros(count, DType::f32, cpu);  // without sanitizers its storage gets the place of the one before
    CHECK(place_of(larger) != before);
    CHECK(place_of(larger) == place_of(larger.detach()));
    CHECK(place_of(elements_of(larger, 1, 2)) != place_of(larger));
  }
}

TEST_CASE("moments follow parameters to a GPU and back", "[optim][cuda]") {
  manual_seed(4);
  OddModule moved, still = nn::clone(moved);
  nn::flatten_parameters(moved);
  train::Adam a(nn::parameters(moved), {.lr = 0.1}), b(nn::parameters(still), {.lr = 0.1});
  for (std::uint64_t step = 0; step < 6; ++step) {
    if (step % 2 == 0) nn::to(moved, step == 2 ? cuda() : cpu);
    set_gradients(nn::parameters(moved), 10 * step);
    set_gradients(nn::parameters(still), 10 * step);
    a.step();
    b.step();
    CHECK(a.launches() == 1);
  }
  CHECK(worst_difference(moved, still) < 1e-6);
}

TEST_CASE("the state restores an optimizer", "[optim]") {
  manual_seed(6);
  OddModule model;
  nn::flatten_parameters(model);
  train::Adam optimizer(nn::parameters(model), {.lr = 0.1});
  set_gradients(nn::parameters(model), 1);
  optimizer.step();
  OddModule other = nn::clone(model);
  train::Adam restored(nn::parameters(other), {.lr = 0.5});
  const auto from = optimizer.state(nn::named_parameters(model)), into = restored.state(nn::named_parameters(other));
  REQUIRE(from.size() == into.size());
  CHECK(from[0].name == "step");
  CHECK(from[1].name == "lr.0");
  CHECK(from[2].name == "m.a.weight");
  CHECK(optimizer.state()[2].name == "m.0");
  for (std::size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].name == into[i].name);
    copy_(into[i].tensor, from[i].tensor);
  }
  for (const auto& [module, adam] : {std::pair<OddModule*, train::Adam*>{&model, &optimizer}, {&other, &restored}}) {
    set_gradients(nn::parameters(*module), 2);
    adam->step();
  }
  CHECK(worst_difference(model, other) < 1e-6);
}

TEST_CASE("clipping bounds the norm of all gradients", "[optim]") {
  const json& clip = Fixture::get().index["optimizers"]["clip"];
  const std::vector<std::int64_t> sizes{5, 11, 21};
  struct Three final : nn::Module {
    void visit(nn::Visitor& v) override {
      v("a", x[0]);
      v("b", x[1]);
      v("c", x[2]);
    }
    Tensor x[3];
  };
  for (bool flatten : {false, true}) {
    Three module;
    for (std::size_t i = 0; i < 3; ++i) {
      module.x[i] = Tensor::from(draw(520 + i, sizes[i], 1), {sizes[i]}).set_requires_grad();
      module.x[i].set_grad(Tensor::from(draw(530 + i, sizes[i], 3), {sizes[i]}));
    }
    if (flatten) nn::flatten_parameters(module);
    const Tensor norm = train::clip_grad_norm(nn::parameters(module), clip["max_norm"]);
    CHECK(norm.item<double>() == Approx(clip["norm"].get<double>()).epsilon(1e-6));
    for (std::size_t i = 0; i < 3; ++i) CHECK(distance(floats(module.x[i].grad()), Fixture::get().values(clip["clipped"][i])) < 1e-6);
    // Inside the bound nothing changes.
    const std::vector<float> before = floats(module.x[2].grad());
    CHECK(train::clip_grad_norm(nn::parameters(module), 100).item<double>() == Approx(1.5).epsilon(1e-5));
    CHECK(floats(module.x[2].grad()) == before);
  }
  CHECK(train::clip_grad_norm({zeros({3}).set_requires_grad()}, 1).item() == 0);
}

TEST_CASE("clipping counts and scales strided gradients, and nothing beside them", "[optim]") {
  const Tensor turned = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3}),
               spread = Tensor::from(std::vector<float>{7, 50, 8, 60}, {4});
  Tensor a = zeros({3, 2}).set_requires_grad(), b = zeros({2}).set_requires_grad(), c = zeros({1}).set_requires_grad();
  a.set_grad(turned.window({3, 2}, {1, 3}, 0));
  b.set_grad(spread.window({2}, {2}, 0));
  c.set_grad(Tensor::from(std::vector<float>{9}, {1}));
  const double norm = std::sqrt(1 + 4 + 9 + 16 + 25 + 36 + 49 + 64 + 81), factor = 0.5 / (norm + 1e-6);
  CHECK(train::clip_grad_norm({a, b, c}, 0.5).item<double>() == Approx(norm));
  const auto check = [&](const Tensor& found, const std::vector<double>& wanted) {
    const std::vector<float> values = floats(found);
    REQUIRE(values.size() == wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(values[i] == Approx(wanted[i]));
  };
  check(turned, {factor, 2 * factor, 3 * factor, 4 * factor, 5 * factor, 6 * factor});
  check(a.grad(), {factor, 4 * factor, 2 * factor, 5 * factor, 3 * factor, 6 * factor});
  check(spread, {7 * factor, 50, 8 * factor, 60});
  check(c.grad(), {9 * factor});
}

TEST_CASE("optimizers refuse what they cannot update", "[optim]") {
  const Tensor x = zeros({3}).set_requires_grad();
  CHECK_THROWS_AS(train::Adam({x, x}), Error);
  CHECK_THROWS_AS(train::Adam({zeros({3}, DType::i64)}), Error);
  CHECK_THROWS_AS(train::Adam({zeros({3, 2}).window({2, 3}, {1, 2}, 0)}), Error);
  CHECK_THROWS_AS(train::Adam({x}, {.lr = -1}), Error);
  CHECK_THROWS_AS(train::Adam({x}, {.beta1 = 1}), Error);
  CHECK_THROWS_AS(train::SGD({x}, {.nesterov = true}), Error);
  CHECK_THROWS_AS(train::clip_grad_norm({x}, 0), Error);
}

TEST_CASE("schedules", "[schedule]") {
  namespace schedule = train::schedule;
  CHECK(schedule::constant(17) == 1);
  CHECK(schedule::linear_warmup(0, 10) == 0);
  CHECK(schedule::linear_warmup(1, 10) == Approx(0.1));
  CHECK(schedule::linear_warmup(10, 10) == 1);
  CHECK(schedule::linear_warmup(1, 0) == 1);
  CHECK(schedule::inverse_sqrt(5, 10) == Approx(0.5));
  CHECK(schedule::inverse_sqrt(10, 10) == 1);
  CHECK(schedule::inverse_sqrt(40, 10) == Approx(0.5));
  CHECK(schedule::inverse_sqrt(4, 0) == Approx(0.5));
  CHECK(schedule::cosine(5, 10, 110) == Approx(0.5));
  CHECK(schedule::cosine(10, 10, 110) == 1);
  CHECK(schedule::cosine(60, 10, 110) == Approx(0.5));
  CHECK(schedule::cosine(60, 10, 110, 0.2) == Approx(0.6));
  CHECK(schedule::cosine(35, 10, 110) == Approx(0.5 + 0.25 * std::numbers::sqrt2));
  CHECK(schedule::cosine(200, 10, 110, 0.1) == Approx(0.1));
  CHECK(schedule::cosine(3, 3, 3) == 0);
}

TEST_CASE("schedules that end with the training", "[schedule]") {
  namespace schedule = train::schedule;
  CHECK(schedule::linear(5, 10, 110) == Approx(0.5));
  CHECK(schedule::linear(10, 10, 110) == 1);
  CHECK(schedule::linear(35, 10, 110) == Approx(0.75));
  CHECK(schedule::linear(35, 10, 110, 0.2) == Approx(0.8));
  CHECK(schedule::linear(110, 10, 110, 0.2) == Approx(0.2));
  CHECK(schedule::linear(500, 10, 110) == 0);
  CHECK(schedule::linear(3, 3, 3) == 0);

  CHECK(schedule::wsd(5, 10, 110, 20) == Approx(0.5));
  CHECK(schedule::wsd(10, 10, 110, 20) == 1);
  CHECK(schedule::wsd(90, 10, 110, 20) == 1);
  CHECK(schedule::wsd(91, 10, 110, 20) == Approx(0.95));
  CHECK(schedule::wsd(100, 10, 110, 20, 0.1) == Approx(0.55));
  CHECK(schedule::wsd(110, 10, 110, 20, 0.1) == Approx(0.1));
  CHECK(schedule::wsd(60, 10, 110, 1000) == Approx(0.5));  // a decay of more than there is begins after the warm-up
  CHECK(schedule::wsd(110, 10, 110, 0) == 0);
  CHECK(schedule::wsd(109, 10, 110, 0) == 1);

  CHECK(schedule::one_cycle(0, 30, 100) == Approx(0.04));
  CHECK(schedule::one_cycle(15, 30, 100) == Approx(0.52));
  CHECK(schedule::one_cycle(30, 30, 100) == 1);
  CHECK(schedule::one_cycle(65, 30, 100) == Approx((1 + 4e-6) / 2));
  CHECK(schedule::one_cycle(100, 30, 100) == Approx(4e-6));
  CHECK(schedule::one_cycle(10, 0, 100, 0.5, 0.25) == Approx(0.25 + 0.375 * (1 + std::cos(0.1 * std::numbers::pi))));
}

TEST_CASE("AdamW decays by default, whatever else is given", "[optim]") {
  const auto after_a_step = [](auto make) {
    const Tensor x = ones({1}).set_requires_grad();
    auto optimizer = make(Tensors{x});
    Tensor(x).set_grad(zeros({1}));
    optimizer.step();
    return x.item();
  };
  CHECK(after_a_step([](const Tensors& p) { return train::AdamW(p, {.lr = 0.1}); }) == Approx(0.999));
  CHECK(after_a_step([](const Tensors& p) { return train::AdamW({{p, {.lr = 0.1}}}); }) == Approx(0.999));
  CHECK(after_a_step([](const Tensors& p) { return train::AdamW(p); }) == Approx(1 - 1e-5));
  CHECK(after_a_step([](const Tensors& p) { return train::AdamW(p, {.lr = 0.1, .weight_decay = 0}); }) == 1);
  CHECK(after_a_step([](const Tensors& p) { return train::Adam(p, {.lr = 0.1}); }) == 1);
}

TEST_CASE("An optimizer refuses parameters that were never told whether they are trained", "[optim]") {
  struct Own final : nn::Module {
    void visit(nn::Visitor& v) override {
      v("fc", fc);
      v("scale", scale);
    }
    nn::Linear fc{2, 2};
    Tensor scale = ones({2});
  };
  Own model;
  CHECK_THROWS_WITH(train::SGD(nn::parameters(model)),
                    "[Optimizer] expected parameters that require a gradient, or are frozen, but (2,) at position 2 was never marked: call "
                    "set_requires_grad() on it where the module creates it, or set_requires_grad(false) to freeze it");
  model.scale.set_requires_grad(false);
  CHECK_NOTHROW(train::SGD(nn::parameters(model)));
  CHECK_NOTHROW(train::SGD(nn::parameters(nn::clone(model))));
  CHECK_FALSE(nn::clone(model).scale.requires_grad());
  model.scale.set_requires_grad();
  CHECK_NOTHROW(train::SGD(nn::parameters(model)));
  nn::set_requires_grad(model, false);
  CHECK_NOTHROW(train::SGD(nn::parameters(model)));
}

TEST_CASE("An optimizer notices a weight that was replaced", "[optim]") {
  nn::Linear layer(2, 2);
  train::Adam optimizer(nn::parameters(layer));
  CHECK_NOTHROW(optimizer.step());
  layer.weight = zeros({2, 2}).set_requires_grad();
  std::string message;
  try {
    optimizer.step();
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message.find("only the optimizer holds parameter 0, (2, 2): was it replaced") != std::string::npos);
  CHECK(optimizer.steps().item() == 1);
}

TEST_CASE("A group that an optimizer has not is an error", "[optim]") {
  const train::SGD optimizer(Tensors{ones({1}).set_requires_grad()});
  CHECK(optimizer.lr().item() == Approx(1e-2));
  CHECK_THROWS_WITH(optimizer.lr(5), "[lr] expected one of 1 groups, counted from 0, but got 5");
}

TEST_CASE("Gradients whose squares overflow are clipped like others", "[optim]") {
  for (const std::int64_t size : {3, 5000}) {
    const double expected = 1 / std::sqrt(double(size));
    const Tensor x = ones({size}).set_requires_grad();
    Tensor(x).set_grad(full({size}, 1e25));
    CHECK(train::clip_grad_norm({x}, 1).item<double>() == Approx(1e25 / expected));
    for (const float g : x.grad().to_vector<float>()) REQUIRE(g == Approx(expected));
    Tensor(x).set_grad(full({size}, std::numeric_limits<double>::infinity()));
    CHECK_THROWS_WITH(train::clip_grad_norm({x}, 1, true), "[clip_grad_norm] expected gradients of a finite norm but got inf");
    CHECK(std::isinf(x.grad().to_vector<float>()[0]));
  }
}
