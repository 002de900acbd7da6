#pragma once
#include "tensor/tensor.h"

namespace tern {

/// Reduction of a loss: all its elements, their mean or their sum.
enum class Reduction { none, mean, sum };

/// Options of a loss that has no others: mse_loss(a, b, {.reduction = Reduction::sum}).
struct LossOptions {
  Reduction reduction = Reduction::mean;  ///< reduction of the elements' losses
};

/// Options of cross_entropy().
struct CrossEntropyOptions {
  Tensor token_weights;                   ///< (...), like the targets: factor of each token's loss; undefined: all 1
  std::int64_t ignore_index = -100;       ///< targets with this value are left out
  double label_smoothing = 0;             ///< part of the target's probability that is spread over all classes, Szegedy et al. 2016
  Reduction reduction = Reduction::mean;  ///< reduction of the tokens' losses
};

/// -log softmax(logits)[target] for logits (..., V) and targets (...), i64 or i32. The mean divides by the sum of the weights of the tokens
/// that are not ignored. If that is 0, as where all are ignored, the mean is NaN and its gradient 0. Losses are f32 for 16-bit logits.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

/// cross_entropy(linear(x, weight, bias), targets, options) for x (..., D), weight (V, D) and bias (V) or none, without the whole logits in
/// memory: rows of x are processed in chunks of `chunk_rows`, or of a size chosen for speed if it is 0 (Note [Chunks of logits]).
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets,
                            const CrossEntropyOptions& options = {}, std::int64_t chunk_rows = 0);

/// (a - b)^2, as mean, sum or each element; a and b have one shape.
Tensor mse_loss(const Tensor& a, const Tensor& b, const LossOptions& options = {});

}  // namespace tern
