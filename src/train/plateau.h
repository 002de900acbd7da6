#pragma once
#include "tensor/tensor.h"

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
