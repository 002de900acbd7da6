#include <cmath>
#include <limits>
#include <memory>

#include "autodiff/parameter_buffer.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "support.h"
#include "train/train.h"

using namespace tern;
using nlohmann::json;

namespace {

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

TEST_CASE("optimizers agree with PyTorch", "[optim]") { check_fixture(cpu); }
TEST_CASE("optimizers on a GPU agree with PyTorch", "[optim][cuda]") { check_fixture(cuda()); }

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
  set_gradients(model, 5);
  optimizer.step();
  CHECK(optimizer.launches() == 2);  // matrices are laid out before vectors

  train::AdamW first({split(reference)[0]}), second({split(reference)[1]});
  set_gradients(reference, 5);
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
  set_gradients(model, 9);
  Tensor skipped = model.b.weight;
  skipped.set_grad({});
  const std::vector<float> before = floats(skipped), other = floats(model.a.weight);
  optimizer.step();
  CHECK(floats(skipped) == before);
  CHECK(distance(floats(model.a.weight), other) > 0);
  CHECK(optimizer.launches() == 2);
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
  CHECK(message_of([&] { optimizer.step(); }).find("only the optimizer holds parameter 0, (2, 2): was it replaced") != std::string::npos);
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
