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

void check_picks(const char* function, std::span<const Example> examples, std::span<const std::size_t> picks, std::int64_t multiple) {
  for (const std::size_t pick : picks) {
    if (pick >= examples.size()) {
      throw std::invalid_argument(fmt::format("[{}] expected picks below {} but got {}", function, examples.size(), pick));
    }
  }
  if (multiple < 1 || multiple > max_columns)
    throw std::invalid_argument(fmt::format("[{}] expected multiple in [1, {}] but got {}", function, max_columns, multiple));
}

std::int64_t ssize_of(std::span<const std::int32_t> ids) noexcept { return static_cast<std::int64_t>(ids.size()); }

}  // namespace

Sequence classic_sequence(std::span<const std::int32_t> src, std::span<const std::int32_t> tgt, std::int32_t eos_src, std::int32_t eos_tgt,
                          std::int32_t pad, std::int64_t length) {
  if (length < 2) throw std::invalid_argument(fmt::format("[classic_sequence] expected length >= 2 but got {}", length));
  const auto size = static_cast<std::size_t>(length);
  std::vector<std::int64_t> tokens(src.begin(), src.end());
  tokens.push_back(eos_src);
  const std::size_t target_begin = tokens.size();
  tokens.insert(tokens.end(), tgt.begin(), tgt.end());
  tokens.push_back(eos_tgt);
  const std::size_t target_end = tokens.size();
  tokens.resize(size, pad);
  Sequence out;
  out.ids.assign(tokens.begin(), tokens.end() - 1);
  out.labels.assign(tokens.begin() + 1, tokens.end());
  out.weights.resize(size - 1);
  for (std::size_t i = 0; i + 1 < size; ++i) out.weights[i] = i + 1 >= target_begin && i + 1 < target_end ? 1.0f : 0.0f;
  out.prefix = static_cast<std::int64_t>(std::min(target_begin, size - 1));
  return out;
}

std::int64_t sequence_columns(const Example& example) noexcept { return ssize_of(example.src) + ssize_of(example.tgt) + 1; }

std::int64_t pair_columns(const Example& example) noexcept { return std::max(ssize_of(example.src), ssize_of(example.tgt)) + 1; }

static void check_shape(const char* function, std::span<const std::size_t> picks, const BatchShape& shape) {
  if (shape.rows < static_cast<std::int64_t>(picks.size()) || shape.columns < 1 || shape.columns > max_columns) {
    throw std::invalid_argument(fmt::format("[{}] expected rows for {} picks and columns in [1, {}] but got ({}, {})", function,
                                            picks.size(), max_columns, shape.rows, shape.columns));
  }
}

Batch make_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                 const BatchShape& shape) {
  check_shape("make_batch", picks, shape);
  Batch batch = make_batch(examples, picks, tokens, shape.columns + 1);
  const auto cells = static_cast<std::size_t>(shape.rows * shape.columns);
  batch.rows = shape.rows;
  batch.length = shape.columns;
  batch.ids.resize(cells, tokens.pad);
  batch.labels.resize(cells, tokens.pad);
  batch.weights.resize(cells, 0.0f);
  batch.prefix.resize(static_cast<std::size_t>(shape.rows), 1);
  return batch;
}

Batch make_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens, std::int64_t length,
                 std::int64_t multiple) {
  check_picks("make_batch", examples, picks, multiple);
  if (length < 0 || length == 1) {
    throw std::invalid_argument(fmt::format("[make_batch] expected length 0 or >= 2 but got {}", length));
  }
  Batch batch;
  batch.rows = static_cast<std::int64_t>(picks.size());
  batch.length = length > 0 ? length - 1 : 0;
  if (length == 0) {
    for (const std::size_t pick : picks) batch.length = std::max(batch.length, sequence_columns(examples[pick]));
    batch.length = round_up(batch.length, multiple);
  }
  for (const std::size_t pick : picks) {
    const Example& example = examples[pick];
    const Sequence row = classic_sequence(example.src, example.tgt, tokens.eos_src, tokens.eos_tgt, tokens.pad, batch.length + 1);
    batch.ids.insert(batch.ids.end(), row.ids.begin(), row.ids.end());
    batch.labels.insert(batch.labels.end(), row.labels.begin(), row.labels.end());
    batch.weights.insert(batch.weights.end(), row.weights.begin(), row.weights.end());
    batch.prefix.push_back(row.prefix);
  }
  return batch;
}

namespace {

// Fills a batch whose sizes are set with rows of examples, then empty ones. A source or target that is too long is cut before its end
// token.
void fill_pairs(PairBatch& batch, std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens) {
  const auto cells = [&](std::int64_t columns) { return static_cast<std::size_t>(batch.rows * columns); };
  batch.src.assign(cells(batch.src_columns), tokens.pad);
  batch.tgt_in.assign(cells(batch.tgt_columns), tokens.pad);
  batch.labels.assign(cells(batch.tgt_columns), tokens.pad);
  batch.weights.assign(cells(batch.tgt_columns), 0.0f);
  const Example none;
  for (std::size_t row = 0; row < static_cast<std::size_t>(batch.rows); ++row) {
    const bool is_empty = row >= picks.size();
    const Example& example = is_empty ? none : examples[picks[row]];
    const std::int64_t src_size = std::min(ssize_of(example.src), batch.src_columns - 1);
    const std::int64_t tgt_size = std::min(ssize_of(example.tgt), batch.tgt_columns - 1);
    const auto src = batch.src.begin() + static_cast<std::ptrdiff_t>(row) * batch.src_columns;
    const auto at = static_cast<std::ptrdiff_t>(row) * batch.tgt_columns;
    *std::copy_n(example.src.begin(), src_size, src) = tokens.eos_src;
    batch.src_length.push_back(src_size + 1);
    batch.tgt_in[static_cast<std::size_t>(at)] = tokens.eos_src;
    std::copy_n(example.tgt.begin(), tgt_size, batch.tgt_in.begin() + at + 1);
    *std::copy_n(example.tgt.begin(), tgt_size, batch.labels.begin() + at) = tokens.eos_tgt;
    if (!is_empty) std::fill_n(batch.weights.begin() + at, tgt_size + 1, 1.0f);
  }
}

}  // namespace

PairBatch make_pair_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                          const BatchShape& shape) {
  check_picks("make_pair_batch", examples, picks, 1);
  check_shape("make_pair_batch", picks, shape);
  PairBatch batch;
  batch.rows = shape.rows;
  batch.src_columns = batch.tgt_columns = shape.columns;
  fill_pairs(batch, examples, picks, tokens);
  return batch;
}

PairBatch make_pair_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                          std::int64_t multiple) {
  check_picks("make_pair_batch", examples, picks, multiple);
  PairBatch batch;
  batch.rows = static_cast<std::int64_t>(picks.size());
  for (const std::size_t pick : picks) {
    batch.src_columns = std::max(batch.src_columns, ssize_of(examples[pick].src) + 1);
    batch.tgt_columns = std::max(batch.tgt_columns, ssize_of(examples[pick].tgt) + 1);
  }
  batch.src_columns = round_up(batch.src_columns, multiple);
  batch.tgt_columns = round_up(batch.tgt_columns, multiple);
  fill_pairs(batch, examples, picks, tokens);
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

std::vector<std::vector<std::size_t>> fixed_batches(std::span<const std::size_t> order, std::size_t batch_size, bool drop_last) {
  if (batch_size == 0) throw std::invalid_argument("[fixed_batches] expected batch_size >= 1 but got 0");
  std::vector<std::vector<std::size_t>> batches;
  for (std::size_t begin = 0; begin < order.size(); begin += batch_size) {
    const std::size_t rows = std::min(batch_size, order.size() - begin);
    if (drop_last && rows < batch_size) break;
    const auto part = order.subspan(begin, rows);
    batches.emplace_back(part.begin(), part.end());
  }
  return batches;
}

namespace {

void check_buckets(const char* function, std::span<const std::size_t> order, std::span<const std::int64_t> lengths,
                   const BucketOptions& options) {
  if (options.multiple < 1 || options.multiple > max_columns || options.row_multiple < 1 || options.token_budget < 1) {
    throw std::invalid_argument(
        fmt::format("[{}] expected token_budget, multiple and row_multiple >= 1, and no more columns "
                    "than memory holds, but got {}, {}, {}",
                    function, options.token_budget, options.multiple, options.row_multiple));
  }
  for (const std::size_t pick : order) {
    if (pick >= lengths.size() || lengths[pick] < 0) {
      throw std::invalid_argument(fmt::format("[{}] expected a length >= 0 for each of the order but got none for {}", function, pick));
    }
  }
}

// Columns of an example's row: its length, at least 1, rounded up.
std::int64_t row_columns(std::int64_t length, const BucketOptions& options) noexcept {
  return round_up(std::max<std::int64_t>(length, 1), options.multiple);
}

// Examples by ascending columns. Equal ones stay in the epoch's random order, so that each epoch makes other batches.
std::vector<std::size_t> sort_by_columns(std::span<const std::size_t> order, std::span<const std::int64_t> lengths,
                                         const BucketOptions& options) {
  std::vector<std::size_t> sorted(order.begin(), order.end());
  const auto columns = [&](std::size_t pick) { return row_columns(lengths[pick], options); };
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::size_t a, std::size_t b) { return columns(a) < columns(b); });
  return sorted;
}

}  // namespace

std::vector<std::vector<std::size_t>> bucketed_batches(std::span<const std::size_t> order, std::span<const std::int64_t> lengths,
                                                       const BucketOptions& options, std::uint64_t seed, std::uint64_t epoch) {
  check_buckets("bucketed_batches", order, lengths, options);
  const std::vector<std::size_t> sorted = sort_by_columns(order, lengths, options);
  std::vector<std::vector<std::size_t>> batches;
  for (std::size_t begin = 0; begin < sorted.size();) {
    std::size_t rows = 1;
    const auto fits = [&](std::size_t count) {
      return (options.max_rows == 0 || count <= options.max_rows) &&
             count <= options.token_budget / static_cast<std::size_t>(row_columns(lengths[sorted[begin + count - 1]], options));
    };
    while (begin + rows < sorted.size() && fits(rows + 1)) ++rows;
    if (rows > options.row_multiple) rows -= rows % options.row_multiple;
    batches.emplace_back(sorted.begin() + static_cast<std::ptrdiff_t>(begin), sorted.begin() + static_cast<std::ptrdiff_t>(begin + rows));
    begin += rows;
  }
  shuffle(batches, batches.size(), Random(seed, epoch, 2));
  return batches;
}

std::vector<ShapedBatch> shaped_batches(std::span<const std::size_t> order, std::span<const std::int64_t> lengths,
                                        const BucketOptions& options, std::uint64_t seed, std::uint64_t epoch) {
  check_buckets("shaped_batches", order, lengths, options);
  const auto rows_of = [&](std::int64_t columns) {
    std::size_t rows = std::max<std::size_t>(options.token_budget / static_cast<std::size_t>(columns), 1);
    if (options.max_rows > 0) rows = std::min(rows, options.max_rows);
    return rows > options.row_multiple ? rows - rows % options.row_multiple : rows;
  };
  const std::vector<std::size_t> sorted = sort_by_columns(order, lengths, options);
  std::vector<ShapedBatch> batches;
  std::vector<std::size_t> waiting;  // too few for a batch of their own length: they join the examples of the next one
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t columns = row_columns(lengths[sorted[i]], options);
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
