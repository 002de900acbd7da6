#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

/// Learning-rate schedules: pure functions from the number of the update, counted from 1, to a factor of the peak rate.
/// `optimizer.set_lr_factor(schedule::inverse_sqrt(step, 4000))`.
namespace tern::train::schedule {

inline double constant(std::int64_t /*step*/) { return 1; }

/// Rises in a straight line to 1 at step `warmup`, and stays there.
inline double linear_warmup(std::int64_t step, std::int64_t warmup) {
  return step >= warmup ? 1 : static_cast<double>(std::max<std::int64_t>(step, 0)) / static_cast<double>(warmup);
}

/// After the warm-up, half a cosine from 1 down to `floor` at step `total`. Loshchilov & Hutter, "SGDR", 2017.
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
