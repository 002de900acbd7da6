// The recall tasks' data: what an example is made of, how it is distributed, and that splits share nothing.
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "backend/error.h"
#include "catch.h"
#include "common/program.h"
#include "recall/data_set.h"

using namespace tern::recall;

namespace {

using Row = std::vector<std::int64_t>;

Row row_of(const std::vector<std::int64_t>& values, std::int64_t row, std::int64_t columns) {
  return {values.begin() + row * columns, values.begin() + (row + 1) * columns};
}

std::set<Row> inputs(const Examples& examples) {
  std::set<Row> result;
  for (std::int64_t i = 0; i < examples.count; ++i) result.insert(row_of(examples.inputs, i, examples.columns));
  return result;
}

bool are_disjoint(const Examples& a, const Examples& b) {
  const std::set<Row> rows = inputs(a);
  for (const Row& row : inputs(b))
    if (rows.contains(row)) return false;
  return true;
}

/// Pearson's statistic against equal counts; for n categories it is n - 1 in the mean, with a deviation of sqrt(2 (n - 1)).
double chi_squared(const std::map<std::int64_t, int>& counts, std::size_t categories) {
  double total = 0, result = 0;
  for (const auto& [value, count] : counts) total += count;
  const double expected = total / static_cast<double>(categories);
  for (const auto& [value, count] : counts) result += (count - expected) * (count - expected) / expected;
  return result + expected * static_cast<double>(categories - counts.size());
}

}  // namespace

TEST_CASE("A recall example is pairs of one map, and a question whose answer was seen") {
  const Task task;
  const Examples examples = make_data_set(task, 3, 400, 0, 0).train;
  REQUIRE(examples.columns == 102);
  REQUIRE(examples.inputs.size() == 400 * 102);
  for (std::int64_t i = 0; i < examples.count; ++i) {
    const Row input = row_of(examples.inputs, i, 102), target = row_of(examples.targets, i, 102);
    std::map<std::int64_t, std::int64_t> map;
    bool is_well_made = true;
    for (std::size_t at = 0; at < 100; at += 2) {
      is_well_made = is_well_made && input[at] < 9 && input[at + 1] >= 9 && input[at + 1] < 19;
      is_well_made = is_well_made && map.emplace(input[at], input[at + 1]).first->second == input[at + 1];
    }
    for (std::size_t at = 0; at < 101; ++at) is_well_made = is_well_made && target[at] == input[at + 1];
    REQUIRE(is_well_made);
    REQUIRE(input[100] == 19);
    REQUIRE(map.contains(input[101]));
    REQUIRE(target[101] == map[input[101]]);
    REQUIRE(examples.answer_columns[static_cast<std::size_t>(i)] == 101);
  }
}

TEST_CASE("Keys, values, questions and maps are uniform") {
  const Examples examples = make_data_set({}, 1, 5000, 0, 0).train;
  std::map<std::int64_t, int> keys, values, asked, firsts, pairs;
  for (std::int64_t i = 0; i < examples.count; ++i) {
    const Row input = row_of(examples.inputs, i, 102);
    for (std::size_t at = 0; at < 100; at += 2) ++keys[input[at]];
    ++values[input[1]];  // one value of an example: the others depend on it through the map
    ++asked[input[101]];
    ++firsts[input[0]];
    ++pairs[input[0] * 100 + input[1]];
  }
  CHECK(chi_squared(keys, 9) < 8 + 5 * 4);
  CHECK(chi_squared(values, 10) < 9 + 5 * 4.3);
  CHECK(chi_squared(asked, 9) < 8 + 5 * 4);
  CHECK(chi_squared(firsts, 9) < 8 + 5 * 4);
  CHECK(chi_squared(pairs, 90) < 89 + 5 * 13.4);
}

// Accuracies of guesses that look nothing up.
TEST_CASE("The most frequent value is right in 27 of 100 examples, the one as frequent as the key in 39") {
  const Examples examples = make_data_set({}, 2, 5000, 0, 0).train;
  Score frequent{.correct = 0, .answers = examples.count}, fitting = frequent;
  for (std::int64_t i = 0; i < examples.count; ++i) {
    const Row input = row_of(examples.inputs, i, 102);
    std::map<std::int64_t, int> keys, values;
    for (std::size_t at = 0; at < 100; at += 2) {
      ++keys[input[at]];
      ++values[input[at + 1]];
    }
    const std::int64_t answer = examples.targets[static_cast<std::size_t>(i * 102 + 101)];
    const auto more = [](auto& a, auto& b) { return a.second < b.second; };
    frequent.correct += std::max_element(values.begin(), values.end(), more)->first == answer;
    // A value stands for one key or more, and so occurs at least as often as each.
    const auto excess = [&](int count) { return count < keys[input[101]] ? 1000 : count - keys[input[101]]; };
    const auto closer = [&](auto& a, auto& b) { return excess(a.second) < excess(b.second); };
    fitting.correct += std::min_element(values.begin(), values.end(), closer)->first == answer;
  }
  CHECK(frequent.accuracy() == Approx(0.27).margin(0.02));
  CHECK(fitting.accuracy() == Approx(0.39).margin(0.02));
}

TEST_CASE("An mqar example asks for each of its pairs once") {
  const Task task{.is_mqar = true, .pairs = 8, .length = 128, .vocab = 512};
  const Examples examples = make_data_set(task, 1, 300, 0, 0).train;
  std::map<std::int64_t, int> columns;
  for (std::int64_t i = 0; i < examples.count; ++i) {
    const Row input = row_of(examples.inputs, i, 128), target = row_of(examples.targets, i, 128);
    std::map<std::int64_t, std::int64_t> map;
    for (std::size_t at = 0; at < 16; at += 2) map[input[at]] = input[at + 1];
    REQUIRE(map.size() == 8);
    std::set<std::int64_t> asked;
    for (std::int64_t column : row_of(examples.answer_columns, i, 8)) {
      const auto at = static_cast<std::size_t>(column);
      REQUIRE(at >= 16);
      REQUIRE(map.contains(input[at]));
      REQUIRE(target[at] == map[input[at]]);
      asked.insert(input[at]);
      ++columns[column];
    }
    REQUIRE(asked.size() == 8);
    REQUIRE(std::count(target.begin(), target.end(), -100) == 120);
  }
  // Early columns are more likely: weights fall as 1 / i.
  CHECK(columns[16] > 2 * columns[24]);
  CHECK(columns[16] > 250);
}

TEST_CASE("Data depend on the seed alone, and splits share no input") {
  const Task small{.pairs = 2, .keys = 3, .values = 4};
  const DataSet data = make_data_set(small, 5, 150, 60, 60);
  CHECK(inputs(data.train).size() < 150);  // so few inputs exist that draws do repeat
  CHECK(are_disjoint(data.train, data.valid));
  CHECK(are_disjoint(data.train, data.test));
  CHECK(are_disjoint(data.valid, data.test));
  CHECK(make_data_set(small, 5, 150, 60, 60).test.inputs == data.test.inputs);
  CHECK(make_data_set(small, 6, 150, 60, 60).train.inputs != data.train.inputs);

  // More examples leave the first ones as they are.
  const DataSet more = make_data_set({}, 5, 20, 10, 10), fewer = make_data_set({}, 5, 10, 10, 10);
  CHECK(row_of(more.train.inputs, 9, 102) == row_of(fewer.train.inputs, 9, 102));
  CHECK(more.test.inputs == fewer.test.inputs);
  CHECK_THROWS_AS(make_data_set({.pairs = 1, .keys = 1, .values = 2}, 1, 50, 10, 10), tern::Error);
}

TEST_CASE("What a recall example's targets can be known from") {
  const Task task{.pairs = 4, .keys = 3, .values = 5};
  // k0 v1  k2 v0  k0 v1  k2 v0  =>  k2 [v0]
  const std::vector<std::int64_t> tokens = {0, 4, 2, 3, 0, 4, 2, 3, 8, 2, 3};
  const Examples example{.count = 1,
                         .columns = 10,
                         .answers = 1,
                         .inputs = {tokens.begin(), tokens.end() - 1},
                         .targets = {tokens.begin() + 1, tokens.end()},
                         .answer_columns = {9}};
  const std::vector<TargetLoss> result = loss_by_target(task, example, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  REQUIRE(result.size() == 7);
  const auto check = [&](std::size_t at, const char* name, std::int64_t count, double loss, double least) {
    CHECK(result[at].name == name);
    CHECK(result[at].count == count);
    CHECK(result[at].loss == Approx(loss).epsilon(1e-12));
    CHECK(result[at].least == Approx(least).epsilon(1e-12));
  };
  check(0, "key", 3, (2 + 4 + 6) / 3.0, std::log(3));
  check(1, "new_value", 2, (1 + 3) / 2.0, std::log(5));
  check(2, "known_value", 2, (5 + 7) / 2.0, 0);
  check(3, "arrow", 1, 8, 0);
  check(4, "question", 1, 9, std::log(2));  // one of two keys that occurred
  check(5, "answer", 1, 10, 0);
  check(6, "all", 10, 5.5, (3 * std::log(3) + 2 * std::log(5) + std::log(2)) / 10);
  CHECK_THROWS_AS(loss_by_target(task, example, {1, 2}), tern::Error);

  // The default task's floor.
  const Examples many = make_data_set({}, 1, 2000, 0, 0).train;
  const double least = loss_by_target({}, many, std::vector<float>(many.targets.size())).back().least;
  CHECK(least == Approx(1.28).margin(0.002));
}

TEST_CASE("Wilson's interval") {
  // R: prop.test(81, 263, correct = FALSE), Wilson's own example.
  const tern::apps::Interval interval = tern::apps::wilson(81, 263);
  CHECK(interval.low == Approx(0.2553).margin(1e-4));
  CHECK(interval.high == Approx(0.3662).margin(1e-4));
  CHECK(tern::apps::wilson(0, 10).low == Approx(0).margin(1e-12));
  CHECK(tern::apps::wilson(10, 10).low == Approx(0.7225).margin(1e-4));
  for (std::int64_t answers : {1, 2, 3, 10, 5000}) CHECK(tern::apps::wilson(answers, answers).high <= 1);
}

TEST_CASE("Harder examples have five sizes in turn, and longer ones for the test") {
  const Task task{.is_mqar = true, .pairs = 16, .length = 64, .vocab = 256, .harder = true};
  const DataSet data = make_data_set(task, 3, 50, 5, 10);
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{16, 1}, {32, 2}, {64, 4}, {64, 8}, {64, 16}};
  REQUIRE(data.train.columns == 64);
  REQUIRE(data.train.answers == 16);
  for (std::int64_t i = 0; i < data.train.count; ++i) {
    const auto [length, pairs] = sizes[static_cast<std::size_t>(i % 5)];
    const Row target = row_of(data.train.targets, i, 64), columns = row_of(data.train.answer_columns, i, 16);
    std::int64_t answers = 0, last = 0;
    for (std::int64_t column = 0; column < 64; ++column)
      if (target[static_cast<std::size_t>(column)] >= 0) ++answers, last = column;
    CHECK(answers == pairs);
    CHECK(last < length);
    for (std::int64_t k = 0; k < 16; ++k) CHECK((columns[static_cast<std::size_t>(k)] == 0) == (k >= pairs));
    CHECK(target[0] < 0);
  }
  REQUIRE(data.longer.size() == 2);
  for (const std::int64_t times : {2, 4}) {
    const Examples& longer = data.longer[static_cast<std::size_t>(times / 4)];
    CHECK(longer.count == 10);
    CHECK(longer.columns == 64 * times);
    CHECK(longer.answers == 16 * times);
  }
  CHECK(make_data_set({.is_mqar = true, .pairs = 4}, 3, 1, 0, 1).longer.empty());
}
