#pragma once
#include <string>

#include "profile/memory_history.h"

namespace tern::profile {

/// An SVG picture of a history: a stacked area chart of the bytes of each category over time, with the peak, and a strip of the passes
/// below. Each column shows the maximum of its interval, so that no peak is lost. Suits light and dark pages.
std::string to_svg(const MemoryHistory& history, const std::string& title);

}  // namespace tern::profile
