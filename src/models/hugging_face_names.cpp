#include "models/hugging_face_names.h"

#include <fmt/format.h>

#include <span>

namespace tern::models {

namespace {

/// A size of a tensor, given by the model's options.
enum class Size : std::uint8_t { none, vocab, length, width, ff, queries, keys, projection };

/// A row of a table of names, with "{}" for the number of the layer.
struct NameRow {
  const char* theirs;
  const char* ours;
  Size out, in = Size::none;
  bool transposed = false;
};

constexpr NameRow gpt2_names[] = {
    {"transformer.wte.weight", "tokens.weight", Size::vocab, Size::width},
    {"transformer.wpe.weight", "positions.weight", Size::length, Size::width},
    {"transformer.h.{}.ln_1.weight", "blocks.{}.norm1.weight", Size::width},
    {"transformer.h.{}.ln_1.bias", "blocks.{}.norm1.bias", Size::width},
    {"transformer.h.{}.attn.c_attn.weight", "blocks.{}.attn.qkv.weight", Size::projection, Size::width, true},
    {"transformer.h.{}.attn.c_attn.bias", "blocks.{}.attn.qkv.bias", Size::projection},
    {"transformer.h.{}.attn.c_proj.weight", "blocks.{}.attn.proj.weight", Size::width, Size::queries, true},
    {"transformer.h.{}.attn.c_proj.bias", "blocks.{}.attn.proj.bias", Size::width},
    {"transformer.h.{}.ln_2.weight", "blocks.{}.norm2.weight", Size::width},
    {"transformer.h.{}.ln_2.bias", "blocks.{}.norm2.bias", Size::width},
    {"transformer.h.{}.mlp.c_fc.weight", "blocks.{}.ff.fc.weight", Size::ff, Size::width, true},
    {"transformer.h.{}.mlp.c_fc.bias", "blocks.{}.ff.fc.bias", Size::ff},
    {"transformer.h.{}.mlp.c_proj.weight", "blocks.{}.ff.proj.weight", Size::width, Size::ff, true},
    {"transformer.h.{}.mlp.c_proj.bias", "blocks.{}.ff.proj.bias", Size::width},
    {"transformer.ln_f.weight", "norm.weight", Size::width},
    {"transformer.ln_f.bias", "norm.bias", Size::width},
    {"lm_head.weight", "head.weight", Size::vocab, Size::width},
};

constexpr NameRow llama_names[] = {
    {"model.embed_tokens.weight", "tokens.weight", Size::vocab, Size::width},
    {"model.layers.{}.input_layernorm.weight", "blocks.{}.norm1.weight", Size::width},
    {"model.layers.{}.self_attn.q_proj.weight", "blocks.{}.attn.qkv.weight", Size::queries, Size::width},
    {"model.layers.{}.self_attn.k_proj.weight", "blocks.{}.attn.qkv.weight", Size::keys, Size::width},
    {"model.layers.{}.self_attn.v_proj.weight", "blocks.{}.attn.qkv.weight", Size::keys, Size::width},
    {"model.layers.{}.self_attn.q_proj.bias", "blocks.{}.attn.qkv.bias", Size::queries},
    {"model.layers.{}.self_attn.k_proj.bias", "blocks.{}.attn.qkv.bias", Size::keys},
    {"model.layers.{}.self_attn.v_proj.bias", "blocks.{}.attn.qkv.bias", Size::keys},
    {"model.layers.{}.self_attn.o_proj.weight", "blocks.{}.attn.proj.weight", Size::width, Size::queries},
    {"model.layers.{}.self_attn.o_proj.bias", "blocks.{}.attn.proj.bias", Size::width},
    {"model.layers.{}.post_attention_layernorm.weight", "blocks.{}.norm2.weight", Size::width},
    {"model.layers.{}.mlp.gate_proj.weight", "blocks.{}.ff.gate.weight", Size::ff, Size::width},
    {"model.layers.{}.mlp.gate_proj.bias", "blocks.{}.ff.gate.bias", Size::ff},
    {"model.layers.{}.mlp.up_proj.weight", "blocks.{}.ff.fc.weight", Size::ff, Size::width},
    {"model.layers.{}.mlp.up_proj.bias", "blocks.{}.ff.fc.bias", Size::ff},
    {"model.layers.{}.mlp.down_proj.weight", "blocks.{}.ff.proj.weight", Size::width, Size::ff},
    {"model.layers.{}.mlp.down_proj.bias", "blocks.{}.ff.proj.bias", Size::width},
    {"model.norm.weight", "norm.weight", Size::width},
    {"lm_head.weight", "head.weight", Size::vocab, Size::width},
};

std::int64_t size_of(Size size, const nn::DecoderLMOptions& o) {
  const std::int64_t head_dim = o.head_dim > 0 ? o.head_dim : o.width / o.heads;
  const std::int64_t queries = o.heads * head_dim, keys = (o.kv_heads > 0 ? o.kv_heads : o.heads) * head_dim;
  switch (size) {
    case Size::vocab: return o.vocab;
    case Size::length: return o.length;
    case Size::width: return o.width;
    case Size::ff: return o.ff;
    case Size::queries: return queries;
    case Size::keys: return keys;
    case Size::projection: return queries + 2 * keys;
    case Size::none: break;
  }
  return 1;
}

/// Replaces "{}" by the number of a layer.
std::string numbered(std::string_view name, std::int64_t layer) {
  const std::size_t place = name.find("{}");
  if (place == name.npos) return std::string(name);
  return fmt::format("{}{}{}", name.substr(0, place), layer, name.substr(place + 2));
}

}  // namespace

std::string_view name_prefix(Architecture architecture) { return architecture == Architecture::gpt2 ? "transformer." : "model."; }

std::vector<TensorName> tensor_names(const HuggingFaceConfig& config) {
  const nn::DecoderLMOptions& o = config.options;
  const std::span<const NameRow> table =
      config.architecture == Architecture::gpt2 ? std::span<const NameRow>(gpt2_names) : std::span<const NameRow>(llama_names);
  std::vector<TensorName> result;
  const auto add = [&](const NameRow& row, std::int64_t layer) {
    Shape shape = {size_of(row.out, o)};
    if (row.in != Size::none) shape.insert(row.transposed ? 0 : 1, size_of(row.in, o));
    result.push_back({numbered(row.theirs, layer), numbered(row.ours, layer), std::move(shape), row.transposed});
  };
  const auto is_of_layer = [](const NameRow& row) { return std::string_view(row.ours).starts_with("blocks."); };
  const auto is_present = [&](const NameRow& row) {
    const std::string_view ours = row.ours;
    return (o.bias || !ours.ends_with(".bias")) && (!o.tied_head || ours != "head.weight");
  };
  for (const NameRow& row : table)
    if (!is_of_layer(row) && is_present(row)) add(row, 0);
  for (std::int64_t layer = 0; layer < o.layers; ++layer)
    for (const NameRow& row : table)
      if (is_of_layer(row) && is_present(row)) add(row, layer);
  return result;
}

bool is_ignored(std::string_view theirs, const HuggingFaceConfig& config) {
  if (theirs == "lm_head.weight") return config.options.tied_head;
  if (config.architecture == Architecture::gpt2) return theirs.ends_with(".attn.bias") || theirs.ends_with(".attn.masked_bias");
  return theirs.ends_with(".rotary_emb.inv_freq");
}

}  // namespace tern::models
