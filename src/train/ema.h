#pragma once
#include <cstdint>
#include <vector>

#include "autodiff/parameter_buffer.h"
#include "nn/module.h"

namespace tern::train {

/// Options of Ema.
struct EmaOptions {
  double decay = 0.999;  ///< of the average with each update: its memory is some 1 / (1 - decay) updates long
  bool warmup = true;  ///< the t-th update, from 0, decays by min(decay, (1 + t) / (10 + t)), so that the first weights are soon forgotten
};

/// The exponential moving average of a module's trained parameters, average = decay * average + (1 - decay) * parameter, in f32 (f64 for
/// f64), of the masters where parameters have 16 bits. Polyak & Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992;
/// the warm-up is TensorFlow's. An update runs on the device without a host value or wait, so that a CapturedStep can record it.
class Ema {
 public:
  /// Begins with the parameters as they are. To be made when they lie where they stay: after nn::to and set_precision. Throws Error for a
  /// decay outside [0, 1), or for parameters of 16 bits without masters (flatten_parameters).
  explicit Ema(const nn::Module& module, const EmaOptions& options = {});
  /// @{
  Ema(Ema&&) = default;  ///< move only: a copy would share the averages
  Ema& operator=(Ema&&) = default;
  /// @}

  /// After an optimizer's step. Throws Error where the parameters have moved, or hold the averages now.
  void update();

  /// For a checkpoint: `steps` and `average.<parameter>`, views of the average's own memory: copy_ into them restores it.
  std::vector<NamedTensor> state() const;
  /// The same averages under the parameters' names, as a file of the model has them.
  std::vector<NamedTensor> averages() const { return averages_; }
  /// The number of updates so far on the device, f32 ().
  const Tensor& steps() const { return steps_; }

 private:
  friend class EmaScope;
  /// Neighbours in memory, which one kernel takes, each one-dimensional.
  struct Segment {
    Tensor values;      ///< the parameters, or their masters
    Tensor parameters;  ///< of 16 bits, rounded from the masters; else undefined
    Tensor average;
  };
  void require_place(const char* where) const;

  EmaOptions options_;
  std::vector<NamedTensor> parameters_;  ///< those that are trained
  std::vector<Place> places_;            ///< of them, when the segments were laid out
  std::vector<NamedTensor> averages_;    ///< views on the segments', by parameter
  std::vector<Segment> segments_;
  Tensor steps_;
  bool is_swapped_ = false;
};

/// While it lives, the module has the averages for parameters (and for masters: nn::named_masters gives them to a file); then the
/// parameters again, bit for bit. In place: graphs that read them read the averages meanwhile. Throws Error where another one is alive.
class EmaScope {
 public:
  /// Swaps: the parameters are kept aside, in memory of their own.
  explicit EmaScope(Ema& ema);
  ~EmaScope();
  EmaScope(const EmaScope&) = delete;
  EmaScope& operator=(const EmaScope&) = delete;

 private:
  Ema& ema_;
  Tensors values_, parameters_;  ///< of each segment, as they were
};

}  // namespace tern::train
