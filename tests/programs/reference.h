#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "catch.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "ops/copy.h"
#include "support.h"
#include "tensor/tensor.h"

/// Trainings written out by hand: the programs' options are tested against numbers that do not come by way of the programs.
namespace tern::programs::test {

struct ReferenceOptimizer {
  double lr = 0.5, beta1 = 0.9, beta2 = 0.98, eps = 1;
  double weight_decay = 0;                                              ///< decoupled: AdamW's
  double clip = 0;                                                      ///< gradient norm; 0: none
  std::function<double(int)> factor = [](int) -> double { return 1; };  ///< of lr, for an update counted from 1
};

/// Adam, in f64 and as Kingma and Ba write it.
class ReferenceAdam {
 public:
  ReferenceAdam(const nn::Module& module, ReferenceOptimizer options) : options_(std::move(options)) {
    for (const NamedTensor& entry : nn::named_parameters(module)) states_.push_back(State(entry.tensor));
  }

  /// An update by the gradients of a loss. Returns the loss.
  double update(const Tensor& loss) {
    for (const State& state : states_) Tensor(state.parameter).set_grad({});
    loss.backward();
    std::vector<std::vector<double>> gradients;
    double squares = 0;
    for (const State& state : states_) {
      const Tensor gradient = state.parameter.grad();
      const std::vector<float> values =
          gradient.defined() ? contiguous(gradient).to_vector<float>() : std::vector<float>(state.values.size());
      gradients.emplace_back(values.begin(), values.end());
      for (double g : gradients.back()) squares += g * g;
    }
    const double norm = std::sqrt(squares), scale = options_.clip > 0 ? std::min(1.0, options_.clip / norm) : 1;
    ++step_;
    const double lr = options_.lr * options_.factor(step_);
    const NoGrad unrecorded;
    for (std::size_t k = 0; k < states_.size(); ++k) {
      State& state = states_[k];
      for (std::size_t i = 0; i < state.values.size(); ++i) {
        const double g = scale * gradients[k][i];
        state.m[i] = options_.beta1 * state.m[i] + (1 - options_.beta1) * g;
        state.v[i] = options_.beta2 * state.v[i] + (1 - options_.beta2) * g * g;
        const double m = state.m[i] / (1 - std::pow(options_.beta1, step_)), v = state.v[i] / (1 - std::pow(options_.beta2, step_));
        state.values[i] -= lr * options_.weight_decay * state.values[i] + lr * m / (std::sqrt(v) + options_.eps);
      }
      copy_(state.parameter, Tensor::from(std::vector<float>(state.values.begin(), state.values.end()), state.parameter.shape()));
    }
    return loss.item<double>();
  }

 private:
  struct State {
    explicit State(const Tensor& x) : parameter(x), m(static_cast<std::size_t>(x.numel())), v(m) {
      const std::vector<float> now = contiguous(x).to_vector<float>();
      values.assign(now.begin(), now.end());
    }
    Tensor parameter;
    std::vector<double> values, m, v;
  };
  ReferenceOptimizer options_;
  std::vector<State> states_;
  int step_ = 0;
};

using Weights = std::map<std::string, std::vector<float>>;

inline Weights weights_of(const nn::Module& module) {
  Weights result;
  for (const NamedTensor& entry : nn::named_parameters(module)) result[entry.name] = contiguous(entry.tensor).to_vector<float>();
  return result;
}

inline Weights weights_of(const fs::path& run) {
  Weights result;
  for (const auto& [name, tensor] : io::load_safetensors(run / "model.safetensors").tensors) result[name] = tensor.to_vector<float>();
  return result;
}

/// True for an element of the bias of keys. It adds the same number to all scores of a query, so that its gradient is 0 except for
/// rounding, which Adam scales to steps of the usual size.
inline bool is_bias_of_keys(const std::string& name, std::size_t i, std::size_t size) {
  if (name.ends_with("attn.qkv.bias")) return i >= size / 3 && i < 2 * size / 3;
  return name.ends_with("attn.key_value.bias") && i < size / 2;
}

/// The largest difference of two models' weights without the biases of keys; infinite if names or sizes differ.
inline double distance(const Weights& a, const Weights& b) {
  double largest = 0;
  if (a.size() != b.size()) return INFINITY;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size()) return INFINITY;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!is_bias_of_keys(name, i, values.size())) largest = std::max(largest, std::abs(double(values[i]) - double(other->second[i])));
  }
  return largest;
}

/// A key of each line of the log that has it.
inline std::vector<double> logged(const fs::path& run, const char* key) {
  std::vector<double> result;
  for (const Json& line : json_lines(run / "log.jsonl"))
    if (line.contains(key)) result.push_back(line[key]);
  return result;
}

inline void check_equal(const std::vector<double>& found, const std::vector<double>& wanted, double epsilon = 1e-5) {
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(wanted[i]).epsilon(epsilon));
}

inline Json summary_of(const fs::path& run) { return Json::parse(slurp(run / "summary.json")); }

/// Of --precision: losses in 16 bits are those of float32 but for the roundings. Run{options} trains a program's small model; `path` is the
/// run's directory, `result` the program's end.
template <class Run>
void check_precision() {
  const Run exact;
  const std::vector<double> wanted = logged(exact.path, "valid_loss");
  for (const auto& [precision, epsilon] : std::vector<std::pair<const char*, double>>{{"bf16", 8e-3}, {"fp16", 1e-3}}) {
    INFO(precision);
    const Run run({"--precision", precision});
    const std::vector<double> found = logged(run.path, "valid_loss");
    check_equal(found, wanted, epsilon);
    double most = 0;
    for (std::size_t i = 0; i < found.size(); ++i) most = std::max(most, std::abs(found[i] / wanted[i] - 1));
    CHECK(most > 1e-6);  // 0 where the option is ignored
  }
}

/// Of --use-fused-kernel: the program says which kernels it has, and their trainings differ, but by roundings alone.
template <class Run>
void check_fused_kernels() {
  const Run plain, fused({"--use-fused-kernel"});
  CHECK(contains(plain.result.out, "plain kernels"));
  CHECK(contains(fused.result.out, "fused kernels"));
  const double apart = distance(weights_of(plain.path), weights_of(fused.path));
  CHECK(apart > 0);
  CHECK(apart < 1e-4);
  check_equal(logged(fused.path, "loss"), logged(plain.path, "loss"));
}

/// Of --activation-checkpointing: the same weights from less memory.
template <class Run>
void check_activation_checkpointing(const Arguments& more) {
  const auto trained = [&](const char* policy) {
    Arguments all{"--activation-checkpointing", policy};
    all.insert(all.end(), more.begin(), more.end());
    return Run(all);
  };
  const Run kept = trained("none");
  double before = logged(kept.path, "memory_bytes").back();
  for (const char* policy : {"selective", "full"}) {
    INFO(policy);
    const Run run = trained(policy);
    CHECK(weights_of(run.path) == weights_of(kept.path));
    const double bytes = logged(run.path, "memory_bytes").back();
    CHECK(bytes < 0.95 * before);
    before = bytes;
  }
}

}  // namespace tern::programs::test
