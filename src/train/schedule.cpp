#include "train/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "train/optimizer.h"

namespace tern::train::schedule {

double constant(std::int64_t /*step*/) { return 1; }

double linear_warmup(std::int64_t step, std::int64_t warmup) {
  return step >= warmup ? 1 : static_cast<double>(std::max<std::int64_t>(step, 0)) / static_cast<double>(warmup);
}

double linear(std::int64_t step, std::int64_t warmup, std::int64_t total, double floor) {
  if (step < warmup) return linear_warmup(step, warmup);
  if (step >= total) return floor;
  return floor + (1 - floor) * static_cast<double>(total - step) / static_cast<double>(total - warmup);
}

double wsd(std::int64_t step, std::int64_t warmup, std::int64_t total, std::int64_t decay, double floor) {
  if (step < warmup) return linear_warmup(step, warmup);
  const std::int64_t stable = std::max(warmup, total - decay);  // its last step
  return step <= stable && step < total ? 1 : linear(step, stable, total, floor);
}

double one_cycle(std::int64_t step, std::int64_t warmup, std::int64_t total, double start, double end) {
  const auto between = [](double from, double to, double progress) {
    return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  };
  if (step < warmup) return between(start, 1, linear_warmup(step, warmup));
  if (step >= total) return end;
  return between(1, end, static_cast<double>(step - warmup) / static_cast<double>(total - warmup));
}

double cosine(std::int64_t step, std::int64_t warmup, std::int64_t total, double floor) {
  if (step < warmup) return linear_warmup(step, warmup);
  if (step >= total) return floor;
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  return floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

double inverse_sqrt(std::int64_t step, std::int64_t warmup) {
  if (step < warmup) return linear_warmup(step, warmup);
  return std::sqrt(static_cast<double>(std::max<std::int64_t>(warmup, 1)) / static_cast<double>(std::max<std::int64_t>(step, 1)));
}

double by_name(std::string_view name, std::int64_t step, std::int64_t warmup, std::int64_t total) {
  if (name == "cosine") return cosine(step, warmup, total);
  if (name == "linear") return linear(step, warmup, total);
  if (name == "wsd") return wsd(step, warmup, total, total / 5);
  if (name == "one-cycle") return one_cycle(step, warmup, total);
  if (name == "inverse-sqrt") return inverse_sqrt(step, std::max<std::int64_t>(warmup, 1));
  return linear_warmup(step, warmup);
}

}  // namespace tern::train::schedule

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
