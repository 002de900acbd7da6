#include "text/batching.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "catch.h"

using namespace tern::text;

namespace {

using Ids = std::vector<std::int32_t>;
using Wide = std::vector<std::int64_t>;
using Weights = std::vector<float>;
using Order = std::vector<std::size_t>;

// Example i has i + 1 source and 2 target tokens.
std::vector<Example> examples(int count) {
  std::vector<Example> out;
  for (int i = 0; i < count; ++i) out.push_back({Ids(static_cast<std::size_t>(i + 1), 10 + i), Ids{100 + i, 200 + i}});
  return out;
}

}  // namespace

TEST_CASE("the classic sequence is source, target, ends and pad", "[text]") {
  const std::vector<Example> pair = {{{11, 12}, {21, 22, 23}}, {}};
  const auto sequence = [&](std::int64_t columns, std::size_t pick = 0) {
    return make_batch(pair, Order{pick}, {}, {.rows = 1, .columns = columns});
  };
  const Batch s = sequence(9);
  CHECK(s.ids == Wide{11, 12, 0, 21, 22, 23, 1, 2, 2});
  CHECK(s.labels == Wide{12, 0, 21, 22, 23, 1, 2, 2, 2});
  CHECK(s.weights == Weights{0, 0, 1, 1, 1, 1, 0, 0, 0});
  CHECK(s.prefix == Wide{3});
  CHECK(sequence_columns(pair[0]) == 6);
  CHECK(sequence(6).ids == Wide{11, 12, 0, 21, 22, 23});
  CHECK(sequence(6).labels == Wide{12, 0, 21, 22, 23, 1});
  CHECK(sequence(6).weights == Weights{0, 0, 1, 1, 1, 1});
  CHECK(sequence(4).labels == Wide{12, 0, 21, 22});  // no eos_tgt is left
  CHECK(sequence(4).weights == Weights{0, 0, 1, 1});
  CHECK(sequence(1).ids == Wide{11});
  CHECK(sequence(1).weights == Weights{0});
  CHECK(sequence(1).prefix == Wide{1});
  CHECK(sequence(3, 1).ids == Wide{0, 1, 2});  // of nothing
  CHECK(sequence(3, 1).labels == Wide{1, 2, 2});
  CHECK(sequence(3, 1).weights == Weights{1, 0, 0});
  CHECK_THROWS_AS(sequence(0), std::invalid_argument);
}

TEST_CASE("a batch is its sequences, row after row, and is filled up with rows of weight 0", "[text]") {
  const std::vector<Example> all = examples(4);
  const Batch batch = make_batch(all, Order{2, 0}, {}, {.rows = 3, .columns = 6});
  CHECK(batch.ids == Wide{12, 12, 12, 0, 102, 202, 10, 0, 100, 200, 1, 2, 2, 2, 2, 2, 2, 2});
  CHECK(batch.labels == Wide{12, 12, 0, 102, 202, 1, 0, 100, 200, 1, 2, 2, 2, 2, 2, 2, 2, 2});
  CHECK(batch.weights == Weights{0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(batch.prefix == Wide{4, 2, 1});
  CHECK(make_batch(all, {}, {}, {.rows = 1, .columns = 2}).ids == Wide{2, 2});
  CHECK_THROWS_AS(make_batch(all, Order{4}, {}, {.rows = 1, .columns = 4}), std::invalid_argument);
  CHECK_THROWS_AS(make_batch(all, Order{0, 1}, {}, {.rows = 1, .columns = 4}), std::invalid_argument);
  CHECK_THROWS_AS(make_batch(all, Order{0}, {}, {.rows = 1, .columns = -4}), std::invalid_argument);
}

TEST_CASE("a batch of pairs keeps source and target apart", "[text]") {
  const std::vector<Example> all = examples(3);
  const PairBatch batch = make_pair_batch(all, Order{0, 2}, {}, {.rows = 2, .columns = 4});
  CHECK(batch.src == Wide{10, 0, 2, 2, 12, 12, 12, 0});
  CHECK(batch.src_length == Wide{2, 4});
  CHECK(batch.tgt_in == Wide{0, 100, 200, 2, 0, 102, 202, 2});
  CHECK(batch.labels == Wide{100, 200, 1, 2, 102, 202, 1, 2});
  CHECK(batch.weights == Weights{1, 1, 1, 0, 1, 1, 1, 0});
  CHECK(pair_columns(all[2]) == 4);
  const PairBatch filled = make_pair_batch(all, Order{2, 0}, {}, {.rows = 3, .columns = 3});
  CHECK(filled.src == Wide{12, 12, 0, 10, 0, 2, 0, 2, 2});  // the first source is cut
  CHECK(filled.src_length == Wide{3, 2, 1});
  CHECK(filled.tgt_in == Wide{0, 102, 202, 0, 100, 200, 0, 2, 2});
  CHECK(filled.labels == Wide{102, 202, 1, 100, 200, 1, 1, 2, 2});
  CHECK(filled.weights == Weights{1, 1, 1, 1, 1, 1, 0, 0, 0});
  CHECK_THROWS_AS(make_pair_batch(all, Order{0}, {}, {.rows = 1, .columns = 0}), std::invalid_argument);
  CHECK_THROWS_AS(make_pair_batch(all, Order{7}, {}, {.rows = 1, .columns = 2}), std::invalid_argument);
}

TEST_CASE("an epoch's order is a permutation, the same everywhere", "[text]") {
  const Order order = epoch_order(1000, 11111, 0);
  CHECK(std::set<std::size_t>(order.begin(), order.end()).size() == 1000);
  CHECK(epoch_order(1000, 11111, 0) == order);
  CHECK(epoch_order(1000, 11111, 1) != order);
  CHECK(epoch_order(1000, 11112, 0) != order);
  CHECK(epoch_order(1000, 0, 11111) != order);
  // These numbers are part of the format of a resumable run: they may not change.
  CHECK(epoch_order(10, 11111, 0) == Order{9, 8, 7, 2, 0, 1, 3, 4, 6, 5});
  CHECK(epoch_order(10, 11111, 7) == Order{7, 9, 1, 8, 5, 3, 6, 2, 0, 4});
  const Order sample = epoch_order(1000, 11111, 0, 20);
  CHECK(sample == Order(order.begin(), order.begin() + 20));
  CHECK(epoch_order(5, 1, 1, 20).size() == 5);
  CHECK(epoch_order(0, 1, 1).empty());
  CHECK(epoch_order(1, 1, 1) == Order{0});
}

TEST_CASE("an epoch's order favours no place", "[text]") {
  std::vector<int> first(8);
  for (std::uint64_t epoch = 0; epoch < 8000; ++epoch) ++first[epoch_order(8, 42, epoch)[0]];
  for (const int count : first) CHECK(std::abs(count - 1000) < 150);  // 5 standard deviations
}

TEST_CASE("fixed batches cut the order", "[text]") {
  const Order order = {5, 3, 1, 2, 4};
  CHECK(fixed_batches(order, 2) == std::vector<Order>{{5, 3}, {1, 2}, {4}});
  CHECK(fixed_batches({}, 2).empty());
  CHECK_THROWS_AS(fixed_batches(order, 0), std::invalid_argument);
}

TEST_CASE("shaped batches have one shape for each length, and all rows but the last batch's", "[text]") {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 1003; ++i) lengths.push_back(1 + i * i % 61 + (i % 200 == 0 ? 90 : 0));
  const Order order = epoch_order(lengths.size(), 4, 0);
  const BucketOptions options{.token_budget = 640, .multiple = 8, .row_multiple = 4};
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;
  std::set<std::size_t> seen;
  std::size_t partial = 0, cells = 0, used = 0;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    seen.clear();
    partial = 0;
    for (const ShapedBatch& batch : shaped_batches(order, lengths, options, 4, epoch)) {
      const auto [rows, columns] = batch.shape;
      shapes.emplace(rows, columns);
      CHECK(rows * columns <= 640);
      CHECK((rows % 4 == 0 || rows < 4));
      CHECK(columns % 8 == 0);
      CHECK(!batch.picks.empty());
      CHECK(batch.picks.size() <= static_cast<std::size_t>(rows));
      partial += batch.picks.size() < static_cast<std::size_t>(rows);
      cells += static_cast<std::size_t>(rows * columns);
      for (const std::size_t pick : batch.picks) {
        CHECK(lengths[pick] <= columns);
        CHECK(seen.insert(pick).second);
        used += static_cast<std::size_t>(lengths[pick]);
      }
    }
    CHECK(seen.size() == lengths.size());
    CHECK(partial <= 1);
  }
  CHECK(shapes.size() <= 14);  // lengths up to 8, 16, ..., 64 and those of the six that are longer
  std::set<std::int64_t> columns;
  for (const auto& shape : shapes) columns.insert(shape.second);
  CHECK(columns.size() == shapes.size());
  CHECK(used > cells * 3 / 4);

  CHECK(shaped_batches(Order{}, lengths, options, 4, 0).empty());
  const auto far = shaped_batches(Order{0}, std::vector<std::int64_t>{5000}, options, 4, 0);
  REQUIRE(far.size() == 1);
  CHECK(far[0].shape.rows == 1);
  CHECK_THROWS_AS(shaped_batches(Order{2000}, lengths, options, 4, 0), std::invalid_argument);
  CHECK_THROWS_AS(shaped_batches(order, lengths, {.token_budget = 0}, 4, 0), std::invalid_argument);
}
