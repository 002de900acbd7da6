#pragma once
#include "ops/loss.h"

namespace tern::train {

/// R-Drop loss: a batch goes through the model twice, with different dropout, and the divergence between the two predictions of a token is
/// penalized. Liang et al., "R-Drop: Regularized Dropout for Neural Networks", 2021, equation 4, halved so that alpha = 0 gives the mean of
/// the cross entropy:
///
///     1/2 (-log p(y) - log q(y)) + alpha/4 (KL(p || q) + KL(q || p))
///
/// for each token, weighted by options.token_weights and reduced as in cross_entropy over the tokens of both passes: the mean divides by
/// the sum of their weights, the sum counts both. logits (2 B, ..., V) and targets (2 B, ...) hold the batch twice, row by row, as from
/// repeat(x, 2, 0): rows 2 b and 2 b + 1 are the two passes of row b, with the same weights. So the rows of a part of the batch are
/// adjacent, and draw the same random numbers as within the whole (BatchRows). The divergence is computed in f32 (f64 for f64). Throws
/// Error for an odd number of rows, Reduction::none, or alpha < 0.
Tensor r_drop_loss(const Tensor& logits, const Tensor& targets, double alpha, const CrossEntropyOptions& options = {});

}  // namespace tern::train
