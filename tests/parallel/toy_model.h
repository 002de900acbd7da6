#pragma once
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ranks.h"

namespace tern::parallel::test {

/// Linear layers 10 -> 10 -> 50 -> 5 with ReLU between, as a course's: the second bias is frozen, and so is a parameter that nothing uses.
/// Tied: the last layer's weight is that of one before, as fc4 = fc2 there, 10 -> 50 -> 10 -> 50 -> 5.
struct ToyModel final : nn::Module {
  explicit ToyModel(bool is_tied_ = false) : fc1(10, 10, false), fc2(10, 50), fc3(50, is_tied_ ? 10 : 5, false), is_tied(is_tied_) {
    fc2.bias.set_requires_grad(false);
    unused_and_frozen = full({2, 2}, 3.0).set_requires_grad(false);
    unused = full({3}, 1.0).set_requires_grad();
    if (is_tied) fc4 = fc2, fc5.emplace(50, 5);
  }
  void visit(nn::Visitor& v) override {
    v("fc1", fc1);
    v("fc2", fc2);
    v("fc3", fc3);
    v("fc4", fc4);
    v("fc5", fc5);
    v("unused_and_frozen", unused_and_frozen);
    v("unused", unused);
  }
  Tensor forward(const Tensor& x) const {
    Tensor y = fc3.forward(relu(fc2.forward(relu(fc1.forward(x)))));
    if (is_tied) y = fc5->forward(relu(fc4->forward(relu(y))));
    return y;
  }
  nn::Linear fc1, fc2, fc3;
  std::optional<nn::Linear> fc4, fc5;
  Tensor unused_and_frozen, unused;
  bool is_tied;
};

inline constexpr std::int64_t batch = 20;

inline Tensor data(std::uint64_t seed, std::int64_t columns, Device device = cpu) {
  manual_seed(seed);
  return to(rand({batch, columns}, -1, 1), device);
}

/// On the device of the group, and from the same random numbers there as on the CPU.
template <class M, class... Arguments>
M model_of(const Rank& rank, std::uint64_t seed, Arguments... arguments) {
  manual_seed(seed);
  M model(arguments...);
  nn::to(model, rank.group->device());
  return model;
}

inline Tensors trained(const nn::Module& model) {
  Tensors result = nn::parameters(model);
  std::erase_if(result, [](const Tensor& x) { return !x.requires_grad(); });
  return result;
}

using Weights = std::vector<std::vector<float>>;

inline Weights weights_of(const nn::Module& model) {
  Weights result;
  for (const Tensor& x : nn::parameters(model)) result.push_back(cast(x.detach(), DType::f32).to_vector<float>());
  return result;
}

inline void check_close(const Weights& got, const Weights& want, double tolerance, double absolute = 1e-8) {
  if (got.size() != want.size()) throw Error("another number of parameters");
  for (std::size_t i = 0; i < got.size(); ++i)
    for (std::size_t j = 0; j < got[i].size(); ++j)
      if (!(std::abs(got[i][j] - want[i][j]) <= absolute + tolerance * std::abs(want[i][j])))
        throw Error(fmt::format("parameter {} element {} is {} and not {}", i, j, got[i][j], want[i][j]));
}

}  // namespace tern::parallel::test
