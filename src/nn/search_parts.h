#pragma once
#include "nn/generate.h"

// Parts that the searches share.
namespace tern::nn::parts {

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

/// Places as a tensor, for index_select.
Tensor indices(const std::vector<std::int64_t>& places, Device device);
/// The values at some places.
std::vector<std::size_t> picked(const std::vector<std::size_t>& values, const std::vector<std::int64_t>& places);

/// Throws Error that names the first row whose logits are invalid, and the token: from is_number (R), logits (R k, V) and the rows'
/// origins.
[[noreturn]] void fail_without_number(const Tensor& is_number, const Tensor& logits, const std::vector<std::size_t>& origins,
                                      std::int64_t step);

/// generate() of Search::beam.
std::vector<std::vector<Hypothesis>> beam_search(Continuation& text, const GenerateOptions& options);

}  // namespace tern::nn::parts
