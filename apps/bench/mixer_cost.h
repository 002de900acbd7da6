#pragma once
#include "bench/roofline.h"
#include "nn/mixer.h"

namespace tern::bench {

/// Cost of a token mixer as a transformer layer's, with rotary positions and the default window.
struct MixerCost {
  double flops = 0;        ///< of its forward pass: products, convolutions, attention and recurrences; no pointwise operations
  double state_bytes = 0;  ///< that decoding needs of a text: keys and values, of a window its tokens', or states
};
/// Counts a mixer. States of recurrences are f32, all else has bytes_per_element. Throws Error for a size below 1, heads that do not divide
/// the width, and MixerKind::own.
MixerCost count_mixer(nn::MixerKind kind, const TransformerSize& size);

}  // namespace tern::bench
