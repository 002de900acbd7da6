#include "ops/attention_softmax.h"

#include <fmt/format.h>

#include <limits>

#include "autodiff/node.h"
#include "ops/copy.h"
#include "ops/detail/attention_mask.h"
#include "ops/detail/autocast.h"
#include "ops/detail/softmax_gradient.h"
#include "ops/factory.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/view_of.h"

// The softmax of attention scores, with the masks that attention has: as a composition, and fused.
namespace tern {

void detail::check_mask(const char* op, const Shape& scores, DType dtype, Device device, const SoftmaxMask& mask) {
  if (!is_floating(dtype)) fail(op, fmt::format("expected floating scores but got {}", name(dtype)));
  const auto& [causal, padding, prefix] = mask;
  const int needed = padding.defined() || prefix.defined() ? 3 : 2;
  if (scores.size() < needed)
    fail(op, fmt::format("expected scores of at least {} dimensions, (B, ..., T, S), but got {}", needed, to_string(scores)));
  const auto check = [&](const char* what, const Tensor& x, const Shape& shape, bool dtype_fits, const char* dtypes) {
    if (!x.defined()) return;
    if (x.shape() != shape || !dtype_fits)
      fail(op, fmt::format("expected {} {} of {} for scores {} but got {} {}", what, to_string(shape), dtypes, to_string(scores),
                           name(x.dtype()), to_string(x.shape())));
    if (x.device() != device)
      fail(op, fmt::format("expected tensors on one device but got {} and {}", to_string(device), to_string(x.device())));
  };
  if (padding.defined())
    check("padding", padding, {scores[0], scores.back()}, padding.dtype() == DType::boolean || is_floating(padding.dtype()),
          "bool or floats");
  if (prefix.defined()) check("a prefix", prefix, {scores[0]}, prefix.dtype() == DType::i64, "i64");
  if (prefix.defined() && !causal) fail(op, "expected causal = true beside a prefix, which opens what causal closes");
}

namespace {

void check_mask(const char* op, const Tensor& scores, const SoftmaxMask& mask) {
  detail::check_mask(op, scores.shape(), scores.dtype(), scores.device(), mask);
}

/// x (B, ...) as (B, 1, .., 1, ...) with the scores' number of dimensions.
Tensor beside(const Tensor& x, const Tensor& scores) {
  Shape shape = {x.size(0)};
  for (int d = 1; d < scores.dims() - x.dims() + 1; ++d) shape.push_back(1);
  for (int d = 1; d < x.dims(); ++d) shape.push_back(x.size(d));
  return reshape(x, shape);
}

/// True where a row does not see a key, in a shape that broadcasts to the scores'; undefined if nothing is hidden.
Tensor hidden_keys(const Tensor& scores, const SoftmaxMask& mask) {
  const std::int64_t queries = scores.size(-2), keys = scores.size(-1);
  Tensor hidden;
  if (mask.causal) {
    Tensor last =
        reshape(arange(static_cast<double>(keys - queries), static_cast<double>(keys), 1, DType::i64, scores.device()), {queries, 1});
    if (mask.prefix.defined()) last = maximum(last, beside(reshape(mask.prefix, {mask.prefix.size(0), 1, 1}), scores) - 1);
    hidden = gt(arange(keys, DType::i64, scores.device()), last);
  }
  if (mask.padding.defined()) {
    const bool is_boolean = mask.padding.dtype() == DType::boolean;
    const Tensor padded = is_boolean ? mask.padding : le(cast(mask.padding, DType::f32), static_cast<double>(kernels::hidden_padding));
    const Tensor along = beside(unsqueeze(padded, 1), scores);
    hidden = hidden.defined() ? logical_or(hidden, along) : along;
  }
  return hidden;
}

}  // namespace

/// The padding is added to the scores.
static Tensor additive_padding(const Tensor& padding, DType scores) {
  if (!padding.defined()) return {};
  const DType dtype = scores == DType::f64 ? scores : DType::f32;
  if (padding.dtype() != DType::boolean) return contiguous(cast(padding.detach(), dtype));
  return masked_fill(zeros(padding.shape(), dtype, padding.device()), padding, -std::numeric_limits<double>::infinity());
}

detail::KernelMask::KernelMask(const SoftmaxMask& mask, DType scores)
    : padding(additive_padding(mask.padding, scores)),
      prefix(mask.prefix.defined() ? contiguous(mask.prefix) : Tensor()),
      causal(mask.causal) {}

kernels::SoftmaxMask detail::KernelMask::view() const { return {view_of(padding), view_of(prefix), causal}; }

Tensor attention_softmax(const Tensor& scores_, const SoftmaxMask& mask) {
  const Tensor scores = detail::autocast("attention_softmax", scores_);
  check_mask("attention_softmax", scores, mask);
  const Tensor hidden = hidden_keys(scores, mask);
  if (!hidden.defined()) return softmax(scores);
  const bool adds = mask.padding.defined() && mask.padding.dtype() != DType::boolean;
  const Tensor sum = adds ? scores + cast(beside(unsqueeze(mask.padding.detach(), 1), scores), scores.dtype()) : scores;
  // Twice: the first gives the hidden keys nothing, the second a row that sees none.
  const double lowest = scores.dtype() == DType::f16 ? -3e4 : -1e30;
  return masked_fill(softmax(masked_fill(sum, hidden, lowest)), hidden, 0);
}

Tensor fused_attention_softmax(const Tensor& scores_, const SoftmaxMask& mask) {
  const Tensor scores = detail::autocast("attention_softmax", scores_);
  check_mask("fused_attention_softmax", scores, mask);
  const Tensor source = contiguous(scores), y = empty_like(source);
  const detail::KernelMask masking(mask, scores.dtype());
  on(y.device(), [&](auto dev) { kernels::attention_softmax(dev, source.view(), masking.view(), y.view()); });
  return record("fused_attention_softmax", y, {source}, {y}, [](const Backward& call) -> Tensors {
    const Tensor p = call.saved(0);
    if (context().grad) return {detail::softmax_gradient(p, call.grad(), -1)};  // the scores themselves are not kept
    const Tensor g = contiguous(call.grad()), dx = empty_like(p);
    on(dx.device(), [&](auto dev) { kernels::attention_softmax_grad(dev, p.view(), g.view(), dx.view()); });
    return {dx};
  });
}

}  // namespace tern
