#include "train/plateau.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/detail/require.h"

namespace tern::train {

using detail::require;

static double worst(bool maximize) { return (maximize ? -1 : 1) * std::numeric_limits<double>::infinity(); }

ReduceLROnPlateau::ReduceLROnPlateau(const PlateauOptions& options) : options_(options), best_(worst(options.maximize)) {
  require("ReduceLROnPlateau", options.factor > 0 && options.factor < 1, "a factor in (0, 1)", options.factor);
  require("ReduceLROnPlateau", options.patience >= 0, "a patience >= 0", static_cast<double>(options.patience));
  require("ReduceLROnPlateau", options.threshold >= 0, "a threshold >= 0", options.threshold);
  require("ReduceLROnPlateau", options.cooldown >= 0, "a cooldown >= 0", static_cast<double>(options.cooldown));
  require("ReduceLROnPlateau", options.floor >= 0 && options.floor <= 1, "a floor in [0, 1]", options.floor);
}

bool ReduceLROnPlateau::is_better(double value) const {
  if (std::isinf(best_)) return options_.maximize ? value > best_ : value < best_;
  const double needed = options_.threshold * (options_.is_relative ? std::abs(best_) : 1);
  return options_.maximize ? value > best_ + needed : value < best_ - needed;
}

double ReduceLROnPlateau::update(double value) {
  if (is_better(value)) best_ = value, bad_ = 0;
  else ++bad_;
  if (cooling_ > 0) --cooling_, bad_ = 0;
  if (bad_ > options_.patience) {
    factor_ = std::max(factor_ * options_.factor, options_.floor);
    cooling_ = options_.cooldown;
    bad_ = 0;
  }
  return factor_;
}

Tensor ReduceLROnPlateau::state() const {
  return Tensor::from(std::vector<double>{factor_, best_, static_cast<double>(bad_), static_cast<double>(cooling_)}, {4}, cpu);
}

void ReduceLROnPlateau::load(const Tensor& state) {
  if (!state.defined() || state.dtype() != DType::f64 || state.shape() != Shape{4})
    fail("ReduceLROnPlateau", state.defined()
                                  ? fmt::format("expected a state of f64 (4,) but got {} {}", name(state.dtype()), to_string(state.shape()))
                                  : "expected a state of f64 (4,) but got an undefined tensor");
  const std::vector<double> values = state.to_vector<double>();
  factor_ = values[0], best_ = values[1];
  bad_ = static_cast<std::int64_t>(values[2]), cooling_ = static_cast<std::int64_t>(values[3]);
}

}  // namespace tern::train
