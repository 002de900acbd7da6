#pragma once
#include <cstdint>
#include <string>

namespace tern::apps {

/// The factor of the peak learning rate, in [0, 1], for update `update` of `total`. `schedule` names a schedule of train/schedule.h:
/// cosine, linear, wsd (decay in the last fifth), one-cycle or inverse-sqrt, each after a linear warmup of `warmup` updates. Other names
/// are constant after the warmup.
double lr_factor(const std::string& schedule, std::int64_t update, std::int64_t warmup, std::int64_t total);

}  // namespace tern::apps
