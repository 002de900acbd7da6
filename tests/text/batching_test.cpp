#include "text/batching.h"

#include <algorithm>
#include <numeric>
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
  const Ids src = {11, 12}, tgt = {21, 22, 23};
  const Sequence s = classic_sequence(src, tgt, 0, 1, 2, 10);
  CHECK(s.ids == Wide{11, 12, 0, 21, 22, 23, 1, 2, 2});
  CHECK(s.labels == Wide{12, 0, 21, 22, 23, 1, 2, 2, 2});
  CHECK(s.weights == Weights{0, 0, 1, 1, 1, 1, 0, 0, 0});
  CHECK(s.prefix == 3);

  const Sequence exact = classic_sequence(src, tgt, 0, 1, 2, 7);
  CHECK(exact.ids == Wide{11, 12, 0, 21, 22, 23});
  CHECK(exact.labels == Wide{12, 0, 21, 22, 23, 1});
  CHECK(exact.weights == Weights{0, 0, 1, 1, 1, 1});

  const Sequence cut = classic_sequence(src, tgt, 0, 1, 2, 5);  // no eos_tgt is left
  CHECK(cut.labels == Wide{12, 0, 21, 22});
  CHECK(cut.weights == Weights{0, 0, 1, 1});

  const Sequence only_source = classic_sequence(src, tgt, 0, 1, 2, 2);
  CHECK(only_source.ids == Wide{11});
  CHECK(only_source.weights == Weights{0});
  CHECK(only_source.prefix == 1);

  const Sequence nothing = classic_sequence({}, {}, 0, 1, 2, 4);
  CHECK(nothing.ids == Wide{0, 1, 2});
  CHECK(nothing.labels == Wide{1, 2, 2});
  CHECK(nothing.weights == Weights{1, 0, 0});
  CHECK_THROWS_AS(classic_sequence(src, tgt, 0, 1, 2, 1), std::invalid_argument);
}

TEST_CASE("a batch is its sequences, row after row", "[text]") {
  const std::vector<Example> all = examples(4);
  const Order picks = {2, 0};
  const Batch fixed = make_batch(all, picks, {}, 8);
  CHECK(fixed.rows == 2);
  CHECK(fixed.length == 7);
  CHECK(fixed.ids == Wide{12, 12, 12, 0, 102, 202, 1, 10, 0, 100, 200, 1, 2, 2});
  CHECK(fixed.prefix == Wide{4, 2});
  const Batch fitted = make_batch(all, picks, {});
  CHECK(fitted.length == sequence_columns(all[2]));
  CHECK(fitted.length == 6);
  CHECK(fitted.labels == Wide{12, 12, 0, 102, 202, 1, 0, 100, 200, 1, 2, 2});
  CHECK(fitted.weights == Weights{0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0});
  CHECK(make_batch(all, picks, {}, 0, 8).length == 8);
  CHECK(make_batch(all, {}, {}).ids.empty());
  CHECK_THROWS_AS(make_batch(all, Order{4}, {}), std::invalid_argument);
  CHECK_THROWS_AS(make_batch(all, picks, {}, 1), std::invalid_argument);
  CHECK_THROWS_AS(make_batch(all, picks, {}, -4), std::invalid_argument);
  CHECK_THROWS_AS(make_batch(all, picks, {}, 0, 0), std::invalid_argument);
}

TEST_CASE("a batch of pairs keeps source and target apart", "[text]") {
  const std::vector<Example> all = examples(3);
  const PairBatch batch = make_pair_batch(all, Order{0, 2}, {});
  CHECK(batch.rows == 2);
  CHECK(batch.src_columns == 4);
  CHECK(batch.tgt_columns == 3);
  CHECK(batch.src == Wide{10, 0, 2, 2, 12, 12, 12, 0});
  CHECK(batch.src_length == Wide{2, 4});
  CHECK(batch.tgt_in == Wide{0, 100, 200, 0, 102, 202});
  CHECK(batch.labels == Wide{100, 200, 1, 102, 202, 1});
  CHECK(batch.weights == Weights{1, 1, 1, 1, 1, 1});
  const PairBatch padded = make_pair_batch(all, Order{0}, {}, 4);
  CHECK(padded.src == Wide{10, 0, 2, 2});
  CHECK(padded.labels == Wide{100, 200, 1, 2});
  CHECK(padded.weights == Weights{1, 1, 1, 0});
  CHECK(pair_columns(all[2]) == 4);
  CHECK_THROWS_AS(make_pair_batch(all, Order{9}, {}), std::invalid_argument);
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
  CHECK(fixed_batches(order, 2, true) == std::vector<Order>{{5, 3}, {1, 2}});
  CHECK(fixed_batches({}, 2).empty());
  CHECK_THROWS_AS(fixed_batches(order, 0), std::invalid_argument);
}

TEST_CASE("bucketed batches keep to the budget and lose nothing", "[text]") {
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 3000; ++i) lengths.push_back(1 + (i * 7919) % 60);
  lengths.push_back(5000);  // longer than the budget
  lengths.push_back(0);
  const Order order = epoch_order(lengths.size(), 1, 2);
  for (const BucketOptions& options : {BucketOptions{512}, BucketOptions{512, 16}, BucketOptions{512, 0, 8, 8}}) {
    const auto batches = bucketed_batches(order, lengths, options, 1, 2);
    CHECK(batches == bucketed_batches(order, lengths, options, 1, 2));
    CHECK(batches != bucketed_batches(order, lengths, options, 1, 3));
    Order seen;
    std::int64_t cells = 0, tokens = 0;
    for (const Order& batch : batches) {
      std::int64_t longest = 0;
      for (const std::size_t i : batch) {
        longest = std::max(longest, lengths[i]);
        tokens += lengths[i];
        seen.push_back(i);
      }
      longest = (longest + options.multiple - 1) / options.multiple * options.multiple;
      cells += longest * static_cast<std::int64_t>(batch.size());
      CHECK((batch.size() == 1 || longest * static_cast<std::int64_t>(batch.size()) <= 512));
      CHECK((options.max_rows == 0 || batch.size() <= options.max_rows));
      if (options.row_multiple > 1) CHECK((batch.size() <= options.row_multiple || batch.size() % options.row_multiple == 0));
    }
    std::sort(seen.begin(), seen.end());
    Order all(lengths.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    CHECK(seen == all);
    CHECK(static_cast<double>(cells) < 1.2 * static_cast<double>(tokens));  // little padding
  }
  CHECK(bucketed_batches({}, lengths, {}, 1, 1).empty());
  CHECK_THROWS_AS(bucketed_batches(Order{3002}, lengths, {}, 1, 1), std::invalid_argument);
  CHECK_THROWS_AS(bucketed_batches(order, lengths, BucketOptions{0}, 1, 1), std::invalid_argument);
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
  const auto few = shaped_batches(order, lengths, {.token_budget = 640, .max_rows = 6, .multiple = 8}, 4, 0);
  for (const ShapedBatch& batch : few) CHECK(batch.shape.rows <= 6);
}

TEST_CASE("a batch of a given shape is filled up with rows of weight 0", "[text]") {
  const std::vector<Example> all = examples(3);
  const Batch batch = make_batch(all, Order{1}, {}, {.rows = 2, .columns = 6});
  CHECK(batch.rows == 2);
  CHECK(batch.length == 6);
  CHECK(batch.ids == Wide{11, 11, 0, 101, 201, 1, 2, 2, 2, 2, 2, 2});
  CHECK(batch.weights == Weights{0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0});
  CHECK(batch.prefix == Wide{3, 1});
  const PairBatch pairs = make_pair_batch(all, Order{2, 0}, {}, {.rows = 3, .columns = 3});
  CHECK(pairs.src == Wide{12, 12, 0, 10, 0, 2, 0, 2, 2});  // the first source is cut
  CHECK(pairs.src_length == Wide{3, 2, 1});
  CHECK(pairs.tgt_in == Wide{0, 102, 202, 0, 100, 200, 0, 2, 2});
  CHECK(pairs.labels == Wide{102, 202, 1, 100, 200, 1, 1, 2, 2});
  CHECK(pairs.weights == Weights{1, 1, 1, 1, 1, 1, 0, 0, 0});
  CHECK(make_batch(all, {}, {}, {.rows = 1, .columns = 2}).ids == Wide{2, 2});
  CHECK_THROWS_AS(make_batch(all, Order{0, 1}, {}, {.rows = 1, .columns = 4}), std::invalid_argument);
  CHECK_THROWS_AS(make_pair_batch(all, Order{0}, {}, {.rows = 1, .columns = 0}), std::invalid_argument);
  CHECK_THROWS_AS(make_pair_batch(all, Order{7}, {}, {.rows = 1, .columns = 2}), std::invalid_argument);
}
