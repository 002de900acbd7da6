#pragma once
#include <optional>

#include "flags.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "train/train.h"

/// Trainings by the library's parts in a plain loop: the numbers that the programs' options are tested against do not come by way of the
/// trainer and the programs.
namespace tern::programs::test {

struct ReferenceOptimizer : train::AdamWOptions {
  double clip = 0;                                                      ///< gradient norm; 0: none
  std::function<double(int)> factor = [](int) -> double { return 1; };  ///< of lr, for an update counted from 1
};

/// Updates of a module, one after the other.
class PlainLoop {
 public:
  PlainLoop(const nn::Module& module, const ReferenceOptimizer& options)
      : options_(options), parameters_(nn::parameters(module)), adam_(parameters_, options) {}

  /// An update by the gradients of a loss. Returns the loss.
  double update(const Tensor& loss) {
    adam_.zero_grad();
    loss.backward();
    if (options_.clip > 0) train::clip_grad_norm(parameters_, options_.clip);
    adam_.set_lr(options_.lr * options_.factor(++step_));
    adam_.step();
    return loss.item<double>();
  }

 private:
  ReferenceOptimizer options_;
  Tensors parameters_;
  train::AdamW adam_;
  int step_ = 0;
};

inline Weights weights_of(const nn::Module& module) {
  Weights result;
  for (const NamedTensor& entry : nn::named_parameters(module)) result[entry.name] = contiguous(entry.tensor).to_vector<float>();
  return result;
}

}  // namespace tern::programs::test
