#pragma once
#include <string>

#include "profile/memory_history.h"

namespace tern::apps {

/// The bytes of each category over time, one on top of the other, with the peak, and a strip of the passes below. Columns show the moment
/// in which most was allocated, so that no peak is lost. For light and dark pages.
std::string to_svg(const profile::MemoryHistory& history, const std::string& title);

}  // namespace tern::apps
