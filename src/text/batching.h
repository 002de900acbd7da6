#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tern::text {

/// One sentence pair as ids, without end tokens.
struct Example {
  std::vector<std::int32_t> src;  ///< the sentence to translate
  std::vector<std::int32_t> tgt;  ///< its translation
};

/// Tokens that are no part of a sentence.
struct SequenceOptions {
  std::int32_t eos_src = 0;  ///< ends a source
  std::int32_t eos_tgt = 1;  ///< ends a target
  std::int32_t pad = 2;      ///< fills a row
};

/// One decoder-only sequence `<src> eos_src <tgt> eos_tgt pad...` of a fixed length, shifted into what a step needs:
/// all three have length - 1 entries.
struct Sequence {
  std::vector<std::int64_t> ids;     ///< input, without the last token
  std::vector<std::int64_t> labels;  ///< the token that follows each input
  std::vector<float> weights;        ///< 1 where the label belongs to `<tgt> eos_tgt`, else 0
  std::int64_t prefix = 0;           ///< inputs that belong to `<src> eos_src`: a prefix LM sees all of these at once
};

/// Truncates or pads to `length` tokens. Throws std::invalid_argument for length < 2. A source of `length` tokens or
/// more leaves no target: all weights are 0.
Sequence classic_sequence(std::span<const std::int32_t> src, std::span<const std::int32_t> tgt, std::int32_t eos_src, std::int32_t eos_tgt,
                          std::int32_t pad, std::int64_t length);

/// A batch for a decoder-only model, row-major (rows B, length T).
struct Batch {
  std::vector<std::int64_t> ids;     ///< (B, T): input, without the last token
  std::vector<std::int64_t> labels;  ///< (B, T): the token that follows each input
  std::vector<float> weights;        ///< (B, T): 1 where the label belongs to `<tgt> eos_tgt`
  std::vector<std::int64_t> prefix;  ///< (B), as in Sequence
  std::int64_t rows = 0;             ///< B
  std::int64_t length = 0;           ///< T
};

/// A batch for an encoder-decoder, row-major. The decoder reads `eos_src tgt...` (the end of the source starts the
/// target) and predicts `tgt... eos_tgt`.
struct PairBatch {
  std::vector<std::int64_t> src;         ///< (B, S): `<src> eos_src pad...`
  std::vector<std::int64_t> src_length;  ///< (B): tokens of src that are not pad
  std::vector<std::int64_t> tgt_in;      ///< (B, T): `eos_src <tgt> pad...`
  std::vector<std::int64_t> labels;      ///< (B, T): `<tgt> eos_tgt pad...`
  std::vector<float> weights;            ///< (B, T): 1 where the label is not pad
  std::int64_t rows = 0;                 ///< B
  std::int64_t src_columns = 0;          ///< S
  std::int64_t tgt_columns = 0;          ///< T
};

/// @{
/// Batches of the examples examples[picks[i]]. With length 0 the rows are as long as the longest needs, rounded up to a
/// multiple of `multiple`; otherwise each is cut or padded to `length` tokens, so that the batch has length - 1 columns.
/// Throw std::invalid_argument for a pick out of range, length 1 or below 0, or multiple < 1.
Batch make_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                 std::int64_t length = 0, std::int64_t multiple = 1);
PairBatch make_pair_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                          std::int64_t multiple = 1);
/// @}

/// Fixed sizes of a batch.
struct BatchShape {
  std::int64_t rows = 0;     ///< examples, and empty rows behind them
  std::int64_t columns = 0;  ///< tokens of a row; of the source and of the target each, where a batch has both
};
/// @{
/// The same with sizes that are given: rows past the picks are empty and of weight 0 (a prefix or source of one token, since attention
/// to nothing is undefined), and what is longer than the columns is cut. An end token keeps its place in a batch of pairs.
/// Throw std::invalid_argument for fewer rows than picks.
Batch make_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                 const BatchShape& shape);
PairBatch make_pair_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                          const BatchShape& shape);
/// @}

/// The order of an epoch: a permutation of 0..size-1, or its first `sample` entries when 0 < sample < size. A pure
/// function of its arguments, the same on every platform (SplitMix64, Steele et al. 2014, and Fisher-Yates).
std::vector<std::size_t> epoch_order(std::size_t size, std::uint64_t seed, std::uint64_t epoch, std::size_t sample = 0);

/// Cuts `order` into batches of `batch_size`; the last one may be smaller, or is dropped.
std::vector<std::vector<std::size_t>> fixed_batches(std::span<const std::size_t> order, std::size_t batch_size, bool drop_last = false);

/// Limits of a batch of examples of similar length.
struct BucketOptions {
  std::size_t token_budget = 8192;  ///< rows times the longest row, padding included
  std::size_t max_rows = 0;         ///< 0: no limit
  std::int64_t multiple = 1;        ///< lengths are rounded up to a multiple of this, as make_batch does
  std::size_t row_multiple = 1;     ///< rows are cut down to a multiple of this where there are enough
};

/// Cuts `order` into batches of examples of similar length that fit the budget, then shuffles the batches (a pure
/// function of the arguments). lengths[i] is the length in tokens of example i; an example longer than the budget is a
/// batch by itself. Every entry of `order` is in exactly one batch.
std::vector<std::vector<std::size_t>> bucketed_batches(std::span<const std::size_t> order, std::span<const std::int64_t> lengths,
                                                       const BucketOptions& options, std::uint64_t seed, std::uint64_t epoch);

/// Batches of few shapes, so that a step recorded for each (CapturedStep) is soon recorded for all: examples of one rounded length
/// form batches of the rows that the budget allows, and those that are left over join the next longer ones. There is one shape for each
/// length at most, and one batch at most that is not full, which is for make_batch to fill up. A length beyond the budget has one row.
struct ShapedBatch {
  std::vector<std::size_t> picks;  ///< numbers of the examples, at most shape.rows
  BatchShape shape;                ///< for make_batch
};
/// Such batches of an epoch, shuffled by a pure function of the arguments. Every entry of `order` is in exactly one.
std::vector<ShapedBatch> shaped_batches(std::span<const std::size_t> order, std::span<const std::int64_t> lengths,
                                        const BucketOptions& options, std::uint64_t seed, std::uint64_t epoch);

/// Columns that make_batch needs for an example: src + eos_src + tgt + eos_tgt, less one.
std::int64_t sequence_columns(const Example& example) noexcept;
/// Tokens that make_pair_batch needs for the longer side of an example, its end token included.
std::int64_t pair_columns(const Example& example) noexcept;

}  // namespace tern::text
