#pragma once
#include "nn/generate.h"

namespace tern::nn::detail {

/// Hypotheses on the device, one for each row.
struct Rows {
  Tensor tokens;                     ///< (R, T), i64
  Tensor counts;                     ///< (R), i64: number of valid tokens, eos included
  Tensor has_eos;                    ///< (R), bool: the last valid token is eos
  Tensor log_p;                      ///< (R), f32; in a beam search -inf: no hypothesis
  std::vector<std::size_t> origins;  ///< (R): row of `generate` that each belongs to
};

/// Copies the hypotheses to the host and adds each to the result of its row. Of a beam search, those with log_p = -inf are left out.
void collect(const Rows& rows, const GenerateOptions& options, std::vector<std::vector<Hypothesis>>& result);

/// Batch compaction: number of rows to continue with, of `rows` of which `active` are active. Fewer if a copy of the caches costs less than
/// the steps of finished rows; on a GPU, where each shape of a product is planned at its first use, half of `rows`, a quarter, and so on.
std::int64_t rows_to_keep(std::int64_t active, std::int64_t rows, Device device);

/// Indices of the true values of is_kept (R), bool, and of the others; some of the others are kept too if fewer than `least` are true.
struct Places {
  std::vector<std::int64_t> kept, dropped;
};
Places places_of(const Tensor& is_kept, std::int64_t least = 0);
Tensor indices(const std::vector<std::int64_t>& places, Device device);
std::vector<std::size_t> picked(const std::vector<std::size_t>& values, const std::vector<std::int64_t>& places);

/// Throws Error that names the first row whose logits are invalid, and the token: from is_number (R), logits (R k, V) and the rows'
/// origins.
[[noreturn]] void fail_without_number(const Tensor& is_number, const Tensor& logits, const std::vector<std::size_t>& origins,
                                      std::int64_t step);

/// Greedy decoding and sampling: one hypothesis at a time.
std::vector<std::vector<Hypothesis>> pick_tokens(Continuation& text, const GenerateOptions& options);
std::vector<std::vector<Hypothesis>> beam_search(Continuation& text, const GenerateOptions& options);

}  // namespace tern::nn::detail
