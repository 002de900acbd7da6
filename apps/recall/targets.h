#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "recall/data_set.h"

namespace tern::recall {

/// The mean loss of the targets of one kind, and its lower bound for any model, which is above 0 for random targets.
struct TargetLoss {
  std::string name;            ///< key in summary.json: "known_value"
  std::string label;           ///< text for people: "value of a key that occurred"
  std::int64_t count = 0;      ///< number of targets; if 0, both losses are 0
  double loss = 0, least = 0;  ///< mean loss and its lower bound, in nats per target
};

/// Groups a model's losses (count, columns) on examples of the task recall by the kind of the target: a key, the value of a new key, the
/// value of a key that occurred, "=>", the question, the answer; and last all targets. Throws Error for mqar.
std::vector<TargetLoss> loss_by_target(const Task& task, const Examples& examples, const std::vector<float>& losses);

}  // namespace tern::recall
