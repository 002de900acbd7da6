// An optimizer whose gradients come while it updates.
#include <memory>

#include "catch.h"
#include "nn/module.h"
#include "ops/factory.h"
#include "ops/random.h"
#include "tensor/context.h"
#include "train/optimizer.h"
#include "train/train.h"

using namespace tern;

namespace {

/// Gradients of the flat parameters of a module that are there once they were waited for: the second half first.
class LateGradients final : public train::Exchange {
 public:
  LateGradients(const Tensors& parameters, const Tensors& gradients) : parameters_(parameters), gradients_(gradients) {}
  bool is_sharded() const override { return false; }
  std::vector<Part> parts(const Tensor& segment) const override {
    std::vector<Part> result;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].impl().storage == segment.impl().storage)
        result.push_back({parameters_[i].offset(), parameters_[i].offset() + parameters_[i].numel(), number_of(i)});
    return result;
  }
  std::size_t size() const override { return 2; }
  void begin() override { calls += 'b'; }
  void wait(std::size_t number) override {
    calls += static_cast<char>('0' + number);
    const NoGrad unrecorded;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (number_of(i) == number) copy_(parameters_[i].grad(), gradients_[i]);
  }
  void updated(std::size_t) override { calls += 'u'; }
  void end() override { calls += 'e'; }
  void sum(const Tensor&) override {}

  std::string calls;

 private:
  std::size_t number_of(std::size_t i) const { return 2 * i < parameters_.size(); }
  Tensors parameters_, gradients_;
};

}  // namespace

TEST_CASE("an optimizer updates what has arrived, in the order in which it arrives", "[optim][flat]") {
  manual_seed(4);
  Tensors late, there;
  for (const Shape& shape : {Shape{5, 3}, Shape{33}, Shape{2, 9}, Shape{1}}) {
    late.push_back(randn(shape));
    there.push_back(clone(late.back()));
  }
  for (Tensors* all : {&late, &there})
    for (Tensor& x : *all) x.set_requires_grad();
  nn::flatten_parameters(late, true);
  train::AdamW a(late, {.lr = 0.1}), b(there, {.lr = 0.1});
  Tensors gradients;
  for (const Tensor& x : there) gradients.push_back(randn(x.shape()));
  const auto arrival = std::make_shared<LateGradients>(late, gradients);
  a.set_exchange(arrival);
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < late.size(); ++i) {
      late[i].set_grad(full(late[i].shape(), 1e9));
      there[i].set_grad(gradients[i]);
    }
    arrival->calls.clear();
    a.step();
    b.step();
    CHECK(arrival->calls == "b0u1ue");
    CHECK(a.launches() >= 2);
    for (std::size_t i = 0; i < late.size(); ++i) CHECK(late[i].to_vector<float>() == there[i].to_vector<float>());
  }
}
