// Reading and writing tokenizer.json. The written file is, byte for byte, that of Hugging Face's library for the same tokenizer. A file to
// read may be hostile: its depth, the number of its tokens and their lengths are bounded while it is parsed. A setting that Hugging Face's
// library refuses, or with which it would encode differently from this one, is refused rather than ignored.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include "text/bpe.h"
#include "text/bpe_model.h"
#include "text/data_error.h"
#include "text/json_reader.h"
#include "text/unicode.h"

namespace tern::text {
namespace {

using Json = JsonReader::Json;

// Bounds on the values that are kept while the rest of the file is read: settings, and one entry of a list at a time.
constexpr JsonLimits limits{.max_string_bytes = std::size_t{1} << 20, .max_values = 1000, .max_depth = 8};
constexpr std::size_t max_file_bytes = std::size_t{128} << 20;
constexpr std::size_t max_merges = 2 * max_vocab_size;

// Text from the file, fit for a message.
std::string shown(std::string_view text) { return printable(text, 120); }

// Vocabulary, merges and added tokens are read as a stream, so that memory is little more than the tokenizer's own.
class Reader {
 public:
  explicit Reader(JsonSource& source) : source_(source), name_(source.name()), model_(std::make_shared<BpeModel>()) {}

  std::shared_ptr<BpeModel> read() {
    JsonReader reader(source_, limits);
    reader.stream({"added_tokens"}, [&](const std::string&, Json& value) { take_added(value); });
    reader.stream({"model", "vocab"}, [&](const std::string& token, Json& value) { take_token(token, value); });
    reader.stream({"model", "merges"}, [&](const std::string&, Json& value) { take_merge(value); });
    const Json root = reader.read();
    only_keys(root, "the file",
              {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"});
    expect(root, "version", "1.0");
    for (const char* key : {"truncation", "padding"}) expect(root, key, nullptr);
    if (const Json& part = member(root, "normalizer"); !part.is_null()) {
      if (type_of(part) != "NFC") fail("no 'normalizer' or NFC but got type {}", shown(type_of(part)));
      only_keys(part, "normalizer", {"type"});
      model_->composes = true;
    }
    read_pre_tokenizer(member(root, "pre_tokenizer"));
    read_post_processor(member(root, "post_processor"));
    byte_level(member(root, "decoder"), "decoder");
    const Json& model = member(root, "model");
    only_keys(model, "model",
              {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
               "ignore_merges", "vocab", "merges"});
    if (!member(model, "type").is_null()) expect(model, "type", "BPE");  // GPT-2's own file has none
    expect(model, "dropout", nullptr);
    expect(model, "unk_token", nullptr);
    expect(model, "continuing_subword_prefix", nullptr, "");
    expect(model, "end_of_word_suffix", nullptr, "");
    if (!member(model, "byte_fallback").is_null()) expect(model, "byte_fallback", false);
    if (const Json& flag = member(model, "ignore_merges"); !flag.is_null()) {
      if (!flag.is_boolean()) fail("'ignore_merges' to be a boolean but got {}", flag.type_name());
      model_->ignores_merges = flag.get<bool>();
    }
    if (const Json& fuse = member(model, "fuse_unk"); !fuse.is_null() && !fuse.is_boolean())
      fail("'fuse_unk' to be a boolean but got {}", fuse.type_name());
    if (const Json& vocab = member(model, "vocab"); !vocab.is_object()) fail("'vocab' to be an object but got {}", vocab.type_name());
    if (const Json& merges = member(model, "merges"); !merges.is_array()) fail("'merges' to be an array but got {}", merges.type_name());
    if (const auto found = root.find("added_tokens"); found != root.end() && !found->is_array())
      fail("'added_tokens' to be an array but got {}", found->type_name());
    finish_vocab();
    finish_merges();
    try {
      model_->finish();
    } catch (const std::invalid_argument& error) {
      throw DataError(fmt::format("{}: {}", name_, error.what()));
    }
    return std::move(model_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> what, Args&&... args) const {
    throw DataError(fmt::format("{}: expected {}", name_, fmt::format(what, std::forward<Args>(args)...)));
  }

  // An absent setting is null.
  const Json& member(const Json& object, const char* key) const {
    if (!object.is_object()) fail("an object with '{}' but got {}", key, object.type_name());
    const auto found = object.find(key);
    return found == object.end() ? null_ : *found;
  }

  void only_keys(const Json& object, const char* what, std::initializer_list<std::string_view> keys) const {
    if (!object.is_object()) fail("{} to be an object but got {}", what, object.type_name());
    for (const auto& [key, value] : object.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        fail("no setting of {} that this library does not know but got '{}'", what, shown(key));
      }
    }
  }

  // Refuses a setting that is neither `value` nor `alternative`, a second value of the same meaning.
  void expect(const Json& object, const char* key, const Json& value, const Json& alternative = nullptr) const {
    const Json& got = member(object, key);
    if (got == value || (alternative != nullptr && got == alternative)) return;
    fail("'{}' to be {} but got {}", key, value.dump(), text_of(got));
  }

  static std::string text_of(const Json& value) {
    return shown(value.is_structured() ? value.type_name() : value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  // The "type" of a part, "null" of none.
  static std::string type_of(const Json& part) {
    const auto found = part.is_object() ? part.find("type") : part.end();
    return !part.is_object() ? part.type_name() : found != part.end() && found->is_string() ? found->get<std::string>() : "no type";
  }

  // The members of a Sequence, and another part as the only one.
  const Json& parts(const Json& part, const char* key, const char* list) const {
    only_keys(part, key, {"type", list});
    const Json& members = member(part, list);
    if (!members.is_array()) fail("'{}' of '{}' to be an array but got {}", list, key, members.type_name());
    return members;
  }

  // Words by the library's own expression of ByteLevel, or by Split with another and then ByteLevel without one.
  void read_pre_tokenizer(const Json& part) {
    const std::string type = type_of(part);
    if (type != "Sequence") {
      if (type != "ByteLevel") fail("'pre_tokenizer' to be ByteLevel, or Split and ByteLevel, but got type {}", shown(type));
      byte_level(part, "pre_tokenizer");
      if (part.contains("use_regex")) expect(part, "use_regex", true);
    } else {
      const Json& list = parts(part, "pre_tokenizer", "pretokenizers");
      std::string types;
      for (const Json& each : list) types += (types.empty() ? "" : " and ") + type_of(each);
      if (types != "Split and ByteLevel") fail("'pre_tokenizer' to be ByteLevel, or Split and ByteLevel, but got {}", shown(types));
      only_keys(list[0], "Split", {"type", "pattern", "behavior", "invert"});
      expect(list[0], "behavior", "Isolated");
      expect(list[0], "invert", false);
      const Json& pattern = member(list[0], "pattern");
      const Json& expression = member(pattern, "Regex");
      const auto known = std::find_if(std::begin(word_patterns), std::end(word_patterns),
                                      [&](const WordPattern& each) { return expression == each.expression; });
      if (pattern.size() != 1 || !expression.is_string()) fail("the 'pattern' of Split to be a \"Regex\" but got {}", text_of(pattern));
      if (known != std::end(word_patterns)) model_->pattern = static_cast<std::size_t>(known - std::begin(word_patterns));
      else model_->split = read_split(expression.get<std::string>());
      byte_level(list[1], "pre_tokenizer");
      expect(list[1], "use_regex", false);
      model_->pre_tokenizer = part.dump();
    }
    expect(type == "Sequence" ? part["pretokenizers"][1] : part, "add_prefix_space", false);
  }

  std::shared_ptr<const Pattern> read_split(const std::string& expression) const {
    constexpr std::size_t most = 10'000;
    if (expression.size() > most) fail("a 'pattern' of Split of at most {} bytes but got {}", most, expression.size());
    try {
      return std::make_shared<const Pattern>(split_pattern(expression));
    } catch (const std::invalid_argument& error) {
      fail("a 'pattern' of Split that PCRE2 reads as Oniguruma does but got {} in {}", error.what(), shown(expression));
    }
  }

  // A template only adds special tokens, which encode() leaves to the caller.
  void read_post_processor(const Json& part) {
    const std::string type = type_of(part);
    if (part.is_null()) return;
    if (type == "ByteLevel") return byte_level(part, "post_processor");
    const Json one = Json::array({part});
    for (const Json& each : type == "Sequence" ? parts(part, "post_processor", "processors") : one) {
      if (type_of(each) == "ByteLevel") byte_level(each, "post_processor");
      else if (type_of(each) == "TemplateProcessing") read_template(each);
      else fail("'post_processor' to be ByteLevel or TemplateProcessing but got type {}", shown(type_of(each)));
    }
    model_->post_processor = part.dump();
  }

  void read_template(const Json& part) const {
    only_keys(part, "TemplateProcessing", {"type", "single", "pair", "special_tokens"});
    for (const char* key : {"single", "pair"})
      if (const Json& list = member(part, key); !list.is_array())
        fail("'{}' of TemplateProcessing to be an array but got {}", key, list.type_name());
    if (const Json& tokens = member(part, "special_tokens"); !tokens.is_object())
      fail("'special_tokens' of TemplateProcessing to be an object but got {}", tokens.type_name());
  }

  void byte_level(const Json& part, const char* key) const {
    if (type_of(part) != "ByteLevel") fail("'{}' to be of type ByteLevel but got {}", key, shown(type_of(part)));
    only_keys(part, key, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    for (const char* flag : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      const Json& value = member(part, flag);
      const bool may_lack = std::string_view(flag) == "use_regex" && !part.contains(flag);
      if (!may_lack && !value.is_boolean()) fail("'{}' of '{}' to be a boolean but got {}", flag, key, value.type_name());
    }
  }

  std::int32_t id_of(const Json& value, std::size_t limit, std::string_view token) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= limit) {
      fail("the ids 0 to {}, each once, but got {} for '{}'", limit - 1, text_of(value), shown(token));
    }
    return value.get<std::int32_t>();
  }

  void take_token(const std::string& token, const Json& value) {
    if (++vocab_size_ > max_vocab_size) fail("at most {} tokens but got more", max_vocab_size);
    if (token.size() > max_token_bytes) fail("tokens of at most {} bytes but got '{}'", max_token_bytes, shown(token));
    if ((vocab_bytes_ += token.size()) > max_vocab_bytes) fail("tokens of at most {} bytes in all but got more", max_vocab_bytes);
    const auto id = static_cast<std::size_t>(id_of(value, max_vocab_size, token));
    if (id >= model_->tokens.size()) {
      model_->tokens.resize(id + 1);
      taken_.resize(id + 1);
    }
    if (taken_[id]) fail("each id once but got {} for '{}' and '{}'", id, shown(model_->tokens[id]), shown(token));
    taken_[id] = true;
    model_->tokens[id] = token;
  }

  // Added tokens may stand before the vocabulary that they belong to.
  void finish_vocab() {
    const std::size_t size = model_->tokens.size();
    if (vocab_size_ != size)
      fail("the ids 0 to {}, each once, but got {} for '{}'", vocab_size_ - 1, size - 1, shown(model_->tokens.back()));
    model_->model_tokens = size;
    model_->tokens.reserve(size + model_->added.size());  // indexed tokens stay where they are
    model_->index_tokens();
    if (model_->ids.size() != size) fail("each token once in 'vocab' but got one twice");
    for (const AddedToken& token : model_->added) {
      // An added token is either one of the vocabulary or the next one after it.
      const auto found = model_->ids.find(token.content);
      const std::size_t id = found != model_->ids.end() ? static_cast<std::size_t>(found->second) : model_->tokens.size();
      if (static_cast<std::size_t>(token.id) != id) fail("id {} for the added token '{}' but got {}", id, shown(token.content), token.id);
      if (found != model_->ids.end()) continue;
      model_->tokens.push_back(token.content);
      model_->ids.emplace(model_->tokens.back(), token.id);
    }
    std::sort(model_->added.begin(), model_->added.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  }

  void take_merge(const Json& merge) {
    const std::size_t rank = merge_ends_.size() / 2;
    if (rank >= max_merges) fail("at most {} merges but got more", max_merges);
    std::string_view left, right;
    if (merge.is_string()) {
      const std::string_view both = merge.get_ref<const std::string&>();
      const std::size_t space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
        fail("merge {} to be two tokens with a space between but got '{}'", rank, shown(both));
      }
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else {
      fail("merge {} to be two tokens but got {}", rank, merge.type_name());
    }
    for (const std::string_view part : {left, right}) {
      if (part.size() > max_token_bytes) fail("merge {} to name tokens of the vocabulary but got '{}'", rank, shown(part));
      merge_text_ += part;
      merge_ends_.push_back(static_cast<std::uint32_t>(merge_text_.size()));
    }
  }

  void finish_merges() {
    std::vector<PairKey> pairs;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < merge_ends_.size(); i += 2) {
      std::int32_t part[2];
      for (std::size_t side = 0; side < 2; ++side) {
        const std::string_view token = std::string_view(merge_text_).substr(begin, merge_ends_[i + side] - begin);
        const auto found = model_->ids.find(token);
        if (found == model_->ids.end() || static_cast<std::size_t>(found->second) >= model_->model_tokens)
          fail("merge {} to name tokens of the vocabulary but got '{}'", pairs.size(), shown(token));
        part[side] = found->second;
        begin = merge_ends_[i + side];
      }
      pairs.push_back(pair_key(part[0], part[1]));
    }
    model_->set_merges(pairs);
    merge_text_ = {};
    merge_ends_ = {};
  }

  void take_added(const Json& entry) {
    only_keys(entry, "an added token", {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    const Json& content = member(entry, "content");
    if (!content.is_string()) fail("an added token's 'content' to be a string but got {}", content.type_name());
    token.content = content.get<std::string>();
    if (token.content.empty() || token.content.size() > max_token_bytes) {
      fail("an added token of 1 to {} bytes but got {}", max_token_bytes, token.content.size());
    }
    if ((added_bytes_ += token.content.size()) > max_added_tokens_bytes)
      fail("added tokens of at most {} bytes in all but got more", max_added_tokens_bytes);
    if (!seen_.emplace(token.content, true).second) fail("each added token once but got '{}' twice", shown(token.content));
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) expect(entry, flag, false);
    for (const char* flag : {"normalized", "special"}) {
      if (!member(entry, flag).is_boolean()) fail("'{}' of an added token to be a boolean", flag);
    }
    token.normalized = member(entry, "normalized").get<bool>();
    token.special = member(entry, "special").get<bool>();
    token.id = id_of(member(entry, "id"), 2 * max_vocab_size, token.content);
    model_->added.push_back(std::move(token));
  }

  JsonSource& source_;
  const std::string& name_;
  Json null_;
  std::shared_ptr<BpeModel> model_;
  std::size_t vocab_size_ = 0, vocab_bytes_ = 0, added_bytes_ = 0;
  std::vector<bool> taken_;                // by id: the vocabulary has it
  StringMap<bool> seen_;                   // added tokens
  std::string merge_text_;                 // the two parts of all merges, one after the other
  std::vector<std::uint32_t> merge_ends_;  // the end of each part in merge_text_
};

Json byte_level_json(bool add_prefix_space, bool trim_offsets) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", trim_offsets}, {"use_regex", true}};
}

}  // namespace

std::string Tokenizer::to_json() const {
  Json added = Json::array();
  for (const AddedToken& token : model_->added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  // The list of an ordered_json object is built directly, in linear time: its own insertion compares a new key with all earlier ones, and
  // tokens are all different.
  Json::object_t vocab;
  vocab.reserve(model_->model_tokens);
  for (std::size_t id = 0; id < model_->model_tokens; ++id) {
    vocab.Container::emplace_back(model_->tokens[id], static_cast<std::int64_t>(id));
  }
  Json merges = Json::array();
  for (const PairKey pair : model_->merges) {
    merges.push_back(
        Json::array({model_->tokens[static_cast<std::size_t>(left_of(pair))], model_->tokens[static_cast<std::size_t>(right_of(pair))]}));
  }
  Json root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = std::move(added);
  root["normalizer"] = model_->composes ? Json{{"type", "NFC"}} : Json(nullptr);
  const auto as_read = [](const std::string& part, Json usual) { return part.empty() ? usual : Json::parse(part); };
  root["pre_tokenizer"] = as_read(model_->pre_tokenizer, byte_level_json(false, true));
  root["post_processor"] = as_read(model_->post_processor, byte_level_json(true, false));
  root["decoder"] = byte_level_json(true, true);
  root["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", model_->ignores_merges}};
  root["model"]["vocab"] = std::move(vocab);
  root["model"]["merges"] = std::move(merges);
  return root.dump(2);
}

static void check_size(std::uint64_t bytes, const std::string& name) {
  if (bytes > max_file_bytes) throw DataError(fmt::format("{}: expected at most {} bytes but got {}", name, max_file_bytes, bytes));
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view name) {
  check_size(json.size(), std::string(name));
  JsonSource source(json, std::string(name), limits.max_string_bytes);
  return Tokenizer(Reader(source).read());
}

// tokenizer_config.json beside a tokenizer.json is of transformers. Its one key that changes the ids of plain text is refused.
static void check_config(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return;
  InputFile file(path);
  check_size(file.size(), file.name());
  const JsonLimits wide;  // added tokens are listed here as well
  JsonSource source(file, file.size(), wide.max_string_bytes);
  const Json config = JsonReader(source, wide).read();
  const auto value = [&](const char* key) { return config.is_object() && config.contains(key) ? config[key] : Json(); };
  const bool is_gpt2 = value("tokenizer_class").is_string() && value("tokenizer_class").get<std::string>().starts_with("GPT2");
  if (is_gpt2 && value("add_prefix_space") == true)
    throw DataError(file.name() + ": \"add_prefix_space\": expected false but got true: put a space before each text, and set it to false");
}

Tokenizer Tokenizer::load(const std::string& path) {
  InputFile file(path);
  check_config(std::filesystem::path(path).parent_path() / "tokenizer_config.json");
  check_size(file.size(), file.name());
  JsonSource source(file, file.size(), limits.max_string_bytes);
  return Tokenizer(Reader(source).read());
}

}  // namespace tern::text
