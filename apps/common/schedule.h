#pragma once
#include <cstdint>
#include <string>

namespace tern::apps {

/// The factor of the learning rate, from 0 to 1, for an update of `total`, by the name of a schedule of train/schedule.h: cosine, linear,
/// wsd (of which the last fifth decays), one-cycle or inverse-sqrt, each after a linear warmup of `warmup` updates; after it 1 for other
/// names.
double lr_factor(const std::string& schedule, std::int64_t update, std::int64_t warmup, std::int64_t total);

}  // namespace tern::apps
