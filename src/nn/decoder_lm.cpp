#include "nn/decoder_lm.h"

#include <fmt/format.h>

#include <cmath>

#include "nn/init.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/rope.h"
#include "ops/view.h"

namespace tern::nn {

static TransformerLayerOptions layer_options(const DecoderLMOptions& o, const Tensor& rope) {
  return {.width = o.width,
          .heads = o.heads,
          .kv_heads = o.kv_heads,
          .ff = o.ff,
          .dropout = o.dropout,
          .activation = o.activation,
          .gated = o.gated,
          .norm = o.norm,
          .layer_norm_eps = o.layer_norm_eps,
          .bias = o.bias,
          .rope = rope,
          .device = o.device};
}

/// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3.
static void initialize_gpt2(DecoderLM& model) {
  for (const NamedTensor& entry : named_parameters(model)) {
    const bool is_residual = entry.name.ends_with(".proj.weight");
    const double deviation = is_residual ? 0.02 / std::sqrt(2.0 * static_cast<double>(model.options.layers)) : 0.02;
    if (entry.tensor.dims() == 2) init::normal(entry.tensor, 0, deviation);
    else if (entry.name.ends_with("bias")) init::zeros(entry.tensor);
  }
}

DecoderLM::DecoderLM(const DecoderLMOptions& options_) : options(options_) {
  if (options.vocab < 1 || options.length < 1 || options.width < 1 || options.layers < 0 || options.ff < 0)
    fail("DecoderLM", fmt::format("expected sizes >= 1 but got vocab {}, length {}, width {}, layers {}, ff {}", options.vocab,
                                  options.length, options.width, options.layers, options.ff));
  tokens = Embedding(options.vocab, options.width, options.device);
  Tensor rope;
  if (options.positions == Positions::learned) positions.emplace(options.length, options.width, options.device);
  if (options.positions == Positions::rotary)
    rope = rope_table(options.length, options.width / std::max<std::int64_t>(options.heads, 1), 10000, options.device);
  drop = Dropout(options.dropout);
  // Built one by one: copies of one layer would share its parameters.
  for (std::int64_t i = 0; i < options.layers; ++i) blocks.emplace_back(layer_options(options, rope));
  if (options.final_norm && options.norm != NormKind::none)
    norm.emplace(options.norm, options.width, NormOptions{.eps = options.layer_norm_eps, .bias = options.bias, .device = options.device});
  head = Linear(options.width, options.vocab, options.head_bias, options.device);
  if (options.tied_head) head.weight = tokens.weight;
  if (options.initialization == Initialization::gpt2) initialize_gpt2(*this);
  else if (options.tied_head) init::normal(tokens.weight, 0, 1 / std::sqrt(static_cast<double>(options.width)));
  set_use_fused_kernel(options.use_fused_kernel);
}

void DecoderLM::visit(Visitor& v) {
  v("tokens", tokens);
  v("positions", positions);
  v("drop", drop);
  v("blocks", blocks);
  v("norm", norm);
  v("head", head);
}

/// Tokens and positions, after dropout: (B, T, width).
Tensor DecoderLM::embedded(const Tensor& ids, const Tensor& position_ids) const {
  if (use_fused_kernel && !position_ids.defined())
    return fused_embedding(tokens.weight, positions ? positions->weight : Tensor(), ids, drop.p, drop.training);
  Tensor x = tokens.forward(ids);
  if (positions) x = x + (position_ids.defined() ? positions->forward(position_ids) : slice(positions->weight, 0, 0, ids.size(1)));
  return drop.forward(x);
}

Tensor DecoderLM::hidden(const Tensor& ids, const AttentionMask& visible, const Tensor& position_ids, KvCache* cache) const {
  const ModuleScope scope(this, "DecoderLM");
  if (ids.dims() != 2 || ids.dtype() != DType::i64)
    fail("DecoderLM", fmt::format("expected ids (B, T) of i64 but got {} {}", name(ids.dtype()), to_string(ids.shape())));
  const std::int64_t length = ids.size(1);
  if (length > options.length)
    fail("DecoderLM", fmt::format("expected at most {} positions but got ids {}", options.length, to_string(ids.shape())));
  if (position_ids.defined() && position_ids.shape() != ids.shape())
    fail("DecoderLM",
         fmt::format("expected a position for each of ids {} but got {}", to_string(ids.shape()), to_string(position_ids.shape())));
  if (position_ids.defined() && !positions) fail("DecoderLM", "expected no position_ids: the model has no table of positions");
  const AttentionMask mask = shared_by_layers(visible);
  if (cache) cache->begin(ids);
  const bool is_continued = cache && !cache->empty() && positions && !position_ids.defined();
  ResidualStream stream(embedded(ids, is_continued ? cache->positions() : position_ids), use_fused_kernel);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (cache) {
      const LayerCache layer = cache->layer(i);
      blocks[i].forward(stream, mask, {}, {}, &layer);
    } else {
      blocks[i].forward(stream, mask);
    }
  }
  if (cache) cache->end();
  return norm ? stream.normalized(*norm) : stream.value();
}

KvCache DecoderLM::cache(std::int64_t batch, std::int64_t capacity) const {
  if (capacity > options.length)
    fail("DecoderLM", fmt::format("expected a cache of at most {} tokens, the model's length, but got {}", options.length, capacity));
  return {batch, capacity, blocks.size(), tokens.weight.device()};
}

Tensor DecoderLM::forward(const Tensor& ids, const AttentionMask& mask, const Tensor& position_ids) const {
  const Tensor x = hidden(ids, mask, position_ids);
  const ModuleScope scope(this, "DecoderLM");
  return head.forward(x);
}

Tensor DecoderLM::loss(const Tensor& ids, const Tensor& labels, const CrossEntropyOptions& loss_options, const AttentionMask& mask,
                       const Tensor& position_ids) const {
  const Tensor x = hidden(ids, mask, position_ids);
  const ModuleScope scope(this, "DecoderLM");
  return head.cross_entropy(x, labels, loss_options);
}

Tensor reset_position_ids(const Tensor& prefix, std::int64_t length, std::int64_t start, std::int64_t last) {
  if (prefix.dims() != 1 || prefix.dtype() != DType::i64)
    fail("reset_position_ids", fmt::format("expected prefixes (B) of i64 but got {} {}", name(prefix.dtype()), to_string(prefix.shape())));
  const Tensor columns = reshape(arange(length, DType::i64, prefix.device()), {1, length}), ends = unsqueeze(prefix, 1);
  return minimum(where(lt(columns, ends), columns, columns - ends + static_cast<double>(start)), static_cast<double>(last));
}

}  // namespace tern::nn
