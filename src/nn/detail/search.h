#pragma once
#include "nn/generate.h"

namespace tern::nn::detail {

/// Hypotheses on the device, one a row.
struct Rows {
  Tensor tokens;                     ///< (R, T), i64
  Tensor counts;                     ///< (R), i64: how many of them count, eos included
  Tensor has_eos;                    ///< (R), bool: the last one that counts is eos
  Tensor log_p;                      ///< (R), f32; -inf: there is no hypothesis
  std::vector<std::size_t> origins;  ///< (R): the row of `generate` that each belongs to
};

/// Reads the hypotheses and adds each to its row's.
void collect(const Rows& rows, double length_penalty, std::vector<std::vector<Hypothesis>>& result);

/// Batch compaction: the number of rows that go on, of `rows` of which some are active. Fewer where a copy of the caches costs less than
/// the finished rows' steps; on a GPU, where each shape of a product is planned at its first use, half of `rows`, a quarter, and so on.
std::int64_t rows_to_keep(std::int64_t active, std::int64_t rows, Device device);

/// The indices of the values of is_kept (R), bool, that are true, and of the others; some of these are kept too where fewer than `least`
/// are.
struct Places {
  std::vector<std::int64_t> kept, dropped;
};
Places places_of(const Tensor& is_kept, std::int64_t least = 0);
Tensor indices(const std::vector<std::int64_t>& places, Device device);
std::vector<std::size_t> picked(const std::vector<std::size_t>& values, const std::vector<std::int64_t>& places);

/// Throws Error that names the first row that has no number to go on with, of is_number (R) and the rows' origins.
[[noreturn]] void fail_without_number(const Tensor& is_number, const std::vector<std::size_t>& origins, std::int64_t step);

/// Greedy decoding and sampling: one hypothesis at a time.
std::vector<std::vector<Hypothesis>> pick_tokens(Continuation& text, const GenerateOptions& options);
std::vector<std::vector<Hypothesis>> beam_search(Continuation& text, const GenerateOptions& options);

}  // namespace tern::nn::detail
