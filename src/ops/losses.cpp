#include <fmt/format.h>

#include <cmath>

#include "ops/copy.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

static Tensor reduced(const Tensor& losses, Reduction reduction, DType dtype) {
  return cast(reduction == Reduction::none ? losses : reduction == Reduction::sum ? sum(losses) : mean(losses), dtype);
}

static DType check_pair(const char* op, const Tensor& a, const Tensor& b) {
  check_one_device(op, {&a, &b});
  if (a.shape() != b.shape())
    fail(op, fmt::format("expected operands of one shape but got {} and {}", to_string(a.shape()), to_string(b.shape())));
  if (!is_floating(a.dtype()) || !is_floating(b.dtype()))
    fail(op, fmt::format("expected floating dtypes but got {} and {}", name(a.dtype()), name(b.dtype())));
  return promote(a.dtype(), b.dtype());
}

Tensor binary_cross_entropy(const Tensor& probabilities, const Tensor& targets, const LossOptions& options) {
  const DType dtype = check_pair("binary_cross_entropy", probabilities, targets);
  const Tensor p = detail::widened(probabilities), t = detail::widened(targets);
  const auto bounded_log = [](const Tensor& x) { return log(clamp(x, 1e-38, INFINITY)); };
  return reduced(neg(t * bounded_log(p) + (1 - t) * bounded_log(1 - p)), options.reduction, dtype);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& targets, const LossOptions& options) {
  const DType dtype = check_pair("binary_cross_entropy_with_logits", logits, targets);
  const Tensor x = detail::widened(logits), t = detail::widened(targets);
  return reduced(t * softplus(neg(x)) + (1 - t) * softplus(x), options.reduction, dtype);
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets_, const NllLossOptions& options) {
  check_one_device("nll_loss", {&log_probabilities, &targets_});
  const Tensor targets = detail::as_indices("nll_loss", targets_);
  const Tensor x = detail::widened(log_probabilities);
  Shape rows = x.shape();
  if (!rows.empty()) rows.pop_back();
  if (x.dims() < 1 || targets.shape() != rows || !is_floating(x.dtype()))
    fail("nll_loss", fmt::format("expected floating log-probabilities (..., V) and targets (...) but got {} {} and {}",
                                 name(log_probabilities.dtype()), to_string(x.shape()), to_string(targets.shape())));
  const Tensor is_ignored = eq(targets, static_cast<double>(options.ignore_index));
  const Tensor picked = squeeze(gather(x, -1, unsqueeze(where(is_ignored, 0.0, targets), -1)), -1);
  // where, not a factor of 0: an ignored row may hold an infinity.
  const Tensor losses = where(is_ignored, 0.0, neg(picked));
  if (options.reduction != Reduction::mean) return reduced(losses, options.reduction, log_probabilities.dtype());
  return cast(sum(losses) / sum(cast(logical_not(is_ignored), x.dtype())), log_probabilities.dtype());
}

Tensor kl_div(const Tensor& input, const Tensor& target, const LossOptions& options) {
  const DType dtype = check_pair("kl_div", input, target);
  const Tensor x = detail::widened(input), t = detail::widened(target);
  const Tensor is_zero = eq(t, 0), difference = log(where(is_zero, 1.0, t)) - where(is_zero, 0.0, x);
  return reduced(t * difference, options.reduction, dtype);
}

Tensor l1_loss(const Tensor& a, const Tensor& b, const LossOptions& options) {
  const DType dtype = check_pair("l1_loss", a, b);
  return reduced(abs(detail::widened(a) - detail::widened(b)), options.reduction, dtype);
}

Tensor huber_loss(const Tensor& a, const Tensor& b, const HuberLossOptions& options) {
  const DType dtype = check_pair("huber_loss", a, b);
  const double delta = options.delta;
  if (!(delta > 0)) fail("huber_loss", fmt::format("expected delta > 0 but got {}", delta));
  const Tensor difference = detail::widened(a) - detail::widened(b);
  // c (d - c / 2) with c = d clamped to +-delta: quadratic within, linear outside, and no large number is squared.
  const Tensor limited = clamp(difference, -delta, delta);
  return reduced(limited * (difference - limited * 0.5), options.reduction, dtype);
}

}  // namespace tern
