#pragma once
#include "ops/attention_mask.h"

namespace tern {

/// Softmax of scores (B, ..., T, S) over the keys that each row sees; the probabilities of other keys are 0, and a row that sees no key is
/// 0, as is its gradient. A score of -inf hides its key, too; no finite score does. If a row sees NaN or +inf, its probabilities are NaN at
/// all keys that the mask shows. At least two dimensions, three with padding or a prefix. Throws Error if shapes, dtypes or devices do not
/// fit.
///
/// One kernel, by which the scores are read once, and no mask is written to memory, after Wang et al., "LightSeq2", 2021; on a GPU with a
/// window or key_lengths, and in a PlainKernels scope, composed of other ops.
Tensor attention_softmax(const Tensor& scores, const AttentionMask& mask = {});

}  // namespace tern
