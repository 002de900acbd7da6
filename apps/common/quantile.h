#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace tern::apps {

/// The value that a share of the others, 0 to 1, is below: of sorted values the one nearest to that place, the upper one of two. 0.5 is the
/// median. 0 of none.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

}  // namespace tern::apps
