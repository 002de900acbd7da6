#include "models/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files.h"
#include "io/json_object.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"
#include "nn/init.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "text/chat_template.h"

namespace tern::models {

using io::quote_name;

namespace {

using detail::Architecture, detail::HuggingFaceConfig, detail::TensorName, detail::tensor_names;

/// A size of a tensor, given by the model's options.
enum class Size : std::uint8_t { none, vocab, length, width, ff, queries, keys, projection };

/// A row of a table of names, with "{}" for the number of the layer.
struct NameRow {
  const char *theirs, *gguf;
  const char* ours;
  Size out, in = Size::none;
  bool transposed = false;
};

constexpr NameRow gpt2_names[] = {
    {"transformer.wte.weight", "token_embd.weight", "tokens.weight", Size::vocab, Size::width},
    {"transformer.wpe.weight", "position_embd.weight", "positions.weight", Size::length, Size::width},
    {"transformer.h.{}.ln_1.weight", "blk.{}.attn_norm.weight", "blocks.{}.norm1.weight", Size::width},
    {"transformer.h.{}.ln_1.bias", "blk.{}.attn_norm.bias", "blocks.{}.norm1.bias", Size::width},
    {"transformer.h.{}.attn.c_attn.weight", "blk.{}.attn_qkv.weight", "blocks.{}.attn.qkv.weight", Size::projection, Size::width, true},
    {"transformer.h.{}.attn.c_attn.bias", "blk.{}.attn_qkv.bias", "blocks.{}.attn.qkv.bias", Size::projection},
    {"transformer.h.{}.attn.c_proj.weight", "blk.{}.attn_output.weight", "blocks.{}.attn.proj.weight", Size::width, Size::queries, true},
    {"transformer.h.{}.attn.c_proj.bias", "blk.{}.attn_output.bias", "blocks.{}.attn.proj.bias", Size::width},
    {"transformer.h.{}.ln_2.weight", "blk.{}.ffn_norm.weight", "blocks.{}.norm2.weight", Size::width},
    {"transformer.h.{}.ln_2.bias", "blk.{}.ffn_norm.bias", "blocks.{}.norm2.bias", Size::width},
    {"transformer.h.{}.mlp.c_fc.weight", "blk.{}.ffn_up.weight", "blocks.{}.ff.fc.weight", Size::ff, Size::width, true},
    {"transformer.h.{}.mlp.c_fc.bias", "blk.{}.ffn_up.bias", "blocks.{}.ff.fc.bias", Size::ff},
    {"transformer.h.{}.mlp.c_proj.weight", "blk.{}.ffn_down.weight", "blocks.{}.ff.proj.weight", Size::width, Size::ff, true},
    {"transformer.h.{}.mlp.c_proj.bias", "blk.{}.ffn_down.bias", "blocks.{}.ff.proj.bias", Size::width},
    {"transformer.ln_f.weight", "output_norm.weight", "norm.weight", Size::width},
    {"transformer.ln_f.bias", "output_norm.bias", "norm.bias", Size::width},
    {"lm_head.weight", "output.weight", "head.weight", Size::vocab, Size::width},
};

constexpr NameRow llama_names[] = {
    {"model.embed_tokens.weight", "token_embd.weight", "tokens.weight", Size::vocab, Size::width},
    {"model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight", "blocks.{}.norm1.weight", Size::width},
    {"model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight", "blocks.{}.attn.qkv.weight", Size::queries, Size::width},
    {"model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight", "blocks.{}.attn.qkv.weight", Size::keys, Size::width},
    {"model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight", "blocks.{}.attn.qkv.weight", Size::keys, Size::width},
    {"model.layers.{}.self_attn.q_proj.bias", "blk.{}.attn_q.bias", "blocks.{}.attn.qkv.bias", Size::queries},
    {"model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias", "blocks.{}.attn.qkv.bias", Size::keys},
    {"model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias", "blocks.{}.attn.qkv.bias", Size::keys},
    {"model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight", "blocks.{}.attn.proj.weight", Size::width, Size::queries},
    {"model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias", "blocks.{}.attn.proj.bias", Size::width},
    {"model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight", "blocks.{}.norm2.weight", Size::width},
    {"model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight", "blocks.{}.ff.gate.weight", Size::ff, Size::width},
    {"model.layers.{}.mlp.gate_proj.bias", "blk.{}.ffn_gate.bias", "blocks.{}.ff.gate.bias", Size::ff},
    {"model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight", "blocks.{}.ff.fc.weight", Size::ff, Size::width},
    {"model.layers.{}.mlp.up_proj.bias", "blk.{}.ffn_up.bias", "blocks.{}.ff.fc.bias", Size::ff},
    {"model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight", "blocks.{}.ff.proj.weight", Size::width, Size::ff},
    {"model.layers.{}.mlp.down_proj.bias", "blk.{}.ffn_down.bias", "blocks.{}.ff.proj.bias", Size::width},
    {"model.norm.weight", "output_norm.weight", "norm.weight", Size::width},
    {"lm_head.weight", "output.weight", "head.weight", Size::vocab, Size::width},
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

/// The prefix of an architecture's names, "transformer." or "model.". Files of a model without a head omit it.
std::string_view name_prefix(Architecture architecture) { return architecture == Architecture::gpt2 ? "transformer." : "model."; }

}  // namespace

std::vector<TensorName> detail::tensor_names(const HuggingFaceConfig& config) {
  const nn::DecoderLMOptions& o = config.options;
  const std::span<const NameRow> table =
      config.architecture == Architecture::gpt2 ? std::span<const NameRow>(gpt2_names) : std::span<const NameRow>(llama_names);
  std::vector<TensorName> result;
  const auto add = [&](const NameRow& row, std::int64_t layer) {
    Shape shape = {size_of(row.out, o)};
    if (row.in != Size::none) shape.insert(row.transposed ? 0 : 1, size_of(row.in, o));
    result.push_back({numbered(row.theirs, layer), numbered(row.gguf, layer), numbered(row.ours, layer), std::move(shape), row.transposed});
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

namespace {

/// True for a tensor of a file that is not in tensor_names and may be ignored: masks and tables of older files, and the head of a model
/// that ties it to the token table.
bool is_ignored(std::string_view theirs, const HuggingFaceConfig& config) {
  if (theirs == "lm_head.weight") return config.options.tied_head;
  if (config.architecture == Architecture::gpt2) return theirs.ends_with(".attn.bias") || theirs.ends_with(".attn.masked_bias");
  return theirs.ends_with(".rotary_emb.inv_freq");
}

/// The parameters by name. Each is read or written from its first row to its last.
class Parameters {
 public:
  explicit Parameters(const nn::DecoderLM& model) {
    for (NamedTensor& entry : nn::named_parameters(model)) by_name_.emplace(std::move(entry.name), Entry{std::move(entry.tensor)});
  }
  /// A view of the parameter's next rows, for a tensor of a file. Throws Error if the model has no such rows.
  Tensor next_rows(const TensorName& name) {
    const auto found = by_name_.find(name.ours);
    const std::int64_t rows = name.shape[name.transposed ? 1 : 0];
    if (found == by_name_.end() || found->second.rows + rows > found->second.parameter.size(0))
      fail("hugging_face", fmt::format("expected a model with {} as its options say: is it quantised or changed?", quote_name(name.ours)));
    Entry& entry = found->second;
    const Tensor part = slice(entry.parameter.detach(), 0, entry.rows, entry.rows + rows);
    entry.rows += rows;
    return part;
  }
  /// Throws Error unless next_rows() has returned every row of every parameter.
  void check_complete() const {
    for (const auto& [name, entry] : by_name_)
      if (entry.rows != entry.parameter.size(0))
        fail("hugging_face", fmt::format("expected a model without {}, which its options do not say", quote_name(name)));
  }

 private:
  struct Entry {
    Tensor parameter;
    std::int64_t rows = 0;  ///< rows that have been returned
  };
  std::map<std::string, Entry> by_name_;
};

/// The names of tensors in the files, which lack the prefix if the model was saved without a head.
std::vector<TensorName> names_in(const io::SafetensorsFiles& files, const HuggingFaceConfig& config) {
  std::vector<TensorName> names = tensor_names(config);
  const std::string_view prefix = name_prefix(config.architecture);
  if (files.tensors().contains(names.front().theirs) || !names.front().theirs.starts_with(prefix)) return names;
  if (!files.tensors().contains(names.front().theirs.substr(prefix.size()))) return names;
  for (TensorName& name : names)
    if (name.theirs.starts_with(prefix)) name.theirs.erase(0, prefix.size());
  return names;
}

void check(const io::SafetensorsFiles& files, const std::vector<TensorName>& names, const HuggingFaceConfig& config) {
  std::map<std::string_view, const TensorName*> wanted;
  for (const TensorName& name : names) wanted.emplace(name.theirs, &name);
  const auto& tensors = files.tensors();
  for (const TensorName& name : names) {
    const auto found = tensors.find(name.theirs);
    if (found == tensors.end())
      throw io::FileError(
          fmt::format("{}: lacks tensor {}, which config.json asks for: is it of another model?", files.name(), quote_name(name.theirs)));
    if (found->second.shape != name.shape)
      throw io::FileError(fmt::format("{}: tensor {}: expected shape {}, by config.json, but the file has {}", files.file_of(name.theirs),
                                      quote_name(name.theirs), to_string(name.shape), to_string(found->second.shape)));
    if (!is_floating(found->second.dtype))
      throw io::FileError(fmt::format("{}: tensor {}: expected a floating dtype but the file has {}: load the model that is not quantised",
                                      files.file_of(name.theirs), quote_name(name.theirs), tern::name(found->second.dtype)));
  }
  for (const auto& [theirs, info] : tensors)
    if (!wanted.contains(theirs) && !is_ignored(theirs, config))
      throw io::FileError(fmt::format("{}: has tensor {}, which the model of config.json has no place for: is it of another model?",
                                      files.file_of(theirs), quote_name(theirs)));
}

/// True if the files have a head whose numbers are not those of the token table. Rows are compared in blocks, to bound the memory of casts.
bool has_own_head(const io::SafetensorsFiles& files, const std::string& table_name) {
  const auto head = files.tensors().find("lm_head.weight"), table = files.tensors().find(table_name);
  if (head == files.tensors().end() || table == files.tensors().end()) return false;
  if (head->second.shape != table->second.shape || head->second.shape.size() != 2 || !is_floating(head->second.dtype) ||
      !is_floating(table->second.dtype))
    return true;  // check() says what is wrong
  const Tensor a = files.read(head->first), b = files.read(table->first);
  constexpr std::int64_t block = 1024;
  for (std::int64_t row = 0; row < a.size(0); row += block) {
    const auto rows = [&](const Tensor& x) { return cast(slice(x, 0, row, std::min(row + block, x.size(0))), DType::f64); };
    if (sum(ne(rows(a), rows(b))).item<std::int64_t>() > 0) return true;
  }
  return false;
}

}  // namespace

static std::string path_of_config(const std::string& directory) { return std::filesystem::path(directory) / "config.json"; }

static HuggingFaceConfig read_config(const std::string& path) { return detail::parse_config(io::read_file(path), path); }

nn::DecoderLMOptions hugging_face_shape(const std::string& directory) { return read_config(path_of_config(directory)).options; }

nn::DecoderLM load_hugging_face(const std::string& directory, const LoadOptions& options) {
  constexpr const char* where = "load_hugging_face";
  if (!is_floating(options.dtype)) fail(where, fmt::format("expected a floating dtype but got {}", name(options.dtype)));
  if (options.length < 0) fail(where, fmt::format("expected a length >= 0 but got {}", options.length));
  const std::string config_path = path_of_config(directory);
  HuggingFaceConfig config = read_config(config_path);
  if (options.length > 0) {
    if (config.options.positions != nn::Positions::rotary && options.length != config.options.length)
      fail(where, fmt::format("expected length 0 or {}, as the model has learned that many positions, but got {}", config.options.length,
                              options.length));
    config.options.length = options.length;
  }
  constexpr std::int64_t max_length = std::int64_t{1} << 24;
  if (config.options.length > max_length)
    throw io::FileError(
        fmt::format("{}: \"max_position_embeddings\": expected at most {} positions, of which a table is made, but got {}: give "
                    "LoadOptions::length",
                    config_path, max_length, config.options.length));
  config.options.device = options.device;
  const io::SafetensorsFiles files(directory);
  if (static_cast<std::uint64_t>(config.options.layers) > files.tensors().size())
    throw io::FileError(fmt::format("{}: expected tensors of {} layers, by config.json, but there are only {} tensors", files.name(),
                                    config.options.layers, files.tensors().size()));
  const NoGrad unrecorded;
  std::vector<TensorName> names = names_in(files, config);
  // As in transformers, a head that is stored is the model's, whatever config.json says.
  if (config.options.tied_head && has_own_head(files, names.front().theirs)) {
    config.options.tied_head = false;
    names = names_in(files, config);
  }
  check(files, names, config);

  const nn::init::Unset unset;
  nn::DecoderLM model(config.options);
  nn::to(model, options.dtype);
  Parameters parameters(model);
  for (const TensorName& name : names) {
    const Tensor theirs = files.read(name.theirs);
    if (io::becomes_infinite(theirs, options.dtype))
      throw io::FileError(fmt::format("{}: tensor {}: expected numbers that {} holds but the file has larger ones, in {}: load it as {}",
                                      files.file_of(name.theirs), quote_name(name.theirs), tern::name(options.dtype),
                                      tern::name(theirs.dtype()), tern::name(theirs.dtype())));
    const Tensor target = parameters.next_rows(name);
    copy_(name.transposed ? transpose(target, 0, 1) : target, theirs);
  }
  parameters.check_complete();
  model.eval();
  return model;
}

namespace {

/// Files of a model by their names.
using Texts = std::map<std::string, std::string>;

void save(const nn::DecoderLM& model, const std::string& directory, std::uint64_t max_file_bytes, Texts texts,
          const std::vector<std::int64_t>& begin, const std::vector<std::int64_t>& ends) {
  const HuggingFaceConfig config = detail::config_of(model.options);
  const NoGrad unrecorded;
  Parameters parameters(model);
  std::vector<NamedTensor> tensors;
  for (const TensorName& name : tensor_names(config)) {
    const Tensor ours = parameters.next_rows(name);
    tensors.push_back({name.theirs, name.transposed ? transpose(ours, 0, 1) : ours});
  }
  parameters.check_complete();
  texts["config.json"] = detail::config_text(config, model.dtype(), begin, ends);
  // transformers refuses a file without the metadata.
  io::save_safetensors_files(directory, tensors, {.max_file_bytes = max_file_bytes, .metadata = {{"format", "pt"}}, .texts = texts});
}

/// The ids of a key of a configuration, which may hold one, several or null, that a model of `vocab` tokens has.
std::vector<std::int64_t> ids_of(const io::JsonObject& config, const char* key, std::int64_t vocab) {
  std::vector<std::int64_t> ids;
  try {
    if (config.contains(key)) ids = {config.get_int(key)};
  } catch (const io::FileError&) {
    try {
      ids = config.get_ints(key);
    } catch (const io::FileError&) {
    }
  }
  std::erase_if(ids, [vocab](std::int64_t id) { return id < 0 || id >= vocab; });
  return ids;
}

}  // namespace

void save_hugging_face(const nn::DecoderLM& model, const std::string& directory, std::uint64_t max_file_bytes) {
  save(model, directory, max_file_bytes, {}, {}, {});
}

void save_language_model(const LanguageModel& model, const std::string& directory) {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"model_max_length", model.model.options.length},
                                   {"clean_up_tokenization_spaces", false}};
  const auto token = [&](const char* key, const std::vector<std::int64_t>& ids) {
    if (!ids.empty()) config[key] = model.tokenizer.id_to_token(static_cast<std::int32_t>(ids.front()));
  };
  token("bos_token", model.begin);
  token("eos_token", model.ends);
  if (!model.chat_template.empty()) config["chat_template"] = model.chat_template;
  const Texts texts = {{"tokenizer.json", model.tokenizer.to_json()}, {"tokenizer_config.json", config.dump(2) + "\n"}};
  save(model.model, directory, default_file_bytes, texts, model.begin, model.ends);
}

LanguageModel load_language_model(const std::string& directory, const LoadOptions& options) {
  const std::filesystem::path files = directory;
  LanguageModel result{.model = load_hugging_face(directory, options),
                       .tokenizer = text::Tokenizer::load((files / "tokenizer.json").string())};
  const std::int64_t vocab = result.model.options.vocab, known = static_cast<std::int64_t>(result.tokenizer.vocab_size());
  if (vocab < known)
    throw io::FileError(fmt::format("{}: expected a model of at least the {} tokens of its tokenizer but got {}", directory, known, vocab));
  const io::JsonObject config = io::read_json(path_of_config(directory));
  result.begin = ids_of(config, "bos_token_id", vocab);
  result.ends = ids_of(config, "eos_token_id", vocab);
  std::error_code ignored;
  if (const auto generation = files / "generation_config.json"; std::filesystem::exists(generation, ignored))
    for (const std::int64_t id : ids_of(io::read_json(generation), "eos_token_id", vocab))
      if (std::find(result.ends.begin(), result.ends.end(), id) == result.ends.end()) result.ends.push_back(id);
  constexpr std::size_t most = std::size_t{1} << 24;
  if (const auto file = files / "chat_template.jinja"; std::filesystem::exists(file, ignored))
    result.chat_template = io::read_file(file.string(), most);
  else if (const std::string tokenizer = (files / "tokenizer_config.json").string(); std::filesystem::exists(tokenizer, ignored))
    result.chat_template = text::chat_template_of(io::read_file(tokenizer, most), tokenizer);
  return result;
}

}  // namespace tern::models
