#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

/// Learning-rate schedules: pure functions from the number of the update, counted from 1, to a factor of the peak rate:
/// `optimizer.set_lr_factor(schedule::inverse_sqrt(step, 4000))`.
namespace tern::train::schedule {

/// Constant: the peak rate at every step.
inline double constant(std::int64_t /*step*/) { return 1; }

/// Linear warm-up to 1 at step `warmup`, constant afterwards.
inline double linear_warmup(std::int64_t step, std::int64_t warmup) {
  return step >= warmup ? 1 : static_cast<double>(std::max<std::int64_t>(step, 0)) / static_cast<double>(warmup);
}

/// After the warm-up, linear decay from 1 to `floor` at step `total`, constant afterwards.
inline double linear(std::int64_t step, std::int64_t warmup, std::int64_t total, double floor = 0) {
  if (step < warmup) return linear_warmup(step, warmup);
  if (step >= total) return floor;
  return floor + (1 - floor) * static_cast<double>(total - step) / static_cast<double>(total - warmup);
}

/// Warm-up, stable, decay: 1 after the warm-up, and a linear decay to `floor` in the last `decay` steps before `total`. Training can be
/// continued from any step of the stable part, with another `total`. Hu et al., "MiniCPM", 2024, with exponential decay; the linear decay
/// is from Haegele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", 2024.
inline double wsd(std::int64_t step, std::int64_t warmup, std::int64_t total, std::int64_t decay, double floor = 0) {
  if (step < warmup) return linear_warmup(step, warmup);
  const std::int64_t stable = std::max(warmup, total - decay);  // last step of the stable part
  return step <= stable && step < total ? 1 : linear(step, stable, total, floor);
}

/// One cycle: half a cosine from `start` at step 0 up to 1 at step `warmup`, and another down to `end` at step `total`, constant
/// afterwards. Smith & Topin, "Super-Convergence", 2018; the cosines and the defaults are those of PyTorch's OneCycleLR, whose warm-up is
/// 0.3 total.
inline double one_cycle(std::int64_t step, std::int64_t warmup, std::int64_t total, double start = 1.0 / 25, double end = 1.0 / 25 * 1e-4) {
  const auto between = [](double from, double to, double progress) {
    return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  };
  if (step < warmup) return between(start, 1, linear_warmup(step, warmup));
  if (step >= total) return end;
  return between(1, end, static_cast<double>(step - warmup) / static_cast<double>(total - warmup));
}

/// After the warm-up, cosine decay from 1 to `floor` at step `total`. Loshchilov & Hutter, "SGDR", 2017.
inline double cosine(std::int64_t step, std::int64_t warmup, std::int64_t total, double floor = 0) {
  if (step < warmup) return linear_warmup(step, warmup);
  if (step >= total) return floor;
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  return floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

/// After the warm-up, sqrt(warmup / step). Vaswani et al., 2017, without its factor of the width.
inline double inverse_sqrt(std::int64_t step, std::int64_t warmup) {
  if (step < warmup) return linear_warmup(step, warmup);
  return std::sqrt(static_cast<double>(std::max<std::int64_t>(warmup, 1)) / static_cast<double>(std::max<std::int64_t>(step, 1)));
}

}  // namespace tern::train::schedule
