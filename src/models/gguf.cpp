#include "models/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <set>
#include <utility>
#include <vector>

#include "io/files.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"
#include "models/hugging_face.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/quantize.h"
#include "ops/view.h"

namespace tern::models {

using detail::Architecture, detail::HuggingFaceConfig, detail::TensorName;
using io::GgufEntry, io::GgufFormat, io::GgufValue, io::quote_name;

namespace {

constexpr const char* frequencies_name = "rope_freqs.weight";
constexpr const char *original_length_key = "rope.scaling.original_context_length", *low_turns_key = "tern.rope.low_turns",
                     *high_turns_key = "tern.rope.high_turns";

std::int64_t head_dim(const nn::DecoderLMOptions& o) { return o.head_dim > 0 ? o.head_dim : o.width / o.heads; }

Shape shape_in_file(const TensorName& name) { return name.transposed ? Shape{name.shape[1], name.shape[0]} : name.shape; }

/// True for the queries and keys of a Llama. llama.cpp rotates element 2 i of a head with 2 i + 1 where DecoderLM, as transformers, rotates
/// i with i + head_dim / 2: Note [Order of rotated rows].
bool is_rotated(const TensorName& name) {
  return name.gguf.find(".attn_q.") != name.gguf.npos || name.gguf.find(".attn_k.") != name.gguf.npos;
}

/// Note [Order of rotated rows]: in a file, the two halves of each head's rows are interleaved, so that a pair's rows are neighbours
/// (LlamaModel.permute in convert_hf_to_gguf.py). A row of blocks moves as a whole.
Tensor reordered(const Tensor& rows, std::int64_t head, bool to_file) {
  const std::int64_t heads = rows.size(0) / head, in = rows.dims() == 1 ? 1 : rows.size(1);
  const Shape from = to_file ? Shape{heads, 2, head / 2, in} : Shape{heads, head / 2, 2, in};
  return reshape(contiguous(transpose(reshape(rows, from), 1, 2)), rows.shape());
}

/// The factors by which the frequencies of a Llama 3 are divided, as transformers computes them.
Tensor frequency_factors(const nn::DecoderLMOptions& o) {
  const RopeScaling& s = o.rope_scaling;
  const std::int64_t head = head_dim(o);
  std::vector<float> factors;
  for (std::int64_t i = 0; i < head; i += 2) {
    const double frequency = std::pow(o.rope_base, -static_cast<double>(i) / static_cast<double>(head));
    const double turns = frequency * static_cast<double>(s.original_length) / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - s.low_turns) / (s.high_turns - s.low_turns), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - kept) / s.factor + kept)));
  }
  return Tensor::from(factors, {head / 2});
}

/// A matrix that may be quantised, and the layers that own it: the token table and a tied head are one.
struct Matrix {
  Tensor* weight;
  nn::QuantizedForm* quantized;
};

struct Matrices final : nn::Visitor {
  explicit Matrices(const nn::DecoderLM& model) { walk(const_cast<nn::DecoderLM&>(model)); }  // visit is not const, but this only reads
  void on_module(const std::string& path, nn::Module& module) override {
    if (auto* const layer = dynamic_cast<nn::Linear*>(&module); layer && layer->defined())
      by_name[path + ".weight"] = {&layer->weight, &layer->quantized};
    if (auto* const table = dynamic_cast<nn::Embedding*>(&module)) by_name[path + ".weight"] = {&table->weight, &table->quantized};
  }
  std::map<std::string, Matrix> by_name;
};

QuantFormat blocks_of(GgufFormat format) { return format == GgufFormat::q4_0 ? QuantFormat::q4_0 : QuantFormat::q8_0; }
bool is_quantized(GgufFormat format) { return format == GgufFormat::q4_0 || format == GgufFormat::q8_0; }

/// The format of a tensor in a file of `format`: see save_gguf.
GgufFormat format_of(const TensorName& name, GgufFormat format, bool is_tied) {
  if (name.shape.size() == 1 || name.gguf == "position_embd.weight") return GgufFormat::f32;
  if (!is_quantized(format)) return format;
  if (shape_in_file(name)[1] % quant_block != 0) return GgufFormat::f16;
  const bool is_head = name.gguf == "output.weight" || (is_tied && name.gguf == "token_embd.weight");
  return is_head ? GgufFormat::q8_0 : format;
}

io::GgufMetadata metadata_of(const HuggingFaceConfig& config, GgufFormat format) {
  const nn::DecoderLMOptions& o = config.options;
  const bool is_llama = config.architecture == Architecture::llama;
  const std::string name = is_llama ? "llama" : "gpt2";
  const auto count = [](std::int64_t value) { return GgufValue::of(static_cast<std::uint32_t>(value)); };
  io::GgufMetadata metadata;
  metadata["general.architecture"] = GgufValue::of(name);
  metadata["general.type"] = GgufValue::of("model");
  const std::uint32_t file_type = format == GgufFormat::f32    ? 0
                                  : format == GgufFormat::f16  ? 1
                                  : format == GgufFormat::q4_0 ? 2
                                  : format == GgufFormat::q8_0 ? 7
                                                               : 32;  // llama_ftype
  metadata["general.file_type"] = GgufValue::of(file_type);
  if (is_quantized(format)) metadata["general.quantization_version"] = GgufValue::of(std::uint32_t{2});
  const std::pair<const char*, std::int64_t> sizes[] = {{".vocab_size", o.vocab},
                                                        {".context_length", o.length},
                                                        {".embedding_length", o.width},
                                                        {".block_count", o.layers},
                                                        {".feed_forward_length", o.ff},
                                                        {".attention.head_count", o.heads},
                                                        {".attention.head_count_kv", o.kv_heads > 0 ? o.kv_heads : o.heads}};
  for (const auto& [key, value] : sizes) metadata[name + key] = count(value);
  metadata[name + (is_llama ? ".attention.layer_norm_rms_epsilon" : ".attention.layer_norm_epsilon")] =
      GgufValue::of(static_cast<float>(o.layer_norm_eps));
  if (!is_llama) return metadata;
  for (const char* key : {".rope.dimension_count", ".attention.key_length", ".attention.value_length"})
    metadata[name + key] = count(head_dim(o));
  metadata[name + ".rope.freq_base"] = GgufValue::of(static_cast<float>(o.rope_base));
  const RopeScaling& s = o.rope_scaling;
  if (s.original_length > 0) {
    metadata[name + '.' + original_length_key] = count(s.original_length);
    metadata[low_turns_key] = GgufValue::of(static_cast<float>(s.low_turns));
    metadata[high_turns_key] = GgufValue::of(static_cast<float>(s.high_turns));
  } else if (s.factor != 1) {
    metadata[name + ".rope.scaling.type"] = GgufValue::of("linear");
    metadata[name + ".rope.scaling.factor"] = GgufValue::of(static_cast<float>(s.factor));
  }
  return metadata;
}

/// The options that a file's metadata and the names of its tensors say.
HuggingFaceConfig read_config(const io::GgufFile& file) {
  const detail::GgufKeys keys(file.metadata(), file.path());
  const std::string name = keys.text("general.architecture", nullptr);
  if (name != "gpt2" && name != "llama")
    keys.fail("general.architecture",
              fmt::format("expected gpt2 or llama, the models that tern loads (for others io::GgufFile reads tensors by name), but got {}",
                          quote_name(name)));
  const bool is_llama = name == "llama";
  HuggingFaceConfig config{is_llama ? Architecture::llama : Architecture::gpt2, {}};
  nn::DecoderLMOptions& o = config.options;
  const GgufEntry* const table = file.find("token_embd.weight");
  if (!table || table->shape.size() != 2) throw io::FileError(fmt::format("{}: lacks a matrix \"token_embd.weight\"", file.path()));
  o.vocab = table->shape[0];
  o.length = keys.integer(name + ".context_length");
  o.width = keys.integer(name + ".embedding_length");
  o.layers = keys.integer(name + ".block_count");
  o.ff = keys.integer(name + ".feed_forward_length");
  o.heads = keys.integer(name + ".attention.head_count");
  o.kv_heads = keys.integer_or(name + ".attention.head_count_kv", o.heads);
  o.dropout = 0;
  o.head_bias = false;
  o.tied_head = !file.find("output.weight");
  const double needed = std::numeric_limits<double>::quiet_NaN();
  if (is_llama) {
    if (keys.integer_or("llama.expert_count", 0, 0) > 0) keys.fail("llama.expert_count", "expected 0, for experts are not of tern");
    o.layer_norm_eps = keys.positive("llama.attention.layer_norm_rms_epsilon", needed);
    o.activation = nn::Activation::silu;
    o.gated = true;
    o.norm = nn::NormKind::rms;
    o.positions = nn::Positions::rotary;
    o.rope_pairs = RopePairs::halves;
    o.bias = file.find("blk.0.attn_q.bias") != nullptr;
    o.rope_base = keys.positive("llama.rope.freq_base", 10000);
    if (!keys.find("llama.attention.key_length") && o.width % o.heads != 0)
      keys.fail("llama.attention.head_count", fmt::format("expected a divisor of the width {} but got {}", o.width, o.heads));
    o.head_dim = keys.integer_or("llama.attention.key_length", o.width / o.heads);
    for (const char* key : {"llama.attention.value_length", "llama.rope.dimension_count"})
      if (keys.integer_or(key, o.head_dim) != o.head_dim) keys.fail(key, fmt::format("expected the size of a head, {}", o.head_dim));
    if (o.head_dim % 2 != 0) keys.fail("llama.attention.key_length", fmt::format("expected heads of an even size but got {}", o.head_dim));
    if (o.heads % o.kv_heads != 0)
      keys.fail("llama.attention.head_count_kv", fmt::format("expected a divisor of {} heads but got {}", o.heads, o.kv_heads));
    const std::string scaling = keys.text("llama.rope.scaling.type", "none");
    if (scaling != "none" && scaling != "linear")
      keys.fail("llama.rope.scaling.type",
                fmt::format("expected none or linear, the scalings of rotary positions that tern has, but got {}", quote_name(scaling)));
    o.rope_scaling.factor = keys.positive("llama.rope.scaling.factor", 1);
  } else {
    o.layer_norm_eps = keys.positive("gpt2.attention.layer_norm_epsilon", needed);
    o.activation = nn::Activation::gelu_tanh;
    o.positions = nn::Positions::learned;
    if (o.width % o.heads != 0 || o.kv_heads != o.heads)
      keys.fail("gpt2.attention.head_count",
                fmt::format("expected a divisor of the width {}, for queries and keys, but got {}", o.width, o.heads));
  }
  if (const GgufEntry* const factors = is_llama ? file.find(frequencies_name) : nullptr) {
    const auto fail = [&] {
      throw io::FileError(
          fmt::format("{}: tensor \"{}\": expected the factors of Llama 3's scaling but got others", file.path(), frequencies_name));
    };
    if (factors->format != GgufFormat::f32 || factors->shape != Shape{o.head_dim / 2}) fail();
    const std::vector<float> values = file.read(*factors).to_vector<float>();
    o.rope_scaling = {.factor = values.back(),
                      .original_length = keys.integer_or(name + '.' + original_length_key, 8192),
                      .low_turns = keys.positive(low_turns_key, 1),
                      .high_turns = keys.positive(high_turns_key, 4)};
    if (!(o.rope_scaling.factor >= 1) || o.rope_scaling.low_turns >= o.rope_scaling.high_turns) fail();
    const std::vector<float> expected = frequency_factors(o).to_vector<float>();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!(std::abs(values[i] - expected[i]) <= 1e-4F * expected[i])) fail();
  }
  return config;
}

/// Checks the tensors against the options, and returns those of the model in their order.
std::vector<const GgufEntry*> find_tensors(const io::GgufFile& file, const HuggingFaceConfig& config) {
  if (static_cast<std::uint64_t>(config.options.layers) > file.tensors().size())
    throw io::FileError(fmt::format("{}: expected tensors of {} layers, by the metadata, but there are only {} tensors", file.path(),
                                    config.options.layers, file.tensors().size()));
  std::set<std::string_view> wanted = {frequencies_name};
  std::vector<const GgufEntry*> found;
  const std::vector<TensorName> names = detail::tensor_names(config);
  for (const TensorName& name : names) {
    const GgufEntry* const entry = file.find(name.gguf);
    if (!entry) throw io::FileError(fmt::format("{}: lacks tensor {}, which the metadata asks for", file.path(), quote_name(name.gguf)));
    if (entry->shape != shape_in_file(name))
      throw io::FileError(fmt::format("{}: tensor {}: expected shape {}, by the metadata, but got {}", file.path(), quote_name(name.gguf),
                                      to_string(shape_in_file(name)), to_string(entry->shape)));
    wanted.insert(entry->name);
    found.push_back(entry);
  }
  for (const GgufEntry& entry : file.tensors())
    if (!wanted.contains(entry.name))
      throw io::FileError(
          fmt::format("{}: has tensor {}, which the model of the metadata has no place for", file.path(), quote_name(entry.name)));
  return found;
}

}  // namespace

void save_gguf(const LanguageModel& language_model, const std::string& path, GgufFormat of_matrices) {
  constexpr const char* where = "save_gguf";
  const nn::DecoderLM& model = language_model.model;
  const HuggingFaceConfig config = detail::config_of(model.options, where);
  const nn::DecoderLMOptions& o = config.options;
  const bool is_llama = config.architecture == Architecture::llama;
  const nn::Activation computed = is_llama ? nn::Activation::silu : nn::Activation::gelu_tanh;
  if (o.activation != computed)
    fail(where, fmt::format("expected {}, the activation that llama.cpp computes for such a model, but got {}", nn::name(computed),
                            nn::name(o.activation)));
  io::GgufMetadata metadata = metadata_of(config, of_matrices);
  detail::add_text(metadata, language_model);

  const NoGrad unrecorded;
  const Matrices matrices(model);
  std::map<std::string, Tensor> parameters;
  for (const NamedTensor& entry : nn::named_parameters(model)) parameters.emplace(entry.name, entry.tensor.detach());
  const std::vector<TensorName> names = detail::tensor_names(config);
  std::vector<GgufEntry> entries;
  std::vector<std::function<Tensor()>> contents;
  std::map<std::string, std::int64_t> rows;  // of each parameter that have been taken
  for (const TensorName& name : names) {
    const GgufFormat format = format_of(name, of_matrices, o.tied_head);
    const Shape shape = shape_in_file(name);
    const auto matrix = matrices.by_name.find(name.ours);
    const QuantizedWeight quantized = matrix == matrices.by_name.end() ? QuantizedWeight{} : *matrix->second.quantized;
    const Tensor parameter = quantized.defined() ? quantized.rows : parameters.contains(name.ours) ? parameters.at(name.ours) : Tensor();
    const std::int64_t first = rows[name.ours], end = rows[name.ours] += shape[0];
    if (!parameter.defined() || end > parameter.size(0))
      fail(where, fmt::format("expected a model with {} as its options say: is it changed?", quote_name(name.ours)));
    entries.push_back({name.gguf, format, shape});
    contents.push_back([=, head = is_rotated(name) ? head_dim(o) : 0] {
      Tensor part = slice(parameter, 0, first, end);
      if (head > 0) part = reordered(part, head, true);
      if (quantized.defined() && is_quantized(format) && quantized.format == blocks_of(format)) return part;
      if (quantized.defined()) part = dequantize({quantized.format, quantized.in, contiguous(part)});
      if (is_quantized(format)) return tern::quantize(part, blocks_of(format)).rows;
      const DType dtype = format == GgufFormat::f32 ? DType::f32 : format == GgufFormat::bf16 ? DType::bf16 : DType::f16;
      if (io::becomes_infinite(part, dtype))
        fail(where,
             fmt::format("expected numbers that {} holds but {} has larger ones: use f32", tern::name(dtype), quote_name(name.ours)));
      return cast(part, dtype);
    });
  }
  if (is_llama && o.rope_scaling.original_length > 0) {
    entries.push_back({frequencies_name, GgufFormat::f32, {head_dim(o) / 2}});
    contents.push_back([&] { return frequency_factors(o); });
  }
  io::write_gguf(path, metadata, entries, [&](std::size_t i) { return contents[i](); });
}

/// A parameter of the model that is no matrix.
static Tensor parameter_of(const nn::DecoderLM& model, const std::string& path) {
  for (const NamedTensor& entry : nn::named_parameters(model))
    if (entry.name == path) return entry.tensor.detach();
  fail("load_gguf", fmt::format("expected a parameter {} but found none", quote_name(path)));
}

nn::DecoderLMOptions gguf_shape(const std::string& path) { return read_config(io::GgufFile(path)).options; }

LanguageModel load_gguf(const std::string& path, const LoadOptions& options) {
  constexpr const char* where = "load_gguf";
  if (!is_floating(options.dtype)) fail(where, fmt::format("expected a floating dtype but got {}", name(options.dtype)));
  if (options.length < 0) fail(where, fmt::format("expected a length >= 0 but got {}", options.length));
  const io::GgufFile file(path);
  const detail::GgufKeys keys(file.metadata(), file.path());
  HuggingFaceConfig config = read_config(file);
  nn::DecoderLMOptions& o = config.options;
  const std::vector<const GgufEntry*> entries = find_tensors(file, config);
  if (options.length > 0) {
    if (o.positions != nn::Positions::rotary && options.length != o.length)
      fail(where,
           fmt::format("expected length 0 or {}, as the model has learned that many positions, but got {}", o.length, options.length));
    o.length = options.length;
  }
  constexpr std::int64_t max_length = std::int64_t{1} << 24;
  if (o.length > max_length)
    keys.fail(
        config.architecture == Architecture::llama ? "llama.context_length" : "gpt2.context_length",
        fmt::format("expected at most {} positions, of which a table is made, but got {}: give LoadOptions::length", max_length, o.length));
  o.device = options.device;
  text::Tokenizer tokenizer = detail::tokenizer_of(file.metadata(), file.path());
  if (static_cast<std::int64_t>(tokenizer.vocab_size()) > o.vocab)
    keys.fail("tokenizer.ggml.tokens", fmt::format("expected at most the model's {} tokens but got {}", o.vocab, tokenizer.vocab_size()));

  const NoGrad unrecorded;
  const nn::init::Unset unset;
  // Layers are made one by one, and matrices take the file's tensors: a model of blocks never has all of its float32 weights in memory.
  nn::DecoderLMOptions bare = o;
  bare.vocab = 1;
  bare.layers = 0;
  nn::DecoderLM model(bare);
  model.options = o;
  nn::to(model, options.dtype);
  std::map<std::string, Matrix> matrices = Matrices(model).by_name;
  const Tensor rope =
      o.positions == nn::Positions::rotary ? rope_table(o.length, head_dim(o), o.rope_base, o.device, o.rope_scaling) : Tensor();
  const auto add_layer = [&] {
    model.blocks.emplace_back(o, false, rope, static_cast<std::int64_t>(model.blocks.size()));
    nn::to(model.blocks.back(), options.dtype);
    matrices = Matrices(model).by_name;  // those of all layers may have moved
  };
  bool has_blocks = false;
  const std::vector<TensorName> names = detail::tensor_names(config);
  for (std::size_t i = 0, end = 0; i < names.size(); i = end) {
    const std::string& ours = names[i].ours;
    if (ours.starts_with(fmt::format("blocks.{}.", model.blocks.size()))) add_layer();
    const bool is_matrix = matrices.contains(ours);
    bool keeps_blocks = !options.dequantizes && is_matrix && is_quantized(entries[i]->format);
    for (end = i; end < names.size() && names[end].ours == ours; ++end)
      keeps_blocks = keeps_blocks && entries[end]->format == entries[i]->format;
    Tensors parts;
    for (std::size_t k = i; k < end; ++k) {
      Tensor part = file.read(*entries[k]);
      if (is_rotated(names[k])) part = reordered(part, head_dim(o), false);
      if (!keeps_blocks && is_quantized(entries[k]->format)) part = dequantize({blocks_of(entries[k]->format), entries[k]->shape[1], part});
      if (!keeps_blocks && io::becomes_infinite(part, options.dtype))
        throw io::FileError(fmt::format("{}: tensor {}: expected numbers that {} holds but the file has larger ones, in {}: load it as {}",
                                        file.path(), quote_name(names[k].gguf), name(options.dtype), name(part.dtype()),
                                        name(part.dtype())));
      parts.push_back(keeps_blocks ? part : cast(part, options.dtype));
    }
    const Tensor whole = to(parts.size() == 1 ? parts[0] : cat(parts, 0), options.device);
    if (!is_matrix) {
      copy_(parameter_of(model, ours), whole);
      continue;
    }
    has_blocks = has_blocks || keeps_blocks;
    Tensor weight = keeps_blocks ? Tensor() : whole;
    if (!keeps_blocks) weight.set_requires_grad();
    const QuantizedWeight blocks{blocks_of(entries[i]->format), entries[i]->shape.back(), whole};
    const auto set = [&](const Matrix& matrix) {
      *matrix.weight = weight;
      if (keeps_blocks) *matrix.quantized = {blocks, quantized_linear, quantized_embedding};
    };
    set(matrices.at(ours));
    if (o.tied_head && ours == "tokens.weight") set(matrices.at("head.weight"));
  }
  if (const std::string bad = nn::find_bad_scale(model); !bad.empty())
    throw io::FileError(fmt::format("{}: expected finite scales of blocks but {} has others", file.path(), quote_name(bad)));
  if (has_blocks) nn::set_requires_grad(model, false);
  model.eval();
  const auto ids = [&](const char* key) { return keys.find(key) ? std::vector{keys.integer(key, 0)} : std::vector<std::int64_t>(); };
  return {std::move(model), std::move(tokenizer), ids("tokenizer.ggml.bos_token_id"), ids("tokenizer.ggml.eos_token_id"),
          keys.text("tokenizer.chat_template", "")};
}

}  // namespace tern::models
