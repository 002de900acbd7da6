#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tern::recall {

/// A recall task. In `recall` an example is `pairs` pairs "key value", drawn with replacement from a map of the example's own,
/// then "=> key" with a key that was seen; ids: keys, values, "=>". In `mqar` (Arora et al., "Zoology", 2023) the pairs are
/// distinct, and each of their keys returns later in a random column, which asks for its value.
struct Task {
  bool is_mqar = false;
  std::int64_t pairs = 50;
  std::int64_t keys = 9, values = 10;  ///< of recall
  std::int64_t length = 64;            ///< of mqar: tokens of an input; at least 4 pairs
  std::int64_t vocab = 8192;           ///< of mqar: the lower half are keys, the upper values

  std::int64_t columns() const { return is_mqar ? length : 2 * pairs + 2; }
  std::int64_t ids() const { return is_mqar ? vocab : keys + values + 1; }
  std::int64_t answers() const { return is_mqar ? pairs : 1; }
  std::int64_t arrow() const { return keys + values; }  ///< the id of "=>"
};

/// Examples, row-major. The target of a column is the token that follows it; where a model is asked for nothing it is -100.
struct Examples {
  std::int64_t count = 0, columns = 0, answers = 0;
  std::vector<std::int64_t> inputs, targets;  ///< (count, columns)
  std::vector<std::int64_t> answer_columns;   ///< (count, answers): the columns whose targets are the answers
};

struct DataSet {
  Examples train, valid, test;
};

/// A pure function of the task, the seed and the sizes: example i of a split is drawn from a Philox stream of its own, so that
/// more examples leave the first ones as they are. No input of one split occurs in another: one that does is drawn again. Throws
/// Error where the task has too few different examples for that.
DataSet make_data_set(const Task& task, std::uint64_t seed, std::int64_t train, std::int64_t valid, std::int64_t test);

/// "k3", "v7", "=>" for recall; the number for mqar.
std::string token_name(const Task& task, std::int64_t id);

}  // namespace tern::recall
