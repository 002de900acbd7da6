#pragma once
#include <cstdint>
#include <string_view>

#include "tensor/tensor.h"

/// Learning-rate schedules: pure functions from the number of the update, counted from 1, to a factor of the peak rate:
/// `optimizer.set_lr_factor(schedule::inverse_sqrt(step, 4000))`.
namespace tern::train::schedule {

/// Constant: the peak rate at every step.
double constant(std::int64_t step);

/// Linear warm-up to 1 at step `warmup`, constant afterwards.
double linear_warmup(std::int64_t step, std::int64_t warmup);

/// After the warm-up, linear decay from 1 to `floor` at step `total`, constant afterwards.
double linear(std::int64_t step, std::int64_t warmup, std::int64_t total, double floor = 0);

/// Warm-up, stable, decay: 1 after the warm-up, and a linear decay to `floor` in the last `decay` steps before `total`. Training can be
/// continued from any step of the stable part, with another `total`. Hu et al., "MiniCPM", 2024, with exponential decay; the linear decay
/// is from Haegele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", 2024.
double wsd(std::int64_t step, std::int64_t warmup, std::int64_t total, std::int64_t decay, double floor = 0);

/// One cycle: half a cosine from `start` at step 0 up to 1 at step `warmup`, and another down to `end` at step `total`, constant
/// afterwards. Smith & Topin, "Super-Convergence", 2018; the cosines and the defaults are those of PyTorch's OneCycleLR, whose warm-up is
/// 0.3 total.
double one_cycle(std::int64_t step, std::int64_t warmup, std::int64_t total, double start = 1.0 / 25, double end = 1.0 / 25 * 1e-4);

/// After the warm-up, cosine decay from 1 to `floor` at step `total`. Loshchilov & Hutter, "SGDR", 2017.
double cosine(std::int64_t step, std::int64_t warmup, std::int64_t total, double floor = 0);

/// After the warm-up, sqrt(warmup / step). Vaswani et al., 2017, without its factor of the width.
double inverse_sqrt(std::int64_t step, std::int64_t warmup);

/// The schedule of a name: cosine, linear, wsd (decay in the last fifth), one-cycle or inverse-sqrt, each after a warm-up of `warmup`
/// updates. Other names are constant after the warm-up.
double by_name(std::string_view name, std::int64_t step, std::int64_t warmup, std::int64_t total);

}  // namespace tern::train::schedule

namespace tern::train {

/// Options of ReduceLROnPlateau.
struct PlateauOptions {
  double factor = 0.1;         ///< of each reduction, in (0, 1)
  std::int64_t patience = 10;  ///< number of measurements without an improvement that are let pass
  double threshold = 1e-4;     ///< an improvement is by more than this: a part of the best value's size, or absolute
  bool is_relative = true;     ///< the threshold is a part of the best value's size
  bool maximize = false;       ///< larger values are better, as accuracies are
  std::int64_t cooldown = 0;   ///< number of measurements after a reduction that are not counted
  double floor = 0;            ///< smallest factor of the learning rate
};

/// Schedule that follows a measured value: `optimizer.set_lr_factor(plateau.update(validation_loss))`. The factor is 1, and is multiplied
/// by `factor` whenever more than `patience` measurements in a row are no improvement; a NaN is none. As PyTorch's ReduceLROnPlateau,
/// except that the relative threshold of a negative value points in the same direction as that of a positive one.
class ReduceLROnPlateau {
 public:
  /// Throws Error for options out of range.
  explicit ReduceLROnPlateau(const PlateauOptions& options = {});
  /// Takes a measurement. Returns the factor for Optimizer::set_lr_factor, from now on.
  double update(double value);
  double factor() const { return factor_; }  ///< the factor that update() returned last; 1 before

  /// State for a checkpoint: f64 (4).
  Tensor state() const;
  /// Continues from a state. Throws Error for a tensor that is none.
  void load(const Tensor& state);

 private:
  bool is_better(double value) const;

  PlateauOptions options_;
  double factor_ = 1, best_;
  std::int64_t bad_ = 0, cooling_ = 0;  ///< measurements since the best one, and those that are not counted yet
};

}  // namespace tern::train
