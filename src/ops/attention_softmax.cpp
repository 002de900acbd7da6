#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/attention.h"
#include "ops/detail/composed_attention.h"
#include "ops/factory.h"
#include "ops/normalize.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/tensor.h"

// Softmax of attention scores with attention masks: composed of other ops, and fused.
namespace tern {

void detail::check_mask(const char* op, const Shape& scores, DType dtype, Device device, const AttentionMask& mask) {
  if (!is_floating(dtype)) fail(op, fmt::format("expected floating scores but got {}", name(dtype)));
  const auto& [causal, padding, prefix, key_lengths, window] = mask;
  const int needed = padding.defined() || prefix.defined() || key_lengths.defined() ? 3 : 2;
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
  if (key_lengths.defined()) check("key_lengths", key_lengths, {scores[0]}, key_lengths.dtype() == DType::i64, "i64");
  if (prefix.defined() && !causal) fail(op, "expected causal = true with a prefix: a prefix shows keys that causal hides");
  if (window < 0 || (window > 0 && (!causal || prefix.defined())))
    fail(op, fmt::format("expected a window >= 0, with causal = true and without a prefix, but got window {}, causal {} and {} prefix",
                         window, causal, prefix.defined() ? "a" : "no"));
}

namespace {

void check_mask(const char* op, const Tensor& scores, const AttentionMask& mask) {
  detail::check_mask(op, scores.shape(), scores.dtype(), scores.device(), mask);
}

/// x (B, ...) as (B, 1, .., 1, ...) with the scores' number of dimensions.
Tensor aligned_with(const Tensor& x, const Tensor& scores) {
  Shape shape = {x.size(0)};
  for (int d = 1; d < scores.dims() - x.dims() + 1; ++d) shape.push_back(1);
  for (int d = 1; d < x.dims(); ++d) shape.push_back(x.size(d));
  return reshape(x, shape);
}
/// As aligned_with, for one number per batch row.
Tensor per_batch_row(const Tensor& x, const Tensor& scores) { return aligned_with(reshape(x, {x.size(0), 1, 1}), scores); }

/// Hidden keys: true where a row does not see a key, in a shape that broadcasts to the scores'; undefined if no key is hidden. `past` (B),
/// i64: query t has position t + past among the keys; undefined: S - T.
Tensor hidden_keys(const Tensor& scores, const AttentionMask& mask, const Tensor& past) {
  const std::int64_t queries = scores.size(-2), keys = scores.size(-1);
  const Tensor columns = arange(keys, DType::i64, scores.device());
  Tensor hidden;
  const auto hide = [&](const Tensor& more) { hidden = hidden.defined() ? logical_or(hidden, more) : more; };
  if (mask.causal) {
    const Tensor rows = reshape(arange(queries, DType::i64, scores.device()), {queries, 1});
    const Tensor own = past.defined() ? rows + per_batch_row(past, scores) : rows + static_cast<double>(keys - queries);
    hide(gt(columns, mask.prefix.defined() ? maximum(own, per_batch_row(mask.prefix, scores) - 1) : own));
    if (mask.window > 0) hide(le(columns, own - static_cast<double>(std::min(mask.window, std::int64_t(1) << 40))));
  }
  if (mask.key_lengths.defined()) hide(ge(columns, per_batch_row(mask.key_lengths, scores)));
  if (mask.padding.defined()) {
    const bool is_boolean = mask.padding.dtype() == DType::boolean;
    const Tensor padded = is_boolean ? mask.padding : le(cast(mask.padding, DType::f32), static_cast<double>(kernels::hidden_padding));
    hide(aligned_with(unsqueeze(padded, 1), scores));
  }
  return hidden;
}

/// The composed op, with `past` of hidden_keys.
Tensor masked_softmax(const Tensor& scores, const AttentionMask& mask, const Tensor& past) {
  const auto softmax_of = [](const Tensor& x) { return detail::softmax(x, x.dims() - 1, detail::Hidden::is_zero); };
  const Tensor hidden = hidden_keys(scores, mask, past);
  if (!hidden.defined()) return softmax_of(scores);
  const bool adds = mask.padding.defined() && mask.padding.dtype() != DType::boolean;
  const Tensor sum = adds ? scores + cast(aligned_with(unsqueeze(mask.padding.detach(), 1), scores), scores.dtype()) : scores;
  // -inf, below every score, hides a key. The second fill keeps NaN of a visible score from the hidden keys of its row.
  return masked_fill(softmax_of(masked_fill(sum, hidden, -std::numeric_limits<double>::infinity())), hidden, 0);
}

}  // namespace

/// Padding in the form that is added to the scores.
static Tensor additive_padding(const Tensor& padding, DType scores) {
  if (!padding.defined()) return {};
  const DType dtype = scores == DType::f64 ? scores : DType::f32;
  if (padding.dtype() != DType::boolean) return contiguous(cast(padding.detach(), dtype));
  return masked_fill(zeros(padding.shape(), dtype, padding.device()), padding, -std::numeric_limits<double>::infinity());
}

detail::KernelMask::KernelMask(const AttentionMask& mask, DType scores)
    : padding(additive_padding(mask.padding, scores)),
      prefix(contiguous_or_none(mask.prefix)),
      key_lengths(contiguous_or_none(mask.key_lengths)),
      window(std::min(mask.window, std::int64_t(1) << 40)),  // wider ones hide nothing either, and kernels add positions to it
      causal(mask.causal) {}

kernels::AttentionMask detail::KernelMask::view() const {
  return {view_of(padding), view_of(prefix), view_of(key_lengths), window, causal};
}

namespace {

constexpr Op softmax_op{.name = "attention_softmax", .autocast = CastTo::f32, .tangent = Tangent::symmetric};

/// The composed op; sequences of different lengths have `past`.
struct ComposedAttentionSoftmax {
  static constexpr Op op = softmax_op;
  AttentionMask mask;
  Tensor past;

  Tensor forward(const Tensor& scores) const {
    check_mask(op.name, scores, mask);
    return masked_softmax(scores, mask, past);
  }
};

struct FusedAttentionSoftmax {
  static constexpr Op op = softmax_op;
  AttentionMask mask;

  struct Kept {
    Tensor y;
  };
  Tensor plain(const Tensor& scores) const { return call(ComposedAttentionSoftmax{mask, {}}, scores); }
  Result<Tensor, Kept> forward(const Tensor& scores) const {
    check_mask(op.name, scores, mask);
    const Tensor source = contiguous(scores), y = empty_like(source);
    const detail::KernelMask masking(mask, scores.dtype());
    on(y.device(), [&](auto dev) { kernels::attention_softmax(dev, source.view(), masking.view(), y.view()); });
    return {y, {y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor& p = kept.y;
    if (context().grad) return {detail::softmax_gradient(p, call.grad(), -1)};  // the scores themselves are not kept
    const Tensor g = contiguous(call.grad()), dx = empty_like(p);
    on(dx.device(), [&](auto dev) { kernels::attention_softmax_grad(dev, p.view(), g.view(), dx.view()); });
    return {dx};
  }
};

}  // namespace

Tensor detail::attention_softmax(const Tensor& scores, const AttentionMask& mask, const Tensor& query_lengths, const Tensor& key_lengths) {
  AttentionMask shortened = mask;
  shortened.key_lengths = mask.key_lengths.defined() ? minimum(mask.key_lengths, key_lengths) : key_lengths;
  return call(ComposedAttentionSoftmax{shortened, key_lengths - query_lengths}, scores);
}

Tensor attention_softmax(const Tensor& scores, const AttentionMask& mask) {
  const FusedAttentionSoftmax f{mask};
  return scores.device() == cpu || (mask.window == 0 && !mask.key_lengths.defined()) ? call(f, scores) : f.plain(scores);
}

}  // namespace tern
