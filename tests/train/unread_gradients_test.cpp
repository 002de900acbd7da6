// Gradients that nothing reads, and optimizers of nothing: trainings that would go on without a word and train nothing.
#include <unistd.h>

#include <cstdio>

#include "autodiff/engine.h"
#include "catch.h"
#include "files.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "train/train.h"

using namespace tern;

namespace {

/// Standard error of a function.
template <class F>
std::string stderr_of(F&& f) {
  const test::TempDirectory directory;
  const auto path = directory / "stderr";
  std::fflush(stderr);
  const int before = ::dup(2);
  std::FILE* const file = std::fopen(path.c_str(), "w");
  ::dup2(::fileno(file), 2);
  f();
  std::fflush(stderr);
  ::dup2(before, 2);
  ::close(before);
  std::fclose(file);
  return test::slurp(path);
}

/// A member that visit leaves out: proj gets gradients, and no optimizer.
struct Forgetful final : nn::Callable<Forgetful> {
  void visit(nn::Visitor& v) override { v("fc", fc); }
  Tensor forward(const Tensor& x) const { return proj(fc(x)); }
  nn::Linear fc{2, 3}, proj{3, 1};
};

struct Nothing final : nn::Module {
  void visit(nn::Visitor&) override {}
  nn::Linear fc{2, 2};
};

/// Steps by hand, as a user of PyTorch writes them.
void train_by_hand(const Forgetful& model, train::Optimizer& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    sum(model(ones({4, 2}))).backward();
    optimizer.step();
  }
}

}  // namespace

TEST_CASE("An optimizer of no parameters is an error, and a group of none beside others is not") {
  const std::string message =
      "[Optimizer] expected at least one parameter but got none: nn::parameters(module) has only what the module's visit lists";
  const Nothing module;
  CHECK_THROWS_WITH(train::SGD(nn::parameters(module)), message);
  CHECK_THROWS_WITH(train::AdamW(nn::parameters(module)), message);
  CHECK_THROWS_WITH(train::Adam(std::vector<train::Adam::Group>{}), message);
  CHECK_THROWS_WITH(train::Lion(Tensors{}), message);
  CHECK_THROWS_WITH(train::RMSprop(Tensors{}), message);
  CHECK_THROWS_WITH(train::Muon(Tensors{}), message);
  CHECK_NOTHROW(train::SGD(std::vector<train::SGD::Group>{{nn::parameters(module.fc), {}}, {{}, {}}}));
}

TEST_CASE("Gradients that nothing reads are reported once, whether steps are written by hand or not") {
  for (const bool by_hand : {true, false}) {
    const Forgetful model;
    train::SGD optimizer(nn::parameters(model));
    const auto train = [&](int steps) {
      if (by_hand) return train_by_hand(model, optimizer, steps);
      for (int i = 0; i < steps; ++i) train::update(sum(model(ones({4, 2}))), optimizer, {.max_norm = 1});
    };
    CHECK(stderr_of([&] { train(2); }).empty());
    CHECK(stderr_of([&] { train(1); }) ==
          "tern: [backward] expected gradients that an optimizer or Tensor::grad() reads but nothing reads those of 2 tensors, (1,) "
          "(1, 3): is "
          "a member missing in visit, or a module in the optimizer? set_requires_grad(false) freezes what is not trained\n");
    CHECK(stderr_of([&] { train(5); }).empty());
  }
}

TEST_CASE("Gradients that are read some other way are not reported") {
  Forgetful model;
  train::SGD optimizer(nn::parameters(model));
  SECTION("frozen") { nn::set_requires_grad(model.proj, false); }
  SECTION("a second optimizer's, as a discriminator's") {
    train::Adam other(nn::parameters(model.proj));
    CHECK(stderr_of([&] {
            for (int i = 0; i < 6; ++i) {
              train::update(sum(model(ones({4, 2}))), optimizer);
              train::update(sum(model(ones({4, 2}))), other);
            }
          }).empty());
  }
  SECTION("an optimizer of the user's own, which reads Tensor::grad()") {
    CHECK(stderr_of([&] {
            for (int i = 0; i < 6; ++i) {
              train_by_hand(model, optimizer, 1);
              for (Tensor p : nn::parameters(model.proj)) {
                CHECK(p.grad().defined());
                p.set_grad({});
              }
            }
          }).empty());
  }
  SECTION("an input's, which a program inspects") {
    CHECK(stderr_of([&] {
            Tensor x = ones({4, 2}).set_requires_grad();
            nn::set_requires_grad(model.proj, false);
            for (int i = 0; i < 6; ++i) {
              train::update(sum(model(x)), optimizer);
              CHECK(x.grad().defined());
            }
          }).empty());
  }
  SECTION("a new input's in each step") {
    nn::set_requires_grad(model.proj, false);
    CHECK(stderr_of([&] {
            for (int i = 0; i < 6; ++i) train::update(sum(model(ones({4, 2}).set_requires_grad())), optimizer);
          }).empty());
  }
  SECTION("a hook's") {
    int calls = 0;
    for (const Tensor& p : nn::parameters(model.proj)) on_gradient_ready(p, [&](const Tensor&) { ++calls; });
    CHECK(stderr_of([&] { train_by_hand(model, optimizer, 6); }).empty());
    CHECK(calls == 12);
    return;
  }
  SECTION("without an optimizer's step, as in a probe") {
    CHECK(stderr_of([&] {
            for (int i = 0; i < 6; ++i) sum(model(ones({4, 2}))).backward();
          }).empty());
    return;
  }
  SECTION("of grad(), which fills no leaf") {
    train::Adam all(nn::parameters(model.proj));
    const Tensor probe = ones({3}).set_requires_grad();
    CHECK(stderr_of([&] {
            for (int i = 0; i < 6; ++i) {
              grad({sum(model.fc(ones({4, 2})) * probe)}, {probe});
              train_by_hand(model, optimizer, 1);
            }
          }).empty());
  }
  CHECK(stderr_of([&] { train_by_hand(model, optimizer, 6); }).empty());
}
