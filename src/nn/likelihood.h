#pragma once
#include <vector>

#include "nn/generate.h"

namespace tern::nn {

/// Tokens of which those from `first` on are scored, each given all before it.
struct ScoredTokens {
  TokenIds tokens;        ///< 2 or more
  std::size_t first = 1;  ///< 1 or more: nothing is before the first token
};

/// Log-probabilities of rows under a model, in nats: of each row the sum over its scored tokens. Rows are read in batches of at most
/// batch_size rows of similar lengths. Dropout is off in every mode of the model. Throws Error for a row of fewer than 2 tokens or more
/// than the model's length and one, an id outside the vocabulary, and a `first` outside [1, tokens].
std::vector<double> log_likelihoods(const DecoderLM& model, const std::vector<ScoredTokens>& rows, std::size_t batch_size = 16);

/// The log-probability of a long text's tokens from `first` on: each is scored once, in windows of the model's length, of which those after
/// the first begin with `overlap` tokens that are only read. Throws Error as the above does, and for an overlap that is not below the
/// length.
double log_likelihood(const DecoderLM& model, const TokenIds& tokens, std::size_t first = 1, std::size_t overlap = 0,
                      std::size_t batch_size = 16);

}  // namespace tern::nn
