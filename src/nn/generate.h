#pragma once
#include <vector>

#include "nn/decoder_lm.h"

namespace tern::nn {

using TokenIds = std::vector<std::int64_t>;

struct GreedyOptions {
  std::int64_t eos = 1, pad = 2;
  std::int64_t max_length = 40;      ///< of prompt and continuation together
  std::size_t batch_size = 64;       ///< rows decoded together; does not change the result
  bool is_prefix_visible = false;    ///< a prefix LM: every token of the prompt sees the whole prompt
  std::int64_t reset_position = -1;  ///< of the first new token (see reset_position_ids); -1: the one after the prompt's
};

/// The most probable next token until `eos` or `max_length`, for each prompt: the new tokens without `eos`, in the
/// order of the prompts. Each token is read once, with a KvCache. Dropout is off whatever the model's mode. One wait per token for a single
/// flag; the vocabulary never leaves the device. Throws Error for an empty prompt, an id outside the vocabulary, or max_length beyond the
/// model's length, and for logits that are NaN.
std::vector<TokenIds> greedy(const DecoderLM& model, const std::vector<TokenIds>& prompts, const GreedyOptions& options = {});

}  // namespace tern::nn
