#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "io/files.h"
#include "models/hugging_face.h"
#include "text/json_reader.h"
#include "text/unicode.h"

namespace tern::models::detail {

namespace {

using Json = nlohmann::ordered_json;

struct ActivationName {
  const char* theirs;
  nn::Activation ours;
};
/// The first name of each is the one that is written.
constexpr ActivationName activation_names[] = {
    {"gelu_new", nn::Activation::gelu_tanh}, {"gelu_pytorch_tanh", nn::Activation::gelu_tanh},
    {"gelu", nn::Activation::gelu},          {"relu", nn::Activation::relu},
    {"silu", nn::Activation::silu},          {"swish", nn::Activation::silu},
};

/// An object of config.json. A missing key is equivalent to null.
class Config {
 public:
  Config(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(const char* key) const { return find(key) != nullptr; }

  std::int64_t integer(const char* key, std::optional<std::int64_t> otherwise = {}) const {
    const Json* const value = find_or(key, otherwise.has_value());
    if (!value) return *otherwise;
    constexpr std::int64_t limit = std::int64_t{1} << 30;  // so that products of two, and sums of these, do not overflow
    if (!value->is_number_integer() || value->get<double>() < 1 || value->get<double>() > double(limit))
      fail(key, fmt::format("expected an integer from 1 to {}", limit));
    return value->get<std::int64_t>();
  }
  double number(const char* key, std::optional<double> otherwise = {}) const {
    const Json* const value = find_or(key, otherwise.has_value());
    if (!value) return *otherwise;
    if (!value->is_number() || !(value->get<double>() >= 0)) fail(key, "expected a number >= 0");
    return value->get<double>();
  }
  double positive(const char* key, std::optional<double> otherwise = {}) const {
    const double value = number(key, otherwise);
    if (value == 0) fail(key, "expected a number > 0");
    return value;
  }
  double probability(const char* key, double otherwise) const {
    const double value = number(key, otherwise);
    if (value >= 1) fail(key, "expected a probability below 1");
    return value;
  }
  bool flag(const char* key, bool otherwise) const {
    const Json* const value = find_or(key, true);
    if (!value) return otherwise;
    if (!value->is_boolean()) fail(key, "expected true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, std::optional<std::string> otherwise = {}) const {
    const Json* const value = find_or(key, otherwise.has_value());
    if (!value) return *otherwise;
    if (!value->is_string()) fail(key, "expected a string");
    return value->get<std::string>();
  }
  /// The object of a key; an empty one if the key is missing.
  Config object(const char* key) const {
    static const Json none = Json::object();
    const Json* const value = find_or(key, true);
    if (value && !value->is_object()) fail(key, "expected an object");
    return {value ? *value : none, where_};
  }
  nn::Activation activation(const char* key, const char* otherwise) const {
    const std::string name = text(key, otherwise);
    for (const ActivationName& each : activation_names)
      if (name == each.theirs) return each.ours;
    fail(key, "expected gelu_new, gelu_pytorch_tanh, gelu, relu or silu, the activations that nn::Activation has");
  }

  /// "WHERE: "KEY": MESSAGE but got VALUE".
  [[noreturn]] void fail(const char* key, const std::string& message) const {
    const Json* const value = find(key);
    constexpr std::size_t shown = 80;
    const std::string got =
        value ? text::printable(value->dump(-1, ' ', false, Json::error_handler_t::replace), shown) : std::string("nothing");
    throw io::FileError(fmt::format("{}: \"{}\": {} but got {}", where_, key, message, got));
  }
  /// Fails if the key is present and its value is not `wanted`.
  void require(const char* key, const Json& wanted, const char* reason) const {
    if (const Json* const value = find(key); value && *value != wanted) fail(key, fmt::format("expected {}: {},", wanted.dump(), reason));
  }
  void refuse(const char* key, const char* reason) const {
    if (has(key)) fail(key, fmt::format("expected null: {},", reason));
  }
  bool empty() const { return object_.empty(); }
  /// Fails if a value is an object.
  void require_flat(const char* reason) const {
    for (const auto& [key, value] : object_.items())
      if (value.is_object()) fail(key.c_str(), reason);
  }

 private:
  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json* find_or(const char* key, bool is_optional) const {
    const Json* const value = find(key);
    if (!value && !is_optional) throw io::FileError(fmt::format("{}: lacks \"{}\"", where_, key));
    return value;
  }

  const Json& object_;
  std::string where_;
};

nn::DecoderLMOptions gpt2_options(const Config& config) {
  config.require("scale_attn_weights", true, "attention without a scale is not of tern");
  config.require("scale_attn_by_inverse_layer_idx", false, "scales of attention by layer are not of tern");
  config.require("add_cross_attention", false, "load its tensors into nn::EncoderDecoder by io::SafetensorsFiles");
  nn::DecoderLMOptions o;
  o.vocab = config.integer("vocab_size");
  o.length = config.integer("n_positions");
  o.width = config.integer("n_embd");
  o.layers = config.integer("n_layer");
  o.heads = config.integer("n_head");
  o.ff = config.integer("n_inner", 4 * o.width);
  o.dropout = config.probability("resid_pdrop", 0.1);
  if (config.probability("embd_pdrop", 0.1) != o.dropout)
    config.fail("embd_pdrop", fmt::format("expected {}, as \"resid_pdrop\": DecoderLM has one dropout for both,", o.dropout));
  o.attention_dropout = config.probability("attn_pdrop", 0.1);
  o.activation = config.activation("activation_function", "gelu_new");
  o.layer_norm_eps = config.number("layer_norm_epsilon", 1e-5);
  o.positions = nn::Positions::learned;
  o.tied_head = config.flag("tie_word_embeddings", true);
  if (o.width % o.heads != 0) config.fail("n_head", fmt::format("expected a divisor of \"n_embd\", {},", o.width));
  // transformers' other names for these, which it would let win.
  const std::pair<const char*, std::int64_t> aliases[] = {
      {"hidden_size", o.width}, {"max_position_embeddings", o.length}, {"num_attention_heads", o.heads}, {"num_hidden_layers", o.layers}};
  for (const auto& [alias, value] : aliases) config.require(alias, value, "it is another name of GPT-2's own key");
  return o;
}

/// Reads the rotary options: "rope_parameters" of transformers 5, or "rope_theta" and "rope_scaling" of earlier versions. Where a file has
/// both, those win that win in transformers.
void read_rope(const Config& config, nn::DecoderLMOptions& o) {
  const Config scaling = config.object("rope_scaling"), rope = scaling.empty() ? config.object("rope_parameters") : scaling;
  rope.require_flat("expected the same rotary positions in all layers");
  for (const Config* each : {&config, &rope}) each->require("partial_rotary_factor", 1.0, "heads that are rotated in part are not of tern");
  const char* const type_key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.text(type_key, "default");
  o.rope_base = rope.has("rope_theta") ? rope.positive("rope_theta") : config.positive("rope_theta", 10000);
  if (type == "linear") {
    o.rope_scaling.factor = rope.positive("factor");
  } else if (type == "llama3") {
    o.rope_scaling = {
        .factor = rope.positive("factor"),
        .original_length = config.integer("original_max_position_embeddings", rope.integer("original_max_position_embeddings", o.length)),
        .low_turns = rope.number("low_freq_factor"),
        .high_turns = rope.number("high_freq_factor")};
    if (o.rope_scaling.low_turns >= o.rope_scaling.high_turns) rope.fail("low_freq_factor", "expected a number below \"high_freq_factor\"");
  } else if (type != "default") {
    rope.fail(type_key, "expected default, linear or llama3, the scalings of rotary positions that tern has,");
  }
}

nn::DecoderLMOptions llama_options(const Config& config) {
  config.refuse("sliding_window", "attention of DecoderLM has no window of its own, AttentionMask::window has one");
  nn::DecoderLMOptions o;
  o.vocab = config.integer("vocab_size");
  o.length = config.integer("max_position_embeddings", 2048);
  o.width = config.integer("hidden_size");
  o.layers = config.integer("num_hidden_layers");
  o.heads = config.integer("num_attention_heads");
  o.kv_heads = config.integer("num_key_value_heads", o.heads);
  o.ff = config.integer("intermediate_size");
  o.dropout = 0;
  o.attention_dropout = config.probability("attention_dropout", 0);
  o.activation = config.activation("hidden_act", "silu");
  o.gated = true;
  o.norm = nn::NormKind::rms;
  o.layer_norm_eps = config.number("rms_norm_eps", 1e-6);
  o.positions = nn::Positions::rotary;
  o.rope_pairs = RopePairs::halves;
  o.tied_head = config.flag("tie_word_embeddings", false);
  o.bias = config.flag("attention_bias", false);
  if (config.flag("mlp_bias", false) != o.bias)
    config.fail("mlp_bias", fmt::format("expected {}, as \"attention_bias\": DecoderLM has all biases or none,", o.bias));
  if (config.has("head_dim")) o.head_dim = config.integer("head_dim");
  else if (o.width % o.heads != 0) config.fail("num_attention_heads", fmt::format("expected a divisor of \"hidden_size\", {},", o.width));
  else o.head_dim = o.width / o.heads;
  if (o.head_dim % 2 != 0)
    config.fail("head_dim", fmt::format("expected heads of an even size, which can be rotated, and not of {},", o.head_dim));
  if (o.heads % o.kv_heads != 0)
    config.fail("num_key_value_heads", fmt::format("expected a divisor of \"num_attention_heads\", {},", o.heads));
  read_rope(config, o);
  return o;
}

const char* activation_name(nn::Activation activation) {
  for (const ActivationName& each : activation_names)
    if (activation == each.ours) return each.theirs;
  fail("save_hugging_face", fmt::format("expected an activation that transformers has but got {}", nn::name(activation)));
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    default: return "float32";
  }
}

/// -1 stands for the residual branches' dropout.
double attention_dropout(const nn::DecoderLMOptions& o) { return o.attention_dropout == -1 ? o.dropout : o.attention_dropout; }

Json rope_parameters(const nn::DecoderLMOptions& o) {
  const RopeScaling& s = o.rope_scaling;
  Json rope = {{"rope_type", "default"}, {"rope_theta", o.rope_base}};
  if (s.original_length > 0) {
    rope["rope_type"] = "llama3";
    rope["factor"] = s.factor;
    rope["low_freq_factor"] = s.low_turns;
    rope["high_freq_factor"] = s.high_turns;
    rope["original_max_position_embeddings"] = s.original_length;
  } else if (s.factor != 1) {
    rope["rope_type"] = "linear";
    rope["factor"] = s.factor;
  }
  return rope;
}

}  // namespace

HuggingFaceConfig parse_config(std::string_view json, const std::string& where) {
  const text::JsonLimits limits;
  text::JsonSource source(json, where, limits.max_string_bytes);
  const Json document = text::JsonReader(source, limits).read();
  if (!document.is_object()) throw io::FileError(fmt::format("{}: expected a JSON object but got {}", where, document.type_name()));
  const Config config(document, where);
  HuggingFaceConfig result;
  const std::string type = config.text("model_type");
  config.require("is_causal", true, "DecoderLM's attention is causal");
  config.refuse("per_layer_config", "layers of DecoderLM have one configuration");
  config.refuse("quantization_config", "load the model that is not quantised, and quantise it by nn::quantize");
  if (type == "gpt2") {
    result.options = gpt2_options(config);
  } else if (type == "llama") {
    result.architecture = Architecture::llama;
    result.options = llama_options(config);
  } else {
    config.fail("model_type",
                "expected gpt2 or llama, the models that tern loads (for others io::SafetensorsFiles reads tensors by name),");
  }
  result.options.head_bias = false;
  return result;
}

HuggingFaceConfig config_of(const nn::DecoderLMOptions& o, const char* where) {
  const bool is_gpt2 = o.norm == nn::NormKind::layer && o.positions == nn::Positions::learned && !o.gated;
  const bool is_llama = o.norm == nn::NormKind::rms && o.positions == nn::Positions::rotary && o.gated;
  const bool is_plain = (o.kv_heads == 0 || o.kv_heads == o.heads) && (o.head_dim == 0 || o.head_dim * o.heads == o.width);
  const auto require = [where](bool holds, const char* expected) {
    if (!holds) fail(where, fmt::format("expected {}, for transformers has no such model", expected));
  };
  require(is_gpt2 || is_llama,
          "a model of GPT-2's shape (layer norms, learned positions, not gated) or of Llama's (RMS norms, rotary positions, gated)");
  require(!o.head_bias, "head_bias = false");
  require(!o.scales_embeddings, "scales_embeddings = false");
  require(o.final_norm, "final_norm = true");
  require(o.ff > 0, "ff > 0");
  require(o.mixers.empty(), "a model without mixers");
  if (is_gpt2) {
    require(o.bias, "bias = true in a model of GPT-2's shape");
    require(is_plain, "a model of GPT-2's shape without kv_heads and head_dim of its own");
  } else {
    require(o.rope_pairs == RopePairs::halves, "rope_pairs = RopePairs::halves in a model of Llama's shape");
  }
  static_cast<void>(activation_name(o.activation));
  return {is_gpt2 ? Architecture::gpt2 : Architecture::llama, o};
}

std::string config_text(const HuggingFaceConfig& config, DType dtype, const std::vector<std::int64_t>& begin,
                        const std::vector<std::int64_t>& ends) {
  const nn::DecoderLMOptions& o = config.options;
  Json json;
  if (config.architecture == Architecture::gpt2) {
    json = {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"vocab_size", o.vocab},
            {"n_positions", o.length},
            {"n_embd", o.width},
            {"n_layer", o.layers},
            {"n_head", o.heads},
            {"n_inner", o.ff},
            {"activation_function", activation_name(o.activation)},
            {"layer_norm_epsilon", o.layer_norm_eps},
            {"resid_pdrop", o.dropout},
            {"embd_pdrop", o.dropout},
            {"attn_pdrop", attention_dropout(o)}};
  } else {
    json = {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"vocab_size", o.vocab},
            {"max_position_embeddings", o.length},
            {"hidden_size", o.width},
            {"num_hidden_layers", o.layers},
            {"num_attention_heads", o.heads},
            {"num_key_value_heads", o.kv_heads == 0 ? o.heads : o.kv_heads},
            {"head_dim", o.head_dim == 0 ? o.width / o.heads : o.head_dim},
            {"intermediate_size", o.ff},
            {"hidden_act", activation_name(o.activation)},
            {"rms_norm_eps", o.layer_norm_eps},
            {"attention_dropout", attention_dropout(o)},
            {"attention_bias", o.bias},
            {"mlp_bias", o.bias},
            {"rope_parameters", rope_parameters(o)}};
    // For readers before transformers 5.
    json["rope_theta"] = o.rope_base;
    Json scaling = rope_parameters(o);
    scaling.erase("rope_theta");
    json["rope_scaling"] = scaling["rope_type"] == "default" ? Json() : scaling;
  }
  json["tie_word_embeddings"] = o.tied_head;
  const auto ids = [](const std::vector<std::int64_t>& list) {
    return list.empty() ? Json() : list.size() == 1 ? Json(list[0]) : Json(list);
  };
  json["bos_token_id"] = ids(begin);
  json["eos_token_id"] = ids(ends);
  json["pad_token_id"] = nullptr;
  json["torch_dtype"] = dtype_name(dtype);
  return json.dump(2) + "\n";
}

}  // namespace tern::models::detail
