#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tern::recall {

/// Counts of correct answers, and the loss.
struct Score {
  std::int64_t correct = 0, answers = 0;
  double loss = 0;  ///< mean over the targets of the training's loss, in nats

  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(answers); }
};

struct Interval {
  double low = 0, high = 1;
};

/// The 95% confidence interval of an accuracy by Wilson (1927), which is valid also near 0 and 1.
inline Interval wilson(const Score& score) {
  constexpr double z = 1.959963984540054;
  const auto n = static_cast<double>(score.answers);
  const double p = score.accuracy(), shrunk = 1 + z * z / n;
  const double middle = (p + z * z / (2 * n)) / shrunk;
  const double half = z / shrunk * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  return {std::max(middle - half, 0.0), std::min(middle + half, 1.0)};  // clamps rounding errors
}

}  // namespace tern::recall
