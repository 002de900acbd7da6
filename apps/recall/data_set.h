#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tern::recall {

/// A recall task. An example of `recall` has a random map from keys to values: `pairs` pairs "key value" of the map, drawn with
/// replacement, then "=> key" with one of these keys; the answer is its value. Ids are keys, values, "=>". In `mqar` (Arora et al.,
/// "Zoology", 2023) the pairs are distinct, and each key returns later in a random column, where its value is the answer. `harder` mqar has
/// examples of several sizes, and longer ones for the test alone.
struct Task {
  bool is_mqar = false;
  std::int64_t pairs = 50;
  std::int64_t keys = 9, values = 10;  ///< number of ids; for recall
  std::int64_t length = 64;            ///< for mqar: tokens of an input, at least 4 * pairs
  std::int64_t vocab = 8192;           ///< for mqar: the lower half are keys, the upper half values
  bool harder = false;                 ///< for mqar: see sizes() and longer()

  std::int64_t columns() const { return is_mqar ? length : 2 * pairs + 2; }
  std::int64_t ids() const { return is_mqar ? vocab : keys + values + 1; }
  std::int64_t answers() const { return is_mqar ? pairs : 1; }
  /// Lengths and pairs of the examples of mqar, in turn: one, or of `harder` (L / 4, P / 16), (L / 2, P / 8), (L, P / 4), (L, P / 2) and
  /// (L, P) for length L and P pairs.
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes() const;
  /// The tasks whose examples are for the test alone: of `harder` (2 L, 2 P) and (4 L, 4 P).
  std::vector<Task> longer() const;
  std::int64_t arrow() const { return keys + values; }  ///< the id of "=>"
};

/// Examples, row-major. The target of a column is the next token, or -100 (ignored) if the task does not ask for it. Examples of fewer
/// tokens are followed by random ones.
struct Examples {
  std::int64_t count = 0, columns = 0, answers = 0;
  std::vector<std::int64_t> inputs, targets;  ///< (count, columns)
  std::vector<std::int64_t> answer_columns;   ///< (count, answers): the columns whose targets are the answers; 0 where there are fewer
};

struct DataSet {
  Examples train, valid, test;
  std::vector<Examples> longer;  ///< of Task::longer()
};

/// Makes the splits of a task: a pure function of the task, the seed and the sizes. Each example has a Philox stream of its own, so that
/// the first examples do not depend on the number of examples. Inputs that occur in an earlier split are drawn again. Throws Error if the
/// task has too few different examples. Of longer examples there are `test`, too.
DataSet make_data_set(const Task& task, std::uint64_t seed, std::int64_t train, std::int64_t valid, std::int64_t test);

/// The text of a token: "k3", "v7" or "=>" for recall, its id for mqar.
std::string token_name(const Task& task, std::int64_t id);

/// Counts of correct answers, and the loss.
struct Score {
  std::int64_t correct = 0, answers = 0;
  double loss = 0;  ///< mean over the targets of the training's loss, in nats

  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(answers); }
};

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
