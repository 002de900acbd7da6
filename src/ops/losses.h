#pragma once
#include "ops/loss.h"

namespace tern {

/// @file
/// Losses that are composed of other ops. a and b, or logits and targets, have one shape and floating dtypes, 16-bit ones are computed in
/// float32, and the result is the mean, the sum or all of them. Gradients flow to both, but to no index.

/// -(t log p + (1 - t) log(1 - p)) of a probability p; each logarithm is at least that of 1e-38, so that p of 0 and 1 give a finite loss,
/// and no gradient where it is.
Tensor binary_cross_entropy(const Tensor& probabilities, const Tensor& targets, Reduction reduction = Reduction::mean);
/// binary_cross_entropy(sigmoid(logits), targets) for logits of any size.
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& targets, Reduction reduction = Reduction::mean);
/// -log_probabilities[.., target] for log-probabilities (..., V) and i64 targets (...), those with the value `ignore_index` left out, of
/// the mean's count too; without any other it is NaN. cross_entropy(logits, targets) is nll_loss(log_softmax(logits), targets) in one op.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, Reduction reduction = Reduction::mean,
                std::int64_t ignore_index = -100);
/// target (log target - input), 0 where the target is 0, for log-probabilities `input` and probabilities `target`: the Kullback-Leibler
/// divergence of the two, by element, as in PyTorch. Its sum over a row is the divergence.
Tensor kl_div(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
/// |a - b|; the derivative where they are equal is 0.
Tensor l1_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);
/// (a - b)^2 / 2 where |a - b| <= delta, else delta (|a - b| - delta / 2). Throws Error unless delta > 0. Huber, 1964.
Tensor huber_loss(const Tensor& a, const Tensor& b, double delta = 1, Reduction reduction = Reduction::mean);

}  // namespace tern
