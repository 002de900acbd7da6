#include "train/r_drop.h"

#include <fmt/format.h>

#include <limits>

#include "ops/factory.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::train {

Tensor r_drop_loss(const Tensor& logits, const Tensor& targets, double alpha, const CrossEntropyOptions& options) {
  if (!(alpha >= 0)) fail("r_drop_loss", fmt::format("expected alpha >= 0 but got {}", alpha));
  if (logits.dims() < 2 || logits.size(0) % 2 != 0)
    fail("r_drop_loss", fmt::format("expected logits (2 B, ..., V) but got {}", to_string(logits.shape())));
  if (options.reduction == Reduction::none) fail("r_drop_loss", "expected Reduction::mean or sum but got none");
  CrossEntropyOptions summed = options;
  summed.reduction = Reduction::sum;
  const Tensor loss = cross_entropy(logits, targets, summed);
  const DType dtype = loss.dtype();

  // KL(p || q) + KL(q || p) = sum (p - q) (log p - log q)
  const Tensor log_probabilities = log_softmax(cast(logits, dtype));
  const Tensor probabilities = exp(log_probabilities);
  const auto pass = [](const Tensor& x, std::int64_t number) { return slice(x, 0, number, x.size(0), 2); };
  const auto difference = [&](const Tensor& x) { return pass(x, 0) - pass(x, 1); };
  const Tensor divergence = sum(difference(probabilities) * difference(log_probabilities), {-1});
  Tensor weights = cast(ne(targets, static_cast<double>(options.ignore_index)), dtype);
  if (options.token_weights.defined()) weights = weights * cast(options.token_weights, dtype);
  const Tensor both = loss + sum(pass(weights, 0) * divergence) * (alpha / 2);
  if (options.reduction == Reduction::sum) return both;
  const Tensor total = sum(weights), is_empty = eq(total, 0);  // a mean over nothing is NaN with a gradient of 0, as cross_entropy's
  return where(is_empty, std::numeric_limits<double>::quiet_NaN(), both / where(is_empty, 1.0, total));
}

}  // namespace tern::train
