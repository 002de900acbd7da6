#include "recall/data_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "backend/error.h"
#include "tensor/random.h"

namespace tern::recall {

std::vector<std::pair<std::int64_t, std::int64_t>> Task::sizes() const {
  if (!harder) return {{length, pairs}};
  const auto part = [&](std::int64_t n) { return std::max<std::int64_t>(pairs / n, 1); };
  return {{length / 4, part(16)}, {length / 2, part(8)}, {length, part(4)}, {length, part(2)}, {length, pairs}};
}

std::vector<Task> Task::longer() const {
  std::vector<Task> tasks;
  for (const std::int64_t times : {2, 4}) {
    if (!harder) break;
    Task& task = tasks.emplace_back(*this);
    task.length *= times, task.pairs *= times, task.harder = false;
  }
  return tasks;
}

namespace {

constexpr std::int64_t ignored = -100;  // CrossEntropyOptions::ignore_index

/// A stream of Philox's random numbers, one for each example.
class PhiloxStream {
 public:
  PhiloxStream(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  std::uint32_t word() {
    if (next_ % 4 == 0) block_ = philox(seed_, next_ / 4, stream_);
    return block_.words[next_++ % 4];
  }
  /// A number in [0, n), nearly uniform for n far below 2^32: the high half of the product.
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>((std::uint64_t{word()} * static_cast<std::uint64_t>(n)) >> 32); }
  /// A number in [0, 1).
  double unit() { return word() * 0x1p-32; }

 private:
  std::uint64_t seed_, stream_, next_ = 0;
  PhiloxBlock block_{};
};

/// One row of Examples.
struct Example {
  std::vector<std::int64_t> inputs, targets, answer_columns;
};

Example draw_recall(const Task& task, PhiloxStream& random) {
  std::vector<std::int64_t> value_of(static_cast<std::size_t>(task.keys));
  for (std::int64_t& value : value_of) value = task.keys + random.below(task.values);
  std::vector<std::int64_t> tokens, seen;
  const auto append = [&](std::int64_t key) {
    tokens.push_back(key);
    tokens.push_back(value_of[static_cast<std::size_t>(key)]);
  };
  for (std::int64_t pair = 0; pair < task.pairs; ++pair) {
    const std::int64_t key = random.below(task.keys);
    if (std::find(seen.begin(), seen.end(), key) == seen.end()) seen.push_back(key);
    append(key);
  }
  tokens.push_back(task.arrow());
  append(seen[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(seen.size())))]);
  return {{tokens.begin(), tokens.end() - 1}, {tokens.begin() + 1, tokens.end()}, {task.columns() - 1}};
}

/// `count` distinct random numbers in [low, high).
std::vector<std::int64_t> distinct(std::int64_t count, std::int64_t low, std::int64_t high, PhiloxStream& random) {
  std::vector<std::int64_t> result;
  while (static_cast<std::int64_t>(result.size()) < count) {
    const std::int64_t value = low + random.below(high - low);
    if (std::find(result.begin(), result.end(), value) == result.end()) result.push_back(value);
  }
  return result;
}

/// Slots of the questions among the `room` slots after the pairs, drawn without replacement with probabilities proportional to i^(a - 1),
/// a = 0.01, as in zoology. By Efraimidis and Spirakis, the slots of the largest keys ln(u) / weight are such a sample.
std::vector<std::int64_t> question_columns(std::int64_t count, std::int64_t room, PhiloxStream& random) {
  std::vector<std::pair<double, std::int64_t>> keyed;
  for (std::int64_t i = 0; i < room; ++i) keyed.emplace_back(std::log(1 - random.unit()) * std::pow(static_cast<double>(i + 1), 0.99), i);
  std::partial_sort(keyed.begin(), keyed.begin() + count, keyed.end(), std::greater<>());
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(keyed[static_cast<std::size_t>(i)].second);
  return result;
}

/// Of a size of the task's.
Example draw_mqar(const Task& task, std::pair<std::int64_t, std::int64_t> size, PhiloxStream& random) {
  const auto columns = static_cast<std::size_t>(task.length), pairs = static_cast<std::size_t>(size.second);
  const std::vector<std::int64_t> keys = distinct(size.second, 1, task.vocab / 2, random);
  const std::vector<std::int64_t> values = distinct(size.second, task.vocab / 2, task.vocab, random);
  const std::vector<std::int64_t> slots = question_columns(size.second, (size.first - 2 * size.second) / 2, random);
  Example example{std::vector<std::int64_t>(columns), std::vector<std::int64_t>(columns, ignored), {}};
  for (std::int64_t& token : example.inputs) token = random.below(task.vocab);  // noise between the questions
  for (std::size_t i = 0; i < pairs; ++i) {
    example.inputs[2 * i] = keys[i];
    example.inputs[2 * i + 1] = values[i];
  }
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::size_t column = 2 * pairs + 2 * static_cast<std::size_t>(slots[i]);
    example.inputs[column] = keys[i];
    example.targets[column] = values[i];
    example.answer_columns.push_back(static_cast<std::int64_t>(column));
  }
  example.answer_columns.resize(static_cast<std::size_t>(task.pairs));
  return example;
}

/// The FNV-1a hash of an input.
std::uint64_t hash(const std::vector<std::int64_t>& tokens) {
  std::uint64_t result = 0xCBF29CE484222325u;
  for (std::int64_t token : tokens) result = (result ^ static_cast<std::uint64_t>(token)) * 0x100000001B3u;
  return result;
}

/// Hashes of the inputs of earlier splits. Inputs of equal hashes count as equal, which only costs another draw.
using Taken = std::unordered_set<std::uint64_t>;

Examples draw_split(const Task& task, std::uint64_t seed, std::uint64_t split, std::int64_t count, Taken& taken) {
  constexpr std::uint64_t max_attempts = 1000;
  Examples examples{
      .count = count, .columns = task.columns(), .answers = task.answers(), .inputs = {}, .targets = {}, .answer_columns = {}};
  const auto sizes = task.sizes();
  Taken own;
  for (std::int64_t i = 0; i < count; ++i) {
    Example example;
    std::uint64_t attempt = 0;
    do {
      if (attempt == max_attempts)
        fail("recall", fmt::format("expected so many different examples that training, validation and test share none, but "
                                   "{} pairs of {} keys give too few",
                                   task.pairs, task.is_mqar ? task.vocab / 2 : task.keys));
      // Stream 0 is for weights and dropout.
      PhiloxStream random(seed, split << 60 | attempt++ << 40 | static_cast<std::uint64_t>(i));
      example = task.is_mqar ? draw_mqar(task, sizes[static_cast<std::size_t>(i) % sizes.size()], random) : draw_recall(task, random);
    } while (taken.contains(hash(example.inputs)));
    own.insert(hash(example.inputs));
    examples.inputs.insert(examples.inputs.end(), example.inputs.begin(), example.inputs.end());
    examples.targets.insert(examples.targets.end(), example.targets.begin(), example.targets.end());
    examples.answer_columns.insert(examples.answer_columns.end(), example.answer_columns.begin(), example.answer_columns.end());
  }
  taken.merge(own);
  return examples;
}

}  // namespace

DataSet make_data_set(const Task& task, std::uint64_t seed, std::int64_t train, std::int64_t valid, std::int64_t test) {
  Taken taken;
  DataSet data;
  data.train = draw_split(task, seed, 1, train, taken);
  data.valid = draw_split(task, seed, 2, valid, taken);
  data.test = draw_split(task, seed, 3, test, taken);
  for (const Task& more : task.longer()) data.longer.push_back(draw_split(more, seed, 4 + data.longer.size(), test, taken));
  return data;
}

std::string token_name(const Task& task, std::int64_t id) {
  if (task.is_mqar) return fmt::to_string(id);
  if (id == task.arrow()) return "=>";
  return id < task.keys ? fmt::format("k{}", id) : fmt::format("v{}", id - task.keys);
}

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
