#include "nn/transformer.h"

#include "ops/pointwise.h"

namespace tern::nn {

FeedForward::FeedForward(std::int64_t width, std::int64_t hidden, Activation activation_, bool bias, Device device)
    : fc(width, hidden, bias, device), proj(hidden, width, bias, device), activation(activation_) {}

void FeedForward::visit(Visitor& v) {
  v("fc", fc);
  v("proj", proj);
}

Tensor FeedForward::forward(const Tensor& x) const {
  const ModuleScope scope(this, "FeedForward");
  return proj.forward(activate(activation, fc.forward(x)));
}

static NormOptions norm_options(const TransformerLayerOptions& o) {
  return {.eps = o.layer_norm_eps, .bias = o.bias, .use_fused_kernel = o.use_fused_kernel, .device = o.device};
}

static AttentionOptions attention_options(const TransformerLayerOptions& o, bool cross) {
  return {.heads = o.heads,
          .dropout = o.dropout,
          .bias = o.bias,
          .cross = cross,
          .use_fused_kernel = o.use_fused_kernel,
          .device = o.device};
}

TransformerLayer::TransformerLayer(const TransformerLayerOptions& o)
    : norm1(o.width, norm_options(o)),
      norm2(o.width, norm_options(o)),
      attn(o.width, attention_options(o, false)),
      ff(o.width, o.ff, o.activation, o.bias, o.device),
      drop(o.dropout) {
  if (!o.cross) return;
  norm_cross.emplace(o.width, norm_options(o));
  cross_attn.emplace(o.width, attention_options(o, true));
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

Tensor TransformerLayer::forward(const Tensor& x, const AttentionMask& mask, const Tensor& memory,
                                 const AttentionMask& memory_mask) const {
  const ModuleScope scope(this, "TransformerLayer");
  if (memory.defined() != cross_attn.has_value())
    fail("TransformerLayer", cross_attn ? "expected a memory: the layer has cross attention"
                                        : "expected no memory: the layer has no cross attention");
  Tensor y = x + drop.forward(attn.forward(norm1.forward(x), mask));
  if (cross_attn) y = y + drop.forward(cross_attn->forward(norm_cross->forward(y), memory, memory_mask));
  return y + drop.forward(ff.forward(norm2.forward(y)));
}

}  // namespace tern::nn
