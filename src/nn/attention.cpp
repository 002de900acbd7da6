#include "nn/attention.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/rope.h"
#include "ops/view.h"

namespace tern::nn {

// Note [Hidden scores]
// A hidden key's score gets a large negative number and not -inf. Next to a visible key its probability is exactly 0
// either way; but a query that sees nothing, as in a row of padding, attends evenly to all keys and so gives finite
// numbers that nobody reads, where -inf would give a NaN that spreads to every weight in the backward pass. The number
// is large enough to swallow any score, and small enough for the dtype. The fused softmax knows which keys are hidden; a
// query that sees nothing gets zeros from it.
static double hidden_score(DType dtype) { return dtype == DType::f16 ? -3e4 : -1e30; }

AttentionMask::AttentionMask(const MaskOptions& options, std::int64_t queries, std::int64_t keys, DType dtype, Device device)
    : options_(options), queries_(queries), keys_(keys), dtype_(dtype), device_(device) {
  const Tensor &padding = options.padding, &prefix = options.prefix;
  const auto check = [](const char* what, const Tensor& x, int dims, DType expected) {
    if (x.dims() != dims || x.dtype() != expected)
      fail("AttentionMask", fmt::format("expected {} of {} dimension(s) and {} but got {} {}", what, dims, name(expected), name(x.dtype()),
                                        to_string(x.shape())));
  };
  if (padding.defined()) {
    check("padding", padding, 2, DType::boolean);
    if (padding.size(1) != keys)
      fail("AttentionMask", fmt::format("expected padding (B, {}) but got {}", keys, to_string(padding.shape())));
    device_ = padding.device();
  }
  if (prefix.defined()) {
    check("prefix", prefix, 1, DType::i64);
    if (!options.causal) fail("AttentionMask", "expected causal = true beside a prefix, which opens what causal closes");
    if (padding.defined() && padding.size(0) != prefix.size(0))
      fail("AttentionMask", fmt::format("expected a prefix for each of {} rows but got {}", padding.size(0), prefix.size(0)));
    device_ = prefix.device();
  }
}

const SoftmaxMask& AttentionMask::fused() const {
  if (fused_) return *fused_;
  const NoGrad unrecorded;
  fused_ = {.causal = options_.causal, .padding = options_.padding, .prefix = options_.prefix};
  // As the kernel takes it, so that it is made once and not in every layer.
  if (const Tensor& padding = options_.padding; padding.defined())
    fused_->padding = masked_fill(zeros(padding.shape(), DType::f32, device_), padding, hidden_score(DType::f32));
  return *fused_;
}

static Tensor additive_mask(const MaskOptions& options, std::int64_t queries, std::int64_t keys, DType dtype, Device device) {
  const auto& [is_causal, padding, prefix] = options;
  if (!is_causal && !padding.defined()) return {};
  const double score = hidden_score(dtype);
  if (is_causal && !padding.defined() && !prefix.defined())
    return triu(full({1, 1, queries, keys}, score, dtype, device), keys - queries + 1);
  Tensor hidden;
  if (is_causal) {
    Tensor last_visible =
        reshape(arange(static_cast<double>(keys - queries), static_cast<double>(keys), 1, DType::i64, device), {1, 1, queries, 1});
    if (prefix.defined()) last_visible = maximum(last_visible, reshape(prefix, {prefix.size(0), 1, 1, 1}) - 1);
    hidden = gt(reshape(arange(keys, DType::i64, device), {1, 1, 1, keys}), last_visible);
  }
  if (padding.defined()) {
    const Tensor padded = reshape(padding, {padding.size(0), 1, 1, keys});
    hidden = hidden.defined() ? logical_or(hidden, padded) : padded;
  }
  return masked_fill(zeros(hidden.shape(), dtype, device), hidden, score);
}

const Tensor& AttentionMask::additive() const {
  const NoGrad unrecorded;
  if (!additive_) additive_ = additive_mask(options_, queries_, keys_, dtype_, device_);
  return *additive_;
}

static Tensor attention_scores(const Tensor& q, const Tensor& k) {
  return matmul(q, transpose(k, -1, -2), 1 / std::sqrt(static_cast<double>(q.size(-1))));
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask, double p, bool training) {
  Tensor scores = attention_scores(q, k);
  if (mask.additive().defined()) scores = scores + mask.additive();
  return matmul(dropout(softmax(scores), p, training), v);
}

Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask, double p, bool training) {
  return matmul(dropout(fused_attention_softmax(attention_scores(q, k), mask.fused()), p, training), v);
}

MultiHeadAttention::MultiHeadAttention(std::int64_t width, const AttentionOptions& options_) : options(options_) {
  if (options.heads < 1 || width < 1 || width % options.heads != 0)
    fail("MultiHeadAttention", fmt::format("expected a width that the number of heads divides but got {} and {}", width, options.heads));
  [[maybe_unused]] const Dropout valid(options.dropout);
  if (options.rope.defined() && options.cross)
    fail("MultiHeadAttention", "expected no rope in cross attention, whose two sides have positions of their own");
  if (options.cross) {
    query.emplace(width, width, options.bias, options.device);
    key_value.emplace(width, 2 * width, options.bias, options.device);
  } else {
    qkv.emplace(width, 3 * width, options.bias, options.device);
  }
  proj = Linear(width, width, options.bias, options.device);
}

void MultiHeadAttention::visit(Visitor& v) {
  v("qkv", qkv);
  v("query", query);
  v("key_value", key_value);
  v("proj", proj);
}

/// x (B, T, n width) as n views (B, heads, T, head_dim). One op, whose gradient is written in one piece.
static Tensors split_heads(const Tensor& x, std::int64_t n, std::int64_t heads) {
  Tensors parts = unstack(reshape(x, {x.size(0), x.size(1), n, heads, x.size(2) / (n * heads)}), 2);
  for (Tensor& part : parts) part = transpose(part, 1, 2);
  return parts;
}

Tensor MultiHeadAttention::heads_joined(const Tensor& x, const Tensor& memory, const AttentionMask& mask) const {
  const ModuleScope scope(this, "MultiHeadAttention");
  if (memory.defined() == qkv.has_value())
    fail("MultiHeadAttention",
         qkv ? "expected no memory: the layer was made for self attention" : "expected a memory: the layer was made for cross attention");
  if (qkv && use_fused_kernel && !options.rope.defined()) {
    const Tensor joined = qkv->forward(x);
    const std::int64_t width = joined.size(2) / 3;
    const Tensor y = fused_self_attention(reshape(joined, {joined.size(0), joined.size(1), 3, options.heads, width / options.heads}),
                                          {.mask = mask.fused(), .dropout = options.dropout, .training = training});
    return reshape(y, {y.size(0), y.size(1), width});
  }
  Tensors parts = qkv ? split_heads(qkv->forward(x), 3, options.heads) : split_heads(query->forward(x), 1, options.heads);
  if (key_value)
    for (Tensor& part : split_heads(key_value->forward(memory), 2, options.heads)) parts.push_back(std::move(part));
  if (options.rope.defined())
    for (std::size_t i : {0, 1}) parts[i] = rope(parts[i], options.rope);
  const auto attend = use_fused_kernel ? fused_attention : attention;
  const Tensor y = transpose(attend(parts[0], parts[1], parts[2], mask, options.dropout, training), 1, 2);
  return reshape(y, {y.size(0), y.size(1), y.size(2) * y.size(3)});
}

Tensor MultiHeadAttention::forward(const Tensor& x, const AttentionMask& mask) const { return forward(x, {}, mask); }

Tensor MultiHeadAttention::forward(const Tensor& x, const Tensor& memory, const AttentionMask& mask) const {
  const ModuleScope scope(this, "MultiHeadAttention");
  return proj.forward(heads_joined(x, memory, mask));
}

}  // namespace tern::nn
