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
/// memory: rows of x are processed in chunks of `chunk_rows`, or of a size chosen for speed if it is 0 (Note [Chunks of logits]). In a
/// PlainKernels scope it is the two ops.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets,
                            const CrossEntropyOptions& options = {}, std::int64_t chunk_rows = 0);

/// (a - b)^2, as mean, sum or each element; a and b have one shape.
Tensor mse_loss(const Tensor& a, const Tensor& b, const LossOptions& options = {});

// Losses that are composed of other ops. a and b, or logits and targets, have one shape and floating dtypes; 16-bit ones are computed in
// float32; the result is the mean, the sum or all elements, by an option of every loss: `{.reduction = Reduction::sum}`. Gradients flow to
// both operands, except to indices.

/// -(t log p + (1 - t) log(1 - p)) for probabilities p and targets t. Arguments of the logarithms are clamped to at least 1e-38, so that p
/// of 0 and 1 give a finite loss; the gradient is 0 there.
Tensor binary_cross_entropy(const Tensor& probabilities, const Tensor& targets, const LossOptions& options = {});
/// binary_cross_entropy(sigmoid(logits), targets), accurate for logits of any size.
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& targets, const LossOptions& options = {});
/// Options of nll_loss().
struct NllLossOptions {
  std::int64_t ignore_index = -100;       ///< targets with this value are left out
  Reduction reduction = Reduction::mean;  ///< reduction of the tokens' losses
};
/// -log_probabilities[.., target] for log-probabilities (..., V) and targets (...), i64 or i32. Targets equal to `ignore_index` are left
/// out, also of the mean's count; the mean is NaN if all are, and its gradient 0. cross_entropy(logits, targets) is
/// nll_loss(log_softmax(logits), targets) in one op.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, const NllLossOptions& options = {});
/// Kullback-Leibler divergence by element, target (log target - input), for log-probabilities `input` and probabilities `target`; 0 where
/// the target is 0. As in PyTorch, the divergence itself is its sum over a row.
Tensor kl_div(const Tensor& input, const Tensor& target, const LossOptions& options = {});
/// |a - b|; the derivative is 0 where they are equal.
Tensor l1_loss(const Tensor& a, const Tensor& b, const LossOptions& options = {});
/// Options of huber_loss().
struct HuberLossOptions {
  double delta = 1;                       ///< above 0: where the loss becomes linear
  Reduction reduction = Reduction::mean;  ///< reduction of the elements' losses
};
/// (a - b)^2 / 2 where |a - b| <= delta, else delta (|a - b| - delta / 2). Throws Error unless delta > 0. Huber, 1964.
Tensor huber_loss(const Tensor& a, const Tensor& b, const HuberLossOptions& options = {});

}  // namespace tern
