#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "autodiff/parameter_buffer.h"
#include "nn/module.h"

namespace tern::train {

/// Options of Ema.
struct EmaOptions {
  double decay = 0.999;  ///< decay of the average per update: it averages over about 1 / (1 - decay) updates
  bool warmup = true;    ///< update t, from 0, uses min(decay, (1 + t) / (10 + t)), to forget the initial weights quickly
  /// Called before tensors of the module are read or written, e.g. to bring sharded ones: parallel::DataParallel::gather.
  std::function<void(const Tensors&)> gather = {};
};

/// Exponential moving average (EMA) of a module's trained parameters, average = decay * average + (1 - decay) * parameter, in f32 (f64 for
/// f64); of the masters if parameters have 16 bits. Polyak & Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992; the
/// warm-up is TensorFlow's. An update runs on the device without a host value or a wait, so a CapturedStep can capture it.
class Ema {
 public:
  /// Starts with the current parameters, which must not move later: create it after nn::to and set_precision. Throws Error for a decay
  /// outside [0, 1), or for 16-bit parameters without masters (flatten_parameters).
  explicit Ema(const nn::Module& module, const EmaOptions& options = {});
  /// @{
  Ema(Ema&&) = default;  ///< move only: a copy would share the averages
  Ema& operator=(Ema&&) = default;
  /// @}

  /// Updates the average; call it after an optimizer's step. Throws Error if the parameters have moved, or currently hold the averages.
  void update();

  /// State for a checkpoint: `steps` and `average.<parameter>`, views of the average's own memory: copy_ into them restores it.
  std::vector<NamedTensor> state() const;
  /// The averages under the parameters' names.
  std::vector<NamedTensor> averages() const { return averages_; }
  /// Weights, as in a model file, with the averages in place of those that are trained.
  std::vector<NamedTensor> averaged(std::vector<NamedTensor> weights) const;
  /// Number of updates so far on the device, f32 ().
  const Tensor& steps() const { return steps_; }

 private:
  friend class EmaScope;
  /// Parameters that are contiguous in memory, processed by one kernel; one-dimensional tensors.
  struct Segment {
    Tensor values;      ///< the parameters, or their masters
    Tensor parameters;  ///< 16-bit parameters, rounded from the masters; else undefined
    Tensor average;
  };
  void require_place(const char* where) const;
  /// Calls EmaOptions::gather.
  void gather(const Segment& segment) const;

  EmaOptions options_;
  std::vector<NamedTensor> parameters_;  ///< trained parameters
  std::vector<Place> places_;            ///< places of the parameters when the segments were laid out
  std::vector<NamedTensor> averages_;    ///< views on the segments' averages, by parameter
  std::vector<Segment> segments_;
  Tensor steps_;
  bool is_swapped_ = false;
};

/// Scope in which the module's parameters (and masters: nn::named_masters gives them to a file) are the averages; afterwards they are
/// restored, bit for bit. In place: captured graphs that read them read the averages meanwhile. Throws Error if another one is alive.
class EmaScope {
 public:
  /// Swaps the averages in; the parameters are kept in separate memory.
  explicit EmaScope(Ema& ema);
  ~EmaScope();
  EmaScope(const EmaScope&) = delete;
  EmaScope& operator=(const EmaScope&) = delete;

 private:
  Ema& ema_;
  Tensors values_, parameters_;  ///< tensors of each segment, before the swap
};

}  // namespace tern::train
