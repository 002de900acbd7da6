#pragma once
#include <fmt/format.h>

#include "backend/error.h"

namespace tern::train::detail {

/// Throws Error unless an option holds: "[WHERE] expected WHAT but got VALUE".
inline void require(const char* where, bool holds, const char* what, double value) {
  if (!holds) fail(where, fmt::format("expected {} but got {}", what, value));
}

}  // namespace tern::train::detail
