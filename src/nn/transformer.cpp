#include "nn/transformer.h"

#include "ops/pointwise.h"
#include "ops/random.h"

namespace tern::nn {

FeedForward::FeedForward(std::int64_t width, std::int64_t hidden, const FeedForwardOptions& o)
    : fc(width, hidden, o.bias, o.device), proj(hidden, width, o.bias, o.device), drop(o.dropout), activation(o.activation) {
  if (o.gated) gate.emplace(width, hidden, o.bias, o.device);
}

void FeedForward::visit(Visitor& v) {
  v("fc", fc);
  v("gate", gate);
  v("proj", proj);
  v("drop", drop);
}

Tensor FeedForward::forward(const Tensor& x, bool adds_bias) const {
  const ModuleScope scope(this, "FeedForward");
  const bool drops = drop.training && drop.p > 0;
  if (!gate && !drops) return fc.activated(activation, x, proj, adds_bias);
  Tensor hidden;
  if (gate) {
    const Tensor gated = gate->forward(x), up = fc.forward(x);
    hidden = activation == Activation::silu ? swiglu(gated, up) : activate(activation, gated) * up;
  } else {
    hidden = fc.activated(activation, x);
  }
  if (drops) hidden = drop.forward(hidden);
  return adds_bias ? proj.forward(hidden) : proj.forward_without_bias(hidden);
}

void ResidualStream::add(const Tensor& branch, const Linear& proj, const Dropout& drop) {
  defer(proj.forward_without_bias(branch), proj.bias, drop);
}

void ResidualStream::add(const Tensor& branch, const FeedForward& ff, const Dropout& drop) {
  defer(ff.forward(branch, false), ff.proj.bias, drop);
}

void ResidualStream::defer(const Tensor& product, const Tensor& bias, const Dropout& drop) {
  x_ = value();
  pending_ = product;
  options_ = {.bias = bias, .dropout = drop.p, .training = drop.training};
}

Tensor ResidualStream::normalized(const Norm& norm) {
  if (!pending_.defined()) return norm.forward(x_);
  ResidualNorm joined = norm.forward(pending_, x_, options_);
  x_ = std::move(joined.sum);
  pending_ = {};
  return joined.y;
}

Tensor ResidualStream::value() {
  if (pending_.defined()) {
    const Tensor branch = options_.bias.defined() ? pending_ + options_.bias : pending_;
    x_ = x_ + dropout(branch, options_.dropout, options_.training);
    pending_ = {};
  }
  return x_;
}

void ResidualStream::checkpointed(CheckpointPolicy policy, const Tensors& inputs,
                                  std::function<void(ResidualStream&, const Tensors&)> add) {
  // The options of the branch that is pending at the end are not tensors: the first run stores them here.
  const auto end = std::make_shared<BranchOptions>();
  const auto run = [=, begin = options_](const Tensors& in) -> Tensors {
    ResidualStream stream(in[0]);
    stream.pending_ = in[1];
    stream.options_ = begin;
    add(stream, {in.begin() + 2, in.end()});
    *end = stream.options_;
    return {stream.x_, stream.pending_};
  };
  Tensors all = {x_, pending_};
  all.insert(all.end(), inputs.begin(), inputs.end());
  const Tensors outputs = checkpoint(run, all, policy);
  x_ = outputs[0], pending_ = outputs[1], options_ = *end;
}

static NormOptions norm_options(const TransformerOptions& o) { return {.eps = o.layer_norm_eps, .bias = o.bias, .device = o.device}; }

/// Replaces -1 by the layer's dropout.
static double dropout_of(double own, double of_layer) { return own == -1 ? of_layer : own; }

static AttentionOptions attention_options(const TransformerOptions& o, bool cross, const Tensor& rope) {
  return {.heads = o.heads,
          .kv_heads = cross ? 0 : o.kv_heads,
          .head_dim = o.head_dim,
          .dropout = dropout_of(o.attention_dropout, o.dropout),
          .bias = o.bias,
          .cross = cross,
          .rope = rope,
          .rope_pairs = o.rope_pairs,
          .device = o.device};
}

TransformerLayer::TransformerLayer(const TransformerOptions& o, bool cross, const Tensor& rope)
    : norm1(o.norm, o.width, norm_options(o)), attn(o.width, attention_options(o, false, rope)), drop(o.dropout) {
  if (o.ff > 0) {
    norm2 = Norm(o.norm, o.width, norm_options(o));
    ff = FeedForward(o.width, o.ff,
                     {.activation = o.activation,
                      .gated = o.gated,
                      .bias = o.bias,
                      .dropout = dropout_of(o.activation_dropout, o.dropout),
                      .device = o.device});
  }
  if (!cross) return;
  norm_cross.emplace(o.norm, o.width, norm_options(o));
  cross_attn.emplace(o.width, attention_options(o, true, {}));
}

void TransformerLayer::visit(Visitor& v) {
  v("norm1", norm1);
  v("attn", attn);
  v("norm_cross", norm_cross);
  v("cross_attn", cross_attn);
  v("norm2", norm2);
  v("ff", ff);
  v("drop", drop);
}

Tensor TransformerLayer::forward(const Tensor& x, const AttentionMask& mask) const { return forward(x, mask, {}, {}); }

Tensor TransformerLayer::forward(const Tensor& x, const AttentionMask& mask, const Tensor& memory, const AttentionMask& memory_mask) const {
  ResidualStream stream(x);
  forward(stream, mask, memory, memory_mask);
  return stream.value();
}

void TransformerLayer::forward(ResidualStream& x, const AttentionMask& mask, const Tensor& memory, const AttentionMask& memory_mask,
                               const LayerCache* cache) const {
  const ModuleScope scope(this, "TransformerLayer");
  if (memory.defined() != cross_attn.has_value())
    fail("TransformerLayer",
         cross_attn ? "expected a memory: the layer has cross attention" : "expected no memory: the layer has no cross attention");
  x.add(attn.heads_joined(x.normalized(norm1), {}, mask, cache), attn.proj, drop);
  if (cross_attn) x.add(cross_attn->heads_joined(x.normalized(*norm_cross), memory, memory_mask, cache), cross_attn->proj, drop);
  if (ff.fc.defined()) x.add(x.normalized(norm2), ff, drop);
}

}  // namespace tern::nn
