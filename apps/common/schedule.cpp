#include "common/schedule.h"

#include <algorithm>

#include "train/schedule.h"

namespace tern::apps {

double lr_factor(const std::string& schedule, std::int64_t update, std::int64_t warmup, std::int64_t total) {
  namespace schedules = train::schedule;
  if (schedule == "cosine") return schedules::cosine(update, warmup, total);
  if (schedule == "linear") return schedules::linear(update, warmup, total);
  if (schedule == "wsd") return schedules::wsd(update, warmup, total, total / 5);
  if (schedule == "one-cycle") return schedules::one_cycle(update, warmup, total);
  if (schedule == "inverse-sqrt") return schedules::inverse_sqrt(update, std::max<std::int64_t>(warmup, 1));
  return schedules::linear_warmup(update, warmup);
}

}  // namespace tern::apps
