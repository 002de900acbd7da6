#include "text/batching.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "text/random.h"

namespace tern::text {
namespace {

// A partial Fisher-Yates shuffle: the first `count` values become a random sample of all, in random order.
template <class T>
void shuffle(std::vector<T>& values, std::size_t count, Random random) {
  for (std::size_t i = 0; i < count && i + 1 < values.size(); ++i) {
    std::swap(values[i], values[i + random.below(values.size() - i)]);
  }
}

// No memory holds a wider batch.
constexpr std::int64_t max_columns = std::int64_t(1) << 40;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) noexcept { return (value + multiple - 1) / multiple * multiple; }

void check_batch(const char* function, std::span<const Example> examples, std::span<const std::size_t> picks, const BatchShape& shape) {
  for (const std::size_t pick : picks) {
    if (pick >= examples.size()) {
      throw std::invalid_argument(fmt::format("[{}] expected picks below {} but got {}", function, examples.size(), pick));
    }
  }
  if (shape.rows < static_cast<std::int64_t>(picks.size()) || shape.columns < 1 || shape.columns > max_columns) {
    throw std::invalid_argument(fmt::format("[{}] expected rows for {} picks and columns in [1, {}] but got ({}, {})", function,
                                            picks.size(), max_columns, shape.rows, shape.columns));
  }
}

std::int64_t ssize_of(std::span<const std::int32_t> ids) noexcept { return static_cast<std::int64_t>(ids.size()); }

}  // namespace

std::int64_t sequence_columns(const Example& example) noexcept { return ssize_of(example.src) + ssize_of(example.tgt) + 1; }

std::int64_t pair_columns(const Example& example) noexcept { return std::max(ssize_of(example.src), ssize_of(example.tgt)) + 1; }

Batch make_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                 const BatchShape& shape) {
  check_batch("make_batch", examples, picks, shape);
  const auto rows = static_cast<std::size_t>(shape.rows), columns = static_cast<std::size_t>(shape.columns);
  Batch batch;
  batch.ids.assign(rows * columns, tokens.pad);
  batch.labels.assign(rows * columns, tokens.pad);
  batch.weights.assign(rows * columns, 0.0f);
  batch.prefix.assign(rows, 1);
  for (std::size_t row = 0; row < picks.size(); ++row) {
    const Example& example = examples[picks[row]];
    std::vector<std::int64_t> sequence(example.src.begin(), example.src.end());
    sequence.push_back(tokens.eos_src);
    const std::size_t target_begin = sequence.size();
    sequence.insert(sequence.end(), example.tgt.begin(), example.tgt.end());
    sequence.push_back(tokens.eos_tgt);
    const std::size_t target_end = sequence.size(), first = row * columns;
    sequence.resize(columns + 1, tokens.pad);
    for (std::size_t i = 0; i < columns; ++i) {
      batch.ids[first + i] = sequence[i];
      batch.labels[first + i] = sequence[i + 1];
      batch.weights[first + i] = i + 1 >= target_begin && i + 1 < target_end ? 1.0f : 0.0f;
    }
    batch.prefix[row] = static_cast<std::int64_t>(std::min(target_begin, columns));
  }
  return batch;
}

PairBatch make_pair_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                          const BatchShape& shape) {
  check_batch("make_pair_batch", examples, picks, shape);
  const auto cells = static_cast<std::size_t>(shape.rows * shape.columns);
  PairBatch batch;
  batch.src.assign(cells, tokens.pad);
  batch.tgt_in.assign(cells, tokens.pad);
  batch.labels.assign(cells, tokens.pad);
  batch.weights.assign(cells, 0.0f);
  const Example none;
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows); ++row) {
    const bool is_empty = row >= picks.size();
    const Example& example = is_empty ? none : examples[picks[row]];
    const std::int64_t src_size = std::min(ssize_of(example.src), shape.columns - 1);
    const std::int64_t tgt_size = std::min(ssize_of(example.tgt), shape.columns - 1);
    const auto at = static_cast<std::ptrdiff_t>(row) * shape.columns;
    *std::copy_n(example.src.begin(), src_size, batch.src.begin() + at) = tokens.eos_src;
    batch.src_length.push_back(src_size + 1);
    batch.tgt_in[static_cast<std::size_t>(at)] = tokens.eos_src;
    std::copy_n(example.tgt.begin(), tgt_size, batch.tgt_in.begin() + at + 1);
    *std::copy_n(example.tgt.begin(), tgt_size, batch.labels.begin() + at) = tokens.eos_tgt;
    if (!is_empty) std::fill_n(batch.weights.begin() + at, tgt_size + 1, 1.0f);
  }
  return batch;
}

std::vector<std::size_t> epoch_order(std::size_t size, std::uint64_t seed, std::uint64_t epoch, std::size_t sample) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t count = sample > 0 ? std::min(sample, size) : size;
  shuffle(order, count, Random(seed, epoch, 1));
  order.resize(count);
  return order;
}

std::vector<std::vector<std::size_t>> fixed_batches(std::span<const std::size_t> order, std::size_t batch_size) {
  if (batch_size == 0) throw std::invalid_argument("[fixed_batches] expected batch_size >= 1 but got 0");
  std::vector<std::vector<std::size_t>> batches;
  for (std::size_t begin = 0; begin < order.size(); begin += batch_size) {
    const std::size_t rows = std::min(batch_size, order.size() - begin);
    const auto part = order.subspan(begin, rows);
    batches.emplace_back(part.begin(), part.end());
  }
  return batches;
}

std::vector<ShapedBatch> shaped_batches(std::span<const std::size_t> order, std::span<const std::int64_t> lengths,
                                        const BucketOptions& options, std::uint64_t seed, std::uint64_t epoch) {
  if (options.multiple < 1 || options.multiple > max_columns || options.row_multiple < 1 || options.token_budget < 1) {
    throw std::invalid_argument(
        fmt::format("[shaped_batches] expected token_budget, multiple and row_multiple >= 1, and no more columns than memory holds, but "
                    "got {}, {}, {}",
                    options.token_budget, options.multiple, options.row_multiple));
  }
  for (const std::size_t pick : order) {
    if (pick >= lengths.size() || lengths[pick] < 0) {
      throw std::invalid_argument(fmt::format("[shaped_batches] expected a length >= 0 for each of the order but got none for {}", pick));
    }
  }
  const auto columns_of = [&](std::size_t pick) { return round_up(std::max<std::int64_t>(lengths[pick], 1), options.multiple); };
  const auto rows_of = [&](std::int64_t columns) {
    const std::size_t rows = std::max<std::size_t>(options.token_budget / static_cast<std::size_t>(columns), 1);
    return rows > options.row_multiple ? rows - rows % options.row_multiple : rows;
  };
  // By ascending columns. Equal ones stay in the epoch's random order, so that each epoch makes other batches.
  std::vector<std::size_t> sorted(order.begin(), order.end());
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::size_t a, std::size_t b) { return columns_of(a) < columns_of(b); });
  std::vector<ShapedBatch> batches;
  std::vector<std::size_t> waiting;  // too few for a batch of their own length: they join the examples of the next one
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t columns = columns_of(sorted[i]);
    const std::size_t rows = rows_of(columns);
    waiting.push_back(sorted[i]);
    // Batches of longer rows have fewer of them, so that the waiting ones may fill several.
    const bool is_last = i + 1 == sorted.size();
    while (waiting.size() >= rows || (is_last && !waiting.empty())) {
      const auto end = waiting.begin() + static_cast<std::ptrdiff_t>(std::min(rows, waiting.size()));
      batches.push_back({{waiting.begin(), end}, {static_cast<std::int64_t>(rows), columns}});
      waiting.erase(waiting.begin(), end);
    }
  }
  shuffle(batches, batches.size(), Random(seed, epoch, 2));
  return batches;
}

}  // namespace tern::text
