#pragma once
#include "tensor/tensor.h"

namespace tern {

/// How a loss of each element becomes the result: as it is, as the mean or as the sum.
enum class Reduction { none, mean, sum };

/// Options of cross_entropy().
struct CrossEntropyOptions {
  Tensor token_weights;                   ///< (...), like the targets: a factor for each token's loss; undefined: all 1
  std::int64_t ignore_index = -100;       ///< targets with this value count for nothing
  double label_smoothing = 0;             ///< share of the target spread evenly over all classes, Szegedy et al. 2016
  Reduction reduction = Reduction::mean;  ///< of the tokens' losses
};

/// -log softmax(logits)[target] for logits (..., V) and i64 targets (...). The mean divides by the sum of the weights of
/// the tokens that are not ignored; without any it is NaN. Losses are f32 for 16-bit logits.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

/// cross_entropy(linear(x, weight, bias), targets, options) for x (..., D), weight (V, D) and bias (V) or none, without ever holding all
/// logits: rows of x go through in chunks, of `chunk_rows` or, for 0, of as many as are fast (Note [Chunks of logits]).
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets,
                            const CrossEntropyOptions& options = {}, std::int64_t chunk_rows = 0);

/// Mean (or sum, or all) of (a - b)^2; a and b have one shape.
Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);

}  // namespace tern
