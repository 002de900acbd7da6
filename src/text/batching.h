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

/// Ids of the special tokens of a sequence.
struct SequenceOptions {
  std::int32_t eos_src = 0;  ///< end of a source
  std::int32_t eos_tgt = 1;  ///< end of a target
  std::int32_t pad = 2;      ///< padding
};

/// Sizes of a batch.
struct BatchShape {
  std::int64_t rows = 0;     ///< B: rows of examples, followed by empty rows
  std::int64_t columns = 0;  ///< tokens of a row: T, or S and T of a PairBatch
};

/// A batch for a decoder-only model, row-major, of sequences `<src> eos_src <tgt> eos_tgt pad...` as inputs and labels.
struct Batch {
  std::vector<std::int64_t> ids;     ///< (B, T): the tokens of each sequence but the last
  std::vector<std::int64_t> labels;  ///< (B, T): the token that follows each input
  std::vector<float> weights;        ///< (B, T): 1 where the label belongs to `<tgt> eos_tgt`, else 0
  std::vector<std::int64_t> prefix;  ///< (B): inputs that belong to `<src> eos_src`: a prefix LM sees all of these at once
};

/// A batch for an encoder-decoder, row-major. The decoder reads `eos_src tgt...` (the end of the source starts the
/// target) and predicts `tgt... eos_tgt`.
struct PairBatch {
  std::vector<std::int64_t> src;         ///< (B, S): `<src> eos_src pad...`
  std::vector<std::int64_t> src_length;  ///< (B): tokens of src that are not pad
  std::vector<std::int64_t> tgt_in;      ///< (B, T): `eos_src <tgt> pad...`
  std::vector<std::int64_t> labels;      ///< (B, T): `<tgt> eos_tgt pad...`
  std::vector<float> weights;            ///< (B, T): 1 where the label is not pad
};

/// @{
/// Makes a batch whose row i is examples[picks[i]]. Rows past the picks are empty and of weight 0; their prefix or source has one token,
/// since attention to no key is undefined. Longer rows are cut: a sequence at its end, so that a long source leaves no target, a source and
/// a target of a PairBatch before the end token. Throw std::invalid_argument for a pick out of range and for fewer rows than picks.
Batch make_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                 const BatchShape& shape);
PairBatch make_pair_batch(std::span<const Example> examples, std::span<const std::size_t> picks, const SequenceOptions& tokens,
                          const BatchShape& shape);
/// @}

/// The order of the examples in an epoch: a permutation of 0..size-1, or its first `sample` entries if 0 < sample < size. A pure function
/// of its arguments, the same on every platform (a Fisher-Yates shuffle by SplitMix64, Steele et al. 2014).
std::vector<std::size_t> epoch_order(std::size_t size, std::uint64_t seed, std::uint64_t epoch, std::size_t sample = 0);

/// Cuts `order` into batches of `batch_size`; the last one may be smaller.
std::vector<std::vector<std::size_t>> fixed_batches(std::span<const std::size_t> order, std::size_t batch_size);

/// Limits of a batch of examples of similar length.
struct BucketOptions {
  std::size_t token_budget = 8192;  ///< rows times the longest row, padding included
  std::int64_t multiple = 1;        ///< lengths are rounded up to a multiple of this
  std::size_t row_multiple = 1;     ///< the rows of a batch are rounded down to a multiple of this if they are at least as many
};

/// A batch of one of few shapes, as a step that is captured for each shape (CapturedStep) needs them.
struct ShapedBatch {
  std::vector<std::size_t> picks;  ///< indices of the examples, at most shape.rows
  BatchShape shape;                ///< for make_batch
};
/// Cuts `order` into batches of one shape for each rounded length: the rows are those that the budget allows, at least 1. The examples of
/// a length that do not fill a batch join those of the next length, so that only the last batch has fewer picks than rows, which
/// make_batch fills with empty ones. The batches are then shuffled, by a pure function of the arguments. lengths[i] is the length in tokens
/// of example i; one longer than the budget is a batch by itself. Every entry of `order` is in exactly one batch.
std::vector<ShapedBatch> shaped_batches(std::span<const std::size_t> order, std::span<const std::int64_t> lengths,
                                        const BucketOptions& options, std::uint64_t seed, std::uint64_t epoch);

/// Columns that make_batch needs for an example: the tokens of src, eos_src, tgt and eos_tgt, less one.
std::int64_t sequence_columns(const Example& example) noexcept;
/// Columns that make_pair_batch needs for an example: the tokens of its longer side and the end token.
std::int64_t pair_columns(const Example& example) noexcept;

}  // namespace tern::text
