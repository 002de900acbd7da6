#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "recall/data_set.h"

namespace tern::recall {

/// The mean loss of the targets of one kind, and the least that any model can have: what is drawn at random cannot be known.
struct TargetLoss {
  std::string name;            ///< as a key of summary.json: "known_value"
  std::string what;            ///< for people: "value of a key that occurred"
  std::int64_t count = 0;      ///< targets; 0 leaves both losses 0
  double loss = 0, least = 0;  ///< in nats a target
};

/// A model's losses on examples of the task recall, (count, columns) in the examples' order, by what the target is: a key, the value of
/// a key that is new or that occurred, "=>", the question, the answer; all of them last. Throws Error for mqar.
std::vector<TargetLoss> loss_by_target(const Task& task, const Examples& examples, const std::vector<float>& losses);

}  // namespace tern::recall
