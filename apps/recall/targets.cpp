#include "recall/targets.h"

#include <cmath>

#include "backend/error.h"

namespace tern::recall {

std::vector<TargetLoss> loss_by_target(const Task& task, const Examples& examples, const std::vector<float>& losses) {
  if (task.is_mqar || losses.size() != examples.targets.size())
    fail("loss_by_target", "expected the task recall and a loss for each of its targets");
  enum Kind { key, new_value, known_value, arrow, question, answer, all };
  std::vector<TargetLoss> result = {{"key", "key", 0, 0, 0},
                                    {"new_value", "value of a new key", 0, 0, 0},
                                    {"known_value", "value of a key that occurred", 0, 0, 0},
                                    {"arrow", "=>", 0, 0, 0},
                                    {"question", "question", 0, 0, 0},
                                    {"answer", "answer", 0, 0, 0},
                                    {"all", "all of them", 0, 0, 0}};
  const auto log = [](std::int64_t choices) { return std::log(static_cast<double>(choices)); };
  for (std::int64_t row = 0; row < examples.count; ++row) {
    std::vector<bool> seen(static_cast<std::size_t>(task.keys));
    std::int64_t different = 0;
    for (std::int64_t column = 0; column < examples.columns; ++column) {
      const auto at = static_cast<std::size_t>(row * examples.columns + column);
      const std::int64_t input = examples.inputs[at];
      const bool is_new = input < task.keys && !seen[static_cast<std::size_t>(input)];
      if (is_new) {
        seen[static_cast<std::size_t>(input)] = true;
        ++different;
      }
      const std::int64_t last = examples.columns - 1;
      const auto [kind, least] = column == last       ? std::pair{answer, 0.0}
                                 : column == last - 1 ? std::pair{question, log(different)}
                                 : column == last - 2 ? std::pair{arrow, 0.0}
                                 : is_new             ? std::pair{new_value, log(task.values)}
                                 : input < task.keys  ? std::pair{known_value, 0.0}
                                                      : std::pair{key, log(task.keys)};
      for (TargetLoss* target : {&result[kind], &result[all]}) {
        ++target->count;
        target->loss += losses[at];
        target->least += least;
      }
    }
  }
  for (TargetLoss& target : result) {
    if (target.count == 0) continue;
    target.loss /= static_cast<double>(target.count);
    target.least /= static_cast<double>(target.count);
  }
  return result;
}

}  // namespace tern::recall
