// Metadata of a GGUF file: values of its keys, and the tokenizer, as llama.cpp's convert_hf_to_gguf.py writes it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "io/files.h"
#include "io/safetensors_header.h"
#include "models/gguf.h"
#include "text/pretokenize.h"

namespace tern::models::detail {

using Json = nlohmann::ordered_json;
using io::GgufMetadata, io::GgufType, io::GgufValue, io::quote_name;

namespace {

/// Types of tokens in llama.cpp (llama_token_type).
enum TokenType : std::int32_t { normal = 1, control = 3, user_defined = 4, unused = 5 };

/// An expression of words, by its number in text::word_patterns, with llama.cpp's name for it, and whether llama.cpp lets a word that is a
/// token be this token.
struct Words {
  const char* pre;
  std::size_t pattern;
  bool ignores_merges;
};
/// The first row of a pattern is the one that is written.
constexpr Words words[] = {{"gpt-2", 0, false}, {"llama-bpe", 1, true}, {"llama3", 1, true}, {"llama-v3", 1, true}, {"qwen2", 2, false}};

constexpr const char* tokens_key = "tokenizer.ggml.tokens";
constexpr const char* types_key = "tokenizer.ggml.token_type";
constexpr const char* merges_key = "tokenizer.ggml.merges";
constexpr const char* pre_key = "tokenizer.ggml.pre";

/// The expression of a tokenizer.json's words. Throws Error for one that llama.cpp does not know.
const Words& words_of(const Json& tokenizer) {
  const Json& part = tokenizer.at("pre_tokenizer");
  const std::string expression = part.at("type") == "ByteLevel"
                                     ? text::word_patterns[0].expression
                                     : part.at("pretokenizers").at(0).at("pattern").at("Regex").get<std::string>();
  const bool ignores_merges = tokenizer.at("model").at("ignore_merges").get<bool>();
  const auto found = std::find_if(std::begin(words), std::end(words), [&](const Words& row) {
    return expression == text::word_patterns[row.pattern].expression && row.ignores_merges == ignores_merges;
  });
  if (found == std::end(words))
    fail("save_gguf",
         fmt::format("expected the words of GPT-2, Llama 3 or Qwen 2, with ignore_merges for Llama 3 alone, as in llama.cpp, but got {} "
                     "with ignore_merges {}",
                     quote_name(expression), ignores_merges));
  return *found;
}

/// The special token that a tokenizer.json's template puts before a text; "" if there is none.
std::string template_begin(const Json& tokenizer) {
  const Json& part = tokenizer.at("post_processor");
  if (part.is_null()) return "";
  const Json one = Json::array({part});
  for (const Json& each : part.at("type") == "Sequence" ? part.at("processors") : one)
    if (each.at("type") == "TemplateProcessing" && !each.at("single").empty() && each["single"][0].contains("SpecialToken"))
      return each["single"][0]["SpecialToken"].at("id").get<std::string>();
  return "";
}

}  // namespace

void add_text(GgufMetadata& metadata, const LanguageModel& model) {
  constexpr const char* where = "save_gguf";
  const text::Tokenizer& tokenizer = model.tokenizer;
  const std::int64_t vocab = model.model.options.vocab;
  const auto count = static_cast<std::int64_t>(tokenizer.vocab_size());
  if (count > vocab) fail(where, fmt::format("expected a tokenizer of at most the model's {} tokens but got {}", vocab, count));
  const Json json = Json::parse(tokenizer.to_json());
  std::vector<std::int32_t> types(static_cast<std::size_t>(vocab), unused);
  std::fill_n(types.begin(), count, normal);
  for (const Json& token : json.at("added_tokens"))
    types[token.at("id").get<std::size_t>()] = token.at("special").get<bool>() ? control : user_defined;
  std::vector<std::string> tokens, merges;
  for (std::int64_t id = 0; id < vocab; ++id)
    tokens.push_back(id < count ? tokenizer.id_to_token(static_cast<std::int32_t>(id)) : fmt::format("[PAD{}]", id));
  for (const auto& [left, right] : tokenizer.merges()) merges.push_back(tokenizer.id_to_token(left) + ' ' + tokenizer.id_to_token(right));
  const std::string begin = template_begin(json);
  metadata["tokenizer.ggml.model"] = GgufValue::of("gpt2");
  metadata[pre_key] = GgufValue::of(words_of(json).pre);
  metadata[tokens_key] = GgufValue::list(std::move(tokens));
  metadata[types_key] = GgufValue::list(std::span<const std::int32_t>(types));
  metadata[merges_key] = GgufValue::list(std::move(merges));
  metadata["tokenizer.ggml.add_bos_token"] = GgufValue::of(!begin.empty());
  const auto add_id = [&](const char* key, std::int64_t id) {
    if (id < 0 || id >= vocab) fail(where, fmt::format("expected ids of special tokens in [0, {}) but got {}", vocab, id));
    metadata[key] = GgufValue::of(static_cast<std::uint32_t>(id));
  };
  if (!model.begin.empty()) add_id("tokenizer.ggml.bos_token_id", model.begin.front());
  else if (const auto id = tokenizer.token_to_id(begin); id && !begin.empty()) add_id("tokenizer.ggml.bos_token_id", *id);
  if (!model.ends.empty()) add_id("tokenizer.ggml.eos_token_id", model.ends.front());
  if (!model.chat_template.empty()) metadata["tokenizer.chat_template"] = GgufValue::of(model.chat_template);
}

text::Tokenizer tokenizer_of(const GgufMetadata& metadata, const std::string& path) {
  const GgufKeys keys(metadata, path);
  if (const std::string model = keys.text("tokenizer.ggml.model", nullptr); model != "gpt2")
    keys.fail("tokenizer.ggml.model", fmt::format("expected \"gpt2\", byte-level BPE, but got {}", quote_name(model)));
  const std::string pre = keys.text(pre_key, nullptr);
  const auto known = std::find_if(std::begin(words), std::end(words), [&](const Words& row) { return pre == row.pre; });
  if (known == std::end(words))
    keys.fail(pre_key,
              fmt::format("expected gpt-2, llama-bpe or qwen2, the words that tern splits as llama.cpp does, but got {}", quote_name(pre)));
  const std::vector<std::string>& tokens = keys.list(tokens_key, GgufType::text).texts;
  const GgufValue& types = keys.list(types_key, GgufType::i32);
  if (types.size() != tokens.size())
    keys.fail(types_key, fmt::format("expected {} types, one a token, but got {}", tokens.size(), types.size()));
  std::size_t count = tokens.size();
  while (count > 0 && types.integer(count - 1) == unused) --count;
  // Added tokens at the end are behind the vocabulary of the BPE.
  std::size_t of_model = count;
  while (of_model > 0 && types.integer(of_model - 1) != normal) --of_model;

  Json added = Json::array(), merges = Json::array();
  Json::object_t vocab;
  vocab.reserve(of_model);
  for (std::size_t id = 0; id < count; ++id) {
    const std::int64_t type = types.integer(id);
    if (type != normal && type != control && type != user_defined && type != unused)
      keys.fail(types_key, fmt::format("expected 1, 3, 4 or 5 (normal, control, user-defined, unused) but got {} for token {}", type, id));
    if (id < of_model) vocab.Container::emplace_back(tokens[id], static_cast<std::int64_t>(id));
    if (type == normal || (type == unused && id < of_model)) continue;
    added.push_back({{"id", id},
                     {"content", tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type == control}});
  }
  for (const std::string& merge : keys.list(merges_key, GgufType::text).texts) merges.push_back(merge);
  Json json = Json::parse(text::Tokenizer::train({}, {.vocab_size = 0}).to_json());  // with the settings of GPT-2
  json["added_tokens"] = std::move(added);
  if (known->pattern != 0) {
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", text::word_patterns[known->pattern].expression}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    Json bytes = json["pre_tokenizer"];
    bytes["use_regex"] = false;
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
  }
  json["model"]["ignore_merges"] = known->ignores_merges;
  json["model"]["vocab"] = std::move(vocab);
  json["model"]["merges"] = std::move(merges);
  return text::Tokenizer::from_json(json.dump(-1, ' ', false, Json::error_handler_t::replace), path);
}

const GgufValue* GgufKeys::find(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::int64_t GgufKeys::integer(const std::string& key, std::int64_t least) const {
  constexpr std::int64_t limit = std::int64_t{1} << 30;  // so that products of two, and sums of these, do not overflow
  const GgufValue* const value = find(key);
  if (!value) fail(key, "is missing");
  if (value->is_list || value->type == GgufType::text || value->type == GgufType::f32 || value->type == GgufType::f64)
    fail(key, "expected an integer but got another type");
  const std::int64_t number = value->integer(0);
  if (number < least || number > limit) fail(key, fmt::format("expected an integer from {} to {} but got {}", least, limit, number));
  return number;
}

std::int64_t GgufKeys::integer_or(const std::string& key, std::int64_t otherwise, std::int64_t least) const {
  return find(key) ? integer(key, least) : otherwise;
}

double GgufKeys::positive(const std::string& key, double otherwise) const {
  const GgufValue* const value = find(key);
  if (!value && !std::isnan(otherwise)) return otherwise;
  if (!value) fail(key, "is missing");
  if (value->is_list || value->type != GgufType::f32) fail(key, "expected a number of type f32 but got another type");
  // A float that prints as 1e-05 is taken for the double 1e-05, as its writer had it.
  const double number = std::strtod(fmt::format("{}", static_cast<float>(value->real(0))).c_str(), nullptr);
  if (!(number > 0) || !std::isfinite(number)) fail(key, fmt::format("expected a number > 0 but got {}", number));
  return number;
}

std::string GgufKeys::text(const std::string& key, const char* otherwise) const {
  const GgufValue* const value = find(key);
  if (!value && otherwise) return otherwise;
  if (!value) fail(key, "is missing");
  if (value->is_list || value->type != GgufType::text) fail(key, "expected a text but got another type");
  return value->texts[0];
}

const GgufValue& GgufKeys::list(const std::string& key, GgufType type) const {
  const GgufValue* const value = find(key);
  if (!value) fail(key, "is missing");
  if (!value->is_list || value->type != type)
    fail(key, fmt::format("expected a list of {} but got another type", type == GgufType::text ? "texts" : "i32"));
  return *value;
}

void GgufKeys::fail(const std::string& key, const std::string& message) const {
  throw io::FileError(fmt::format("{}: metadata {}: {}", path_, quote_name(key), message));
}

}  // namespace tern::models::detail
