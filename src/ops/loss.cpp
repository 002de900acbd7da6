#include "ops/loss.h"

#include <fmt/format.h>

#include "autodiff/node.h"
#include "ops/copy.h"
#include "ops/detail/autocast.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/kernels/loss.h"
#include "ops/kernels/reduce.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

/// The dtype in which losses of such logits are kept.
DType loss_dtype(DType dtype) { return dtype == DType::f64 ? dtype : DType::f32; }

/// The derivative of token_losses with respect to the logits, in ops, for a higher order.
Tensor composed_gradient(const Tensor& x, const Tensor& targets, const Tensor& weights, const Tensor& g, double smoothing,
                         std::int64_t ignore_index) {
  const std::int64_t classes = x.size(1);
  const Tensor spread = one_hot(targets, classes, x.dtype()) * (1 - smoothing) + smoothing / static_cast<double>(classes);
  Tensor scale = where(eq(targets, static_cast<double>(ignore_index)), 0.0, g);
  if (weights.defined()) scale = scale * weights;
  return cast(unsqueeze(scale, 1), x.dtype()) * (exp(x - logsumexp(x, {1}, true)) - spread);
}

/// The loss of each row of logits x (N, V).
Tensor token_losses(const Tensor& x, const Tensor& targets, const Tensor& weights, double smoothing, std::int64_t ignore_index) {
  const DType dtype = loss_dtype(x.dtype());
  Tensor losses = empty({x.size(0)}, dtype, x.device()), lse;
  const View no_weights{};
  {
    const NoGrad unrecorded;
    lse = logsumexp(cast(x, dtype), {1});  // a rounding of it to 16 bits would be an error of the loss
  }
  on(x.device(), [&](auto dev) {
    kernels::cross_entropy(dev, x.view(), lse.view(), targets.view(), weights.defined() ? weights.view() : no_weights,
                           losses.view(), smoothing, ignore_index);
  });
  return record("cross_entropy", losses, {x}, {x, lse, targets, weights}, [=](const Backward& call) -> Tensors {
    const Tensor logits = call.saved(0), w = call.saved(3), &g = call.grad();
    if (context().grad) return {composed_gradient(logits, call.saved(2), w, g, smoothing, ignore_index)};
    Tensor dx = empty(logits.shape(), logits.dtype(), logits.device());
    on(dx.device(), [&](auto dev) {
      kernels::cross_entropy_grad(dev, logits.view(), call.saved(1).view(), call.saved(2).view(), w.defined() ? w.view() : no_weights,
                                  g.view(), dx.view(), smoothing, ignore_index);
    });
    return {dx};
  });
}

}  // namespace

Tensor cross_entropy(const Tensor& logits_, const Tensor& targets, const CrossEntropyOptions& options) {
  const Tensor logits = detail::autocast("cross_entropy", logits_);
  const auto& [token_weights, ignore_index, smoothing, reduction] = options;
  if (!is_floating(logits.dtype()) || targets.dtype() != DType::i64)
    fail("cross_entropy", fmt::format("expected floating logits and i64 targets but got {} and {}", name(logits.dtype()), name(targets.dtype())));
  Shape expected = logits.shape();
  if (!expected.empty()) expected.pop_back();
  if (logits.dims() == 0 || targets.shape() != expected || (token_weights.defined() && token_weights.shape() != expected))
    fail("cross_entropy", fmt::format("expected logits (..., V), targets (...) and weights (...) but got {}, {} and {}", to_string(logits.shape()),
                                      to_string(targets.shape()), token_weights.defined() ? to_string(token_weights.shape()) : "none"));
  if (targets.device() != logits.device() || (token_weights.defined() && token_weights.device() != logits.device()))
    fail("cross_entropy", "expected logits, targets and weights on one device");
  if (!(smoothing >= 0 && smoothing <= 1)) fail("cross_entropy", fmt::format("expected label smoothing in [0, 1] but got {}", smoothing));

  const std::int64_t rows = targets.numel();
  const DType dtype = loss_dtype(logits.dtype());
  Tensor x = reshape(logits, {rows, logits.size(-1)});
  if (x.strides()[1] != 1) x = contiguous(x);
  const Tensor flat_targets = contiguous(reshape(targets, {rows}));
  Tensor weights;
  if (token_weights.defined()) weights = contiguous(reshape(cast(token_weights.detach(), dtype), {rows}));
  const Tensor losses = token_losses(x, flat_targets, weights, smoothing, ignore_index);
  if (reduction == Reduction::none) return reshape(losses, targets.shape());
  if (reduction == Reduction::sum) return sum(losses);
  const Tensor counted = cast(ne(flat_targets, static_cast<double>(ignore_index)), dtype);
  return sum(losses) / sum(weights.defined() ? counted * weights : counted);
}

Tensor mse_loss(const Tensor& a_, const Tensor& b_, Reduction reduction) {
  const Tensor a = detail::autocast("mse_loss", a_), b = detail::autocast("mse_loss", b_);
  if (a.shape() != b.shape())
    fail("mse_loss", fmt::format("expected operands of one shape but got {} and {}", to_string(a.shape()), to_string(b.shape())));
  if (!is_floating(promote(a.dtype(), b.dtype())))
    fail("mse_loss", fmt::format("expected a floating dtype but got {} and {}", name(a.dtype()), name(b.dtype())));
  if (a.device() != b.device())
    fail("mse_loss", fmt::format("expected operands on one device but got {} and {}", to_string(a.device()), to_string(b.device())));
  const Tensor squared = square(a - b);
  return reduction == Reduction::none ? squared : reduction == Reduction::sum ? sum(squared) : mean(squared);
}

}  // namespace tern
