#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace tern::apps {

/// The quantile of values for a share in [0, 1], without interpolation: the sorted value nearest to index share * (n - 1), the upper of two
/// equally near. 0.5 is the median. 0 for no values.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

}  // namespace tern::apps
