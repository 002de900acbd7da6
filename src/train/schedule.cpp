#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

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
