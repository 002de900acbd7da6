#pragma once
#include <cstdint>

#include "nn/nn.h"
#include "tensor/random.h"

namespace tern::test {

inline constexpr std::int64_t small_vocab = 29;

/// A model of these options, two layers of width 24 and six heads, for texts of `length` tokens.
inline nn::DecoderLM small_decoder(nn::DecoderLMOptions options, std::int64_t length, Device device) {
  manual_seed(4);
  options.vocab = small_vocab, options.length = length, options.width = 24, options.layers = 2, options.heads = 6, options.ff = 16;
  nn::DecoderLM model(options);
  nn::to(model, device);
  model.eval();
  return model;
}

}  // namespace tern::test
