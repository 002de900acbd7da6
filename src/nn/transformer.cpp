#include "nn/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "nn/init.h"
#include "nn/rwkv.h"
#include "nn/state_space.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/view.h"

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
  const Tensor proj_bias = adds_bias ? proj.bias : Tensor();
  const bool drops = drop.training && drop.p > 0, fuses = activation == Activation::gelu_tanh && !gate && fc.can_fuse();
  Tensor hidden;
  if (fuses) {
    const ModuleScope in_fc(&fc, "Linear");
    if (!drops && proj.can_fuse()) return feed_forward_gelu(x, fc.weight, fc.bias, proj.weight, proj_bias);
    hidden = linear_gelu(x, fc.weight, fc.bias);
  } else if (gate) {
    const Tensor gated = gate->forward(x), up = fc.forward(x);
    hidden = activation == Activation::silu ? swiglu(gated, up) : activate(activation, gated) * up;
  } else {
    hidden = activate(activation, fc.forward(x));
  }
  return proj.forward(drops ? drop.forward(hidden) : hidden, proj_bias);
}

void ResidualStream::add(const Tensor& branch, const Tensor& bias, const Dropout& drop) {
  x = value();
  pending = branch;
  options = {.bias = bias, .dropout = drop.p, .training = drop.training};
}

Tensor ResidualStream::normalized(const Norm& norm) {
  if (!pending.defined()) return norm.forward(x);
  ResidualNorm joined = norm.forward(pending, x, options);
  x = std::move(joined.sum);
  pending = {};
  return joined.y;
}

Tensor ResidualStream::value() {
  if (pending.defined()) {
    const Tensor branch = options.bias.defined() ? pending + options.bias : pending;
    x = x + dropout(branch, options.dropout, options.training);
    pending = {};
  }
  return x;
}

static NormOptions norm_options(const TransformerOptions& o) { return {.eps = o.layer_norm_eps, .bias = o.bias, .device = o.device}; }

/// Replaces -1 by the layer's dropout.
static double dropout_of(double own, double of_layer) { return own == -1 ? of_layer : own; }

static AttentionOptions attention_options(const TransformerOptions& o, bool cross, const Tensor& rope, std::int64_t window = 0) {
  return {.heads = o.heads,
          .kv_heads = cross ? 0 : o.kv_heads,
          .head_dim = o.head_dim,
          .dropout = dropout_of(o.attention_dropout, o.dropout),
          .bias = o.bias,
          .cross = cross,
          .window = window,
          .rope = rope,
          .rope_pairs = o.rope_pairs,
          .device = o.device};
}

static AnyMixer make_mixer(const MixerOptions& mixer, const TransformerOptions& o, const Tensor& rope) {
  switch (mixer.kind) {
    case MixerKind::conv: return ConvMixer(o.width, o.device);
    case MixerKind::h3: return H3Mixer(o.width, o.device);
    case MixerKind::hyena: return HyenaMixer(o.width, o.length, o.device);
    case MixerKind::mamba: return MambaMixer(o.width, o.device);
    case MixerKind::rwkv4: return Rwkv4Mixer(o.width, o.device);
    case MixerKind::rwkv7: return Rwkv7Mixer(o.width, o.heads, o.device);
    default: break;
  }
  if (mixer.kind != MixerKind::own) {
    const RecurrentMixerOptions options{
        .heads = o.heads, .head_dim = o.head_dim, .rope = rope, .rope_pairs = o.rope_pairs, .device = o.device};
    return RecurrentMixer(mixer.kind, o.width, options);
  }
  if (!mixer.own) fail("TransformerLayer", "expected a function that makes a mixer of MixerKind::own but got none");
  return mixer.own(o.width);
}

TransformerLayer::TransformerLayer(const TransformerOptions& o, bool cross, const Tensor& rope, std::int64_t number)
    : norm1(o.norm, o.width, norm_options(o)), drop(o.dropout) {
  const MixerOptions own = o.mixers.empty() ? MixerOptions() : o.mixers[static_cast<std::size_t>(number) % o.mixers.size()];
  const bool is_window = own.kind == MixerKind::window;
  if (is_window && own.window < 1) fail("TransformerLayer", fmt::format("expected a window >= 1 but got {}", own.window));
  if (own.kind == MixerKind::attention || is_window)
    attn = MultiHeadAttention(o.width, attention_options(o, false, rope, is_window ? own.window : 0));
  else mixer = make_mixer(own, o, rope);
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
  if (mixer) v("mixer", **mixer);
  else v("attn", attn);
  v("norm_cross", norm_cross);
  v("cross_attn", cross_attn);
  v("norm2", norm2);
  v("ff", ff);
  v("drop", drop);
}

Tensor TransformerLayer::forward(const Tensor& x, const AttentionMask& mask, const Tensor& memory, const AttentionMask& memory_mask) const {
  ResidualStream stream{x};
  forward(stream, mask, memory, memory_mask);
  return stream.value();
}

void TransformerLayer::forward(ResidualStream& stream, const AttentionMask& mask, const Tensor& memory, const AttentionMask& memory_mask,
                               const LayerCache* cache) const {
  const ModuleScope scope(this, "TransformerLayer");
  if (memory.defined() != cross_attn.has_value())
    fail("TransformerLayer",
         cross_attn ? "expected a memory: the layer has cross attention" : "expected no memory: the layer has no cross attention");
  const auto attend = [&](const MultiHeadAttention& attention, const Norm& norm, const Tensor& keys, const AttentionMask& seen) {
    const Tensor heads = attention.heads_joined(stream.normalized(norm), keys, seen, cache);
    stream.add(attention.proj.forward(heads, {}), attention.proj.bias, drop);
  };
  if (mixer) {
    if (!mask.causal || mask.window > 0 || mask.padding.defined() || mask.prefix.defined())
      fail("TransformerLayer", "expected a causal mask without window, padding and prefix: the layer's mixer reads all earlier tokens");
    MixerState state{cache ? cache->mixer_state() : Tensors(), cache ? mask.key_lengths : Tensor()};
    stream.add((*mixer)->forward(stream.normalized(norm1), cache ? &state : nullptr), {}, drop);
    if (cache) cache->keep(state.kept);
  } else {
    attend(attn, norm1, {}, mask);
  }
  if (cross_attn) attend(*cross_attn, *norm_cross, memory, memory_mask);
  if (ff.fc.defined()) stream.add(ff.forward(stream.normalized(norm2), false), ff.proj.bias, drop);
}

static bool is_table(const std::string& name) {
  return name.ends_with("tokens.weight") || name.ends_with("positions.weight") || name.ends_with("head.weight");
}

/// GPT-2's initialization. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3.
static void initialize_gpt2(const std::vector<NamedTensor>& parameters, std::int64_t branches) {
  for (const NamedTensor& entry : parameters) {
    const bool is_residual = entry.name.ends_with(".proj.weight");
    const double deviation = is_residual ? 0.02 / std::sqrt(static_cast<double>(branches)) : 0.02;
    if (entry.tensor.dims() == 2 && entry.name.ends_with(".weight")) init::normal(entry.tensor, 0, deviation);
    else if (entry.name.ends_with(".bias")) init::zeros(entry.tensor);
  }
}

static void initialize_xavier(const std::vector<NamedTensor>& parameters, double width) {
  for (const NamedTensor& entry : parameters) {
    const Tensor& x = entry.tensor;
    // Query, key and value projections: cross attention has two matrices (width, width) and (2 width, width) for them, self attention one.
    const bool is_cross = entry.name.ends_with(".query.weight") || entry.name.ends_with(".key_value.weight");
    const double bound = std::sqrt(6 / (4 * width));
    if (entry.name.ends_with(".bias")) init::zeros(x);
    else if (is_table(entry.name)) init::normal(x, 0, 1 / std::sqrt(width));
    else if (is_cross) init::uniform(x, -bound, bound);
    else if (x.dims() == 2 && entry.name.ends_with(".weight")) init::xavier_uniform(x);
  }
}

/// Initializes parameters, named by their paths in a model, as options.initialization says. `branches` is the number of residual branches
/// of the model.
static void initialize(const std::vector<NamedTensor>& parameters, const TransformerOptions& options, std::int64_t branches) {
  const auto width = static_cast<double>(options.width);
  switch (options.initialization) {
    case Initialization::gpt2: return initialize_gpt2(parameters, branches);
    case Initialization::xavier: return initialize_xavier(parameters, width);
    case Initialization::layer_defaults: break;
  }
  if (!options.tied_head) return;
  for (const NamedTensor& entry : parameters)
    if (entry.name.ends_with("tokens.weight")) init::normal(entry.tensor, 0, 1 / std::sqrt(width));
}

Tensor sinusoid_table(std::int64_t length, std::int64_t width, Device device) {
  const Tensor table = empty({length, width}, DType::f32, cpu);
  float* number = table.data<float>();
  for (std::int64_t t = 0; t < length; ++t)
    for (std::int64_t i = 0; i < width; ++i) {
      const double angle = static_cast<double>(t) / std::pow(10000.0, static_cast<double>(i - i % 2) / static_cast<double>(width));
      *number++ = static_cast<float>(i % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  return to(table, device);
}

TransformerModel::TransformerModel(const TransformerOptions& options_) : TransformerModel(options_, "TransformerModel") {
  initialize(named_parameters(*this), options, 2 * options.layers);
}

TransformerModel::TransformerModel(const TransformerOptions& options_, const char* model, bool cross, const Embedding* shared)
    : options(options_), model_(model) {
  if (options.vocab < 1 || options.length < 1 || options.width < 1 || options.layers < 0 || options.ff < 0)
    fail(model_, fmt::format("expected sizes >= 1 but got vocab {}, length {}, width {}, layers {}, ff {}", options.vocab, options.length,
                             options.width, options.layers, options.ff));
  tokens = shared ? *shared : Embedding(options.vocab, options.width, options.device);
  Tensor rope;
  if (options.positions == Positions::learned) positions.emplace(options.length, options.width, options.device);
  if (options.positions == Positions::sinusoidal) sinusoids = sinusoid_table(options.length, options.width, options.device);
  if (options.positions == Positions::rotary) {
    const std::int64_t head_dim = options.head_dim > 0 ? options.head_dim : options.width / std::max<std::int64_t>(options.heads, 1);
    rope = rope_table(options.length, head_dim, options.rope_base, options.device, options.rope_scaling);
  }
  drop = Dropout(options.dropout);
  // Created one by one: copies of one layer would share its parameters.
  for (std::int64_t i = 0; i < options.layers; ++i) blocks.emplace_back(options, cross, rope, i);
  if (options.final_norm && options.norm != NormKind::none) norm.emplace(options.norm, options.width, norm_options(options));
}

void TransformerModel::visit(Visitor& v) {
  v("tokens", tokens);
  v("positions", positions);
  v.constant("sinusoids", sinusoids);
  v("drop", drop);
  v("blocks", blocks);
  v("norm", norm);
}

DType TransformerModel::dtype() const {
  if (!tokens.quantized.defined()) return tokens.weight.dtype();
  // A norm has a dtype even where matrices have none, as in a quantized model.
  const Tensor scale = norm ? norm->weight : blocks.empty() ? Tensor() : blocks.front().norm1.weight;
  return scale.defined() ? scale.dtype() : DType::f32;
}

/// Token and position embeddings, after dropout: (B, T, width).
Tensor TransformerModel::embedded(const Tensor& ids, const Tensor& position_ids) const {
  const double scale = options.scales_embeddings ? std::sqrt(static_cast<double>(options.width)) : 1;
  const bool has_quantized_positions = positions && positions->quantized.defined();
  Tensor table = positions ? positions->weight : sinusoids.defined() ? cast(sinusoids, dtype()) : Tensor();
  if (!position_ids.defined() && !tokens.quantized.defined() && !has_quantized_positions) {
    if (scale == 1) return embedding(tokens.weight, table, ids, drop.p, drop.training);
    // The op has no scale, and dropout uses the same random numbers on either side of one.
    if (table.defined()) table = slice(table, 0, 0, ids.size(1)) * (1 / scale);
    return embedding(tokens.weight, table, ids, drop.p, drop.training) * scale;
  }
  Tensor x = tokens.forward(ids, dtype());
  if (scale != 1) x = x * scale;
  if (has_quantized_positions)
    x = x + positions->forward(position_ids.defined() ? position_ids : arange(ids.size(1), DType::i64, positions->device()), dtype());
  else if (table.defined()) x = x + (position_ids.defined() ? embedding(table, position_ids) : slice(table, 0, 0, ids.size(1)));
  return drop.forward(x);
}

/// Mask of S keys for layers with weights of a dtype, with padding in the form that kernels take. For float32 on a GPU, lengths become
/// padding: more kernels take padding than lengths, among them single-tile attention and the softmax of materialized scores.
static AttentionMask mask_of_layers(const AttentionMask& given, std::int64_t keys, DType dtype) {
  AttentionMask mask = shared_by_layers(given);
  const bool has_lengths = mask.key_lengths.defined() && !mask.padding.defined();
  if (!has_lengths || mask.key_lengths.device() == cpu || dtype != DType::f32) return mask;
  const Device device = mask.key_lengths.device();
  const Tensor columns = reshape(arange(keys, DType::i64, device), {1, keys}), ends = unsqueeze(mask.key_lengths, 1);
  mask.padding = masked_fill(zeros({ends.size(0), keys}, DType::f32, device), ge(columns, ends), -std::numeric_limits<double>::infinity());
  mask.key_lengths = {};
  return mask;
}

void TransformerModel::forward_block(const TransformerLayer& block, ResidualStream& stream, const AttentionMask& mask, const Tensor& memory,
                                     const AttentionMask& memory_mask) const {
  if (options.activation_checkpointing == CheckpointPolicy::none) return block.forward(stream, mask, memory, memory_mask);
  // The first run is that of the block itself, by whose address messages find its path. The copy, which shares the parameters, is for
  // backward, when the model may have been destroyed. Options of a branch are not all tensors: the first run stores those of the last one.
  const auto first = std::make_shared<const TransformerLayer*>(&block);
  const auto end = std::make_shared<BranchOptions>();
  const auto run = [=, copy = block, begin = stream.options](const Tensors& inputs) -> Tensors {
    ResidualStream inner{inputs[0], inputs[1], begin};
    const TransformerLayer* const own = std::exchange(*first, nullptr);
    (own ? *own : copy).forward(inner, mask, inputs[2], memory_mask);
    *end = inner.options;
    return {inner.x, inner.pending};
  };
  const Tensors outputs = checkpoint(run, {stream.x, stream.pending, memory}, options.activation_checkpointing);
  stream = {outputs[0], outputs[1], *end};
}

Tensor TransformerModel::hidden(const Tensor& ids_, const AttentionMask& visible, const Tensor& position_ids, KvCache* cache,
                                const Memory& memory) const {
  const ModuleScope scope(this, model_);
  if (ids_.dims() != 2 || (ids_.dtype() != DType::i64 && ids_.dtype() != DType::i32))
    fail(model_, fmt::format("expected ids (B, T) of i64 or i32 but got {} {}", name(ids_.dtype()), to_string(ids_.shape())));
  const Tensor ids = cast(ids_, DType::i64);
  const std::int64_t length = ids.size(1);
  if (length > options.length)
    fail(model_, fmt::format("expected at most {} positions but got ids {}", options.length, to_string(ids.shape())));
  if (position_ids.defined() && position_ids.shape() != ids.shape())
    fail(model_, fmt::format("expected a position for each of ids {} but got {}", to_string(ids.shape()), to_string(position_ids.shape())));
  const bool has_table = positions || sinusoids.defined();
  if (position_ids.defined() && !has_table) fail(model_, "expected no position_ids: the model has no table of positions");
  const bool is_continued = cache && !cache->empty();
  const bool has_mixers = std::any_of(blocks.begin(), blocks.end(), [](const TransformerLayer& block) { return block.mixer.has_value(); });
  // Mixers read key_lengths as they are.
  const AttentionMask mask = is_continued || has_mixers ? visible : mask_of_layers(visible, length, dtype());
  AttentionMask memory_mask;
  if (cache) cache->begin(ids);
  if (memory.states.defined()) {
    if (cache) memory_mask = cache->memory_mask([&] { return shared_by_layers(memory.mask); });
    else memory_mask = mask_of_layers(memory.mask, memory.states.size(1), dtype());
  }
  ResidualStream stream{embedded(ids, is_continued && has_table && !position_ids.defined() ? cache->positions() : position_ids)};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (cache) {
      const LayerCache layer = cache->layer(i);
      blocks[i].forward(stream, mask, memory.states, memory_mask, &layer);
    } else {
      forward_block(blocks[i], stream, mask, memory.states, memory_mask);
    }
  }
  if (cache) cache->end();
  return norm ? stream.normalized(*norm) : stream.value();
}

KvCache TransformerModel::cache(std::int64_t batch, std::int64_t capacity, std::int64_t memory_capacity) const {
  if (capacity > options.length)
    fail(model_, fmt::format("expected a cache of at most {} tokens, the model's length, but got {}", options.length, capacity));
  return {batch, capacity, blocks.size(), tokens.device(), memory_capacity};
}

Tensor reset_position_ids(const Tensor& prefix, std::int64_t length, std::int64_t start, std::int64_t last) {
  if (prefix.dims() != 1 || prefix.dtype() != DType::i64)
    fail("reset_position_ids", fmt::format("expected prefixes (B) of i64 but got {} {}", name(prefix.dtype()), to_string(prefix.shape())));
  const Tensor columns = reshape(arange(length, DType::i64, prefix.device()), {1, length}), ends = unsqueeze(prefix, 1);
  return minimum(where(lt(columns, ends), columns, columns - ends + static_cast<double>(start)), static_cast<double>(last));
}

DecoderLM::DecoderLM(const DecoderLMOptions& options_) : Callable(options_, "DecoderLM") {
  head = Linear(options.width, options.vocab, options.head_bias, options.device);
  if (options.tied_head) head.weight = tokens.weight;
  initialize(named_parameters(*this), options, 2 * options.layers);
}

void DecoderLM::visit(Visitor& v) {
  TransformerModel::visit(v);
  v("head", head);
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

EncoderDecoder::EncoderDecoder(const EncoderDecoderOptions& options_) : options(options_) {
  if (!options.mixers.empty()) fail("EncoderDecoder", "expected no mixers: an encoder's tokens see all others");
  if (options.encoder_layers < 0) fail("EncoderDecoder", fmt::format("expected encoder_layers >= 0 but got {}", options.encoder_layers));
  if (options.encoder_layers == 0) options.encoder_layers = options.layers;
  TransformerOptions below = options;
  below.layers = options.encoder_layers;
  encoder = TransformerModel(below, "EncoderDecoder");
  decoder = TransformerModel(options, "EncoderDecoder", true, &encoder.tokens);
  head = Linear(options.width, options.vocab, options.head_bias, options.device);
  if (options.tied_head) head.weight = decoder.tokens.weight;
  std::vector<NamedTensor> of_encoder, of_decoder;
  for (const NamedTensor& entry : named_parameters(*this)) (entry.name.starts_with("encoder.") ? of_encoder : of_decoder).push_back(entry);
  initialize(of_encoder, options, 2 * options.encoder_layers);
  initialize(of_decoder, options, 3 * options.layers);
}

void EncoderDecoder::visit(Visitor& v) {
  v("encoder", encoder);
  v("decoder", decoder);
  v("head", head);
}

Memory EncoderDecoder::encode(const Tensor& src_ids, const Tensor& src_lengths) const {
  const ModuleScope scope(this, "EncoderDecoder");
  const bool are_counts = src_lengths.defined() && (src_lengths.dtype() == DType::i64 || src_lengths.dtype() == DType::i32);
  if (src_lengths.defined() && (!are_counts || src_lengths.dims() != 1 || src_ids.dims() != 2 || src_lengths.size(0) != src_ids.size(0)))
    fail("EncoderDecoder", fmt::format("expected src_lengths (B) of i64 or i32, one for each row of src_ids {}, but got {} {}",
                                       to_string(src_ids.shape()), name(src_lengths.dtype()), to_string(src_lengths.shape())));
  const AttentionMask mask{.key_lengths = are_counts ? cast(src_lengths, DType::i64) : Tensor()};
  return {encoder.hidden(src_ids, mask), mask};
}

Tensor EncoderDecoder::hidden(const Tensor& tgt_ids, const Memory& memory, KvCache* cache) const {
  const ModuleScope scope(this, "EncoderDecoder");
  if (!memory.states.defined()) fail("EncoderDecoder", "expected a memory, which encode gives, but got none");
  return decoder.hidden(tgt_ids, {.causal = true}, {}, cache, memory);
}

Tensor EncoderDecoder::forward(const Tensor& tgt_ids, const Memory& memory) const {
  const Tensor x = hidden(tgt_ids, memory);
  const ModuleScope scope(this, "EncoderDecoder");
  return head.forward(x);
}

Tensor EncoderDecoder::forward(const Tensor& src_ids, const Tensor& src_lengths, const Tensor& tgt_ids) const {
  return forward(tgt_ids, encode(src_ids, src_lengths));
}

Tensor EncoderDecoder::loss(const Tensor& src_ids, const Tensor& src_lengths, const Tensor& tgt_ids, const Tensor& labels,
                            const CrossEntropyOptions& loss_options) const {
  const Tensor x = hidden(tgt_ids, encode(src_ids, src_lengths));
  const ModuleScope scope(this, "EncoderDecoder");
  return head.cross_entropy(x, labels, loss_options);
}

}  // namespace tern::nn
