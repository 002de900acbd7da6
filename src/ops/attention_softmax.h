#pragma once
#include "ops/attention_mask.h"

namespace tern {

/// Softmax of scores (B, ..., T, S) over the keys that each row sees, 0 at the others; a row that sees none is 0, and so is its
/// gradient. At least two dimensions, three with padding or a prefix. Throws Error if shapes, dtypes or devices do not fit.
Tensor attention_softmax(const Tensor& scores, const AttentionMask& mask = {});
/// As attention_softmax; moreover a row that sees only scores of -inf is 0. One read of the scores, no mask in memory. Wang et al.,
/// "LightSeq2", 2021, has the idea.
Tensor fused_attention_softmax(const Tensor& scores, const AttentionMask& mask = {});

}  // namespace tern
