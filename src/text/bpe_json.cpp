// tokenizer.json, both directions. A file that we write is, byte for byte, what Hugging Face's library writes for the
// same tokenizer. A file that we read may come from anywhere: its size, depth and number of values are bounded while it
// is parsed, and whatever would make that library encode differently from us is refused rather than ignored.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "text/bpe.h"
#include "text/bpe_model.h"
#include "text/data_error.h"

namespace tern::text {
namespace {

using Json = nlohmann::json;                 // read: keys are found in log time, however many a file has
using OrderedJson = nlohmann::ordered_json;  // written: keys stay in their order

constexpr std::size_t max_file_bytes = std::size_t{128} << 20;
constexpr std::size_t max_values = 4'000'000;  // of any kind, keys included: a token and its merge take five
constexpr std::size_t max_depth = 8;

// Text from the file as a message may show it: short, UTF-8, without control characters, so one line.
std::string shown(std::string_view text) {
  const bool cut = text.size() > 120;
  std::string out = utf8_lossy(text.substr(0, 120));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return cut ? out + "..." : out;
}

// Builds the values that a text describes, within the limits. (nlohmann's own parser with a callback looks through all
// of a list after each object in it, so that a few megabytes can keep it busy for hours.)
class BoundedParser : public nlohmann::json_sax<Json> {
 public:
  explicit BoundedParser(const std::string& name) : name_(name) {}
  Json root;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    count();
    const auto [place, is_new] = open_.back()->get_ref<Json::object_t&>().emplace(std::move(name), nullptr);
    if (!is_new) throw DataError(fmt::format("{}: expected each key once but got '{}' twice", name_, shown(place->first)));
    member_ = &place->second;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    throw DataError(fmt::format("{}: expected JSON but got: {}", name_, shown(error.what())));
  }

 private:
  void count() {
    if (++values_ <= max_values) return;
    throw DataError(fmt::format("{}: expected at most {} JSON values but got more", name_, max_values));
  }

  bool add(Json value) {
    count();
    if (open_.empty()) {
      place_ = &(root = std::move(value));
    } else if (open_.back()->is_array()) {
      place_ = &open_.back()->emplace_back(std::move(value));
    } else {
      place_ = &(*member_ = std::move(value));
    }
    return true;
  }

  bool open(Json empty) {
    if (open_.size() >= max_depth) {
      throw DataError(fmt::format("{}: expected at most {} levels of nesting but got more", name_, max_depth));
    }
    add(std::move(empty));
    open_.push_back(place_);  // stays where it is: its parent does not grow before it is closed
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& name_;
  std::vector<Json*> open_;  // the arrays and objects that are not closed yet
  Json* member_ = nullptr;   // the value of the last key
  Json* place_ = nullptr;    // the value added last
  std::size_t values_ = 0;
};

class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name), model_(std::make_shared<BpeModel>()) {}

  std::shared_ptr<BpeModel> read(std::string_view text) {
    if (text.size() > max_file_bytes) fail("at most {} bytes but got {}", max_file_bytes, text.size());
    const Json root = parse(text);
    only_keys(root, "the file",
              {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"});
    expect(root, "version", "1.0");
    for (const char* key : {"truncation", "padding", "normalizer"}) expect(root, key, nullptr);
    byte_level(root, "pre_tokenizer");
    expect(root["pre_tokenizer"], "add_prefix_space", false);
    if (const Json& post = member(root, "post_processor"); !post.is_null()) byte_level(root, "post_processor");
    byte_level(root, "decoder");
    const Json& model = member(root, "model");
    only_keys(model, "model",
              {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
               "ignore_merges", "vocab", "merges"});
    expect(model, "type", "BPE", "BPE");
    expect(model, "dropout", nullptr);
    expect(model, "unk_token", nullptr);
    expect(model, "continuing_subword_prefix", nullptr, "");
    expect(model, "end_of_word_suffix", nullptr, "");
    expect(model, "byte_fallback", false);
    expect(model, "ignore_merges", false);
    read_vocab(member(model, "vocab"));
    read_merges(member(model, "merges"));
    read_added(member(root, "added_tokens"));
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

  Json parse(std::string_view text) const {
    BoundedParser parser(name_);
    Json::sax_parse(text.begin(), text.end(), &parser);
    return std::move(parser.root);
  }

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

  // An absent setting is null; `also` is a second value that means the same.
  void expect(const Json& object, const char* key, const Json& value, const Json& also = nullptr) const {
    const Json& got = member(object, key);
    if (got == value || (got == also && (also != nullptr || value == nullptr)) || (got.is_null() && value == Json(false))) {
      return;
    }
    fail("'{}' to be {} but got {}", key, value.dump(), shown(got.is_structured() ? got.type_name() : got.dump()));
  }

  void byte_level(const Json& root, const char* key) const {
    const Json& part = member(root, key);
    if (part.is_null()) fail("'{}' of type ByteLevel but got null", key);
    only_keys(part, key, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    expect(part, "type", "ByteLevel");
    if (std::strcmp(key, "pre_tokenizer") == 0 && part.contains("use_regex")) expect(part, "use_regex", true);
    for (const char* flag : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      if (part.contains(flag) && !part[flag].is_boolean()) {
        fail("'{}' of '{}' to be a boolean but got {}", flag, key, part[flag].type_name());
      }
    }
  }

  std::int32_t id_of(const Json& value, std::size_t limit, std::string_view token) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= limit) {
      fail("the ids 0 to {}, each once, but got {} for '{}'", limit - 1, shown(value.dump()), shown(token));
    }
    return value.get<std::int32_t>();
  }

  void read_vocab(const Json& vocab) {
    if (!vocab.is_object()) fail("'vocab' to be an object but got {}", vocab.type_name());
    if (vocab.size() > max_vocab_size) fail("at most {} tokens but got {}", max_vocab_size, vocab.size());
    model_->tokens.resize(vocab.size());
    std::vector<bool> taken(vocab.size());
    for (const auto& [token, value] : vocab.items()) {
      const auto id = static_cast<std::size_t>(id_of(value, vocab.size(), token));
      if (taken[id]) fail("each id once but got {} for '{}' and '{}'", id, shown(model_->tokens[id]), shown(token));
      taken[id] = true;
      model_->tokens[id] = token;
      ids_.emplace(token, static_cast<std::int32_t>(id));
    }
    if (ids_.size() != vocab.size()) fail("each token once in 'vocab' but got one twice");
    model_->model_tokens = vocab.size();
  }

  std::int32_t merge_part(std::string_view token, std::size_t rank) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) fail("merge {} to name tokens of the vocabulary but got '{}'", rank, shown(token));
    return found->second;
  }

  void read_merges(const Json& merges) {
    if (!merges.is_array()) fail("'merges' to be an array but got {}", merges.type_name());
    std::vector<PairKey> pairs;
    PairMap<std::size_t> last;  // of a pair that stands twice the later rank counts
    for (const Json& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
          fail("merge {} to be two tokens with a space between but got '{}'", pairs.size(), shown(both));
        }
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        fail("merge {} to be two tokens but got {}", pairs.size(), shown(merge.type_name()));
      }
      const PairKey pair = pair_key(merge_part(left, pairs.size()), merge_part(right, pairs.size()));
      last[pair] = pairs.size();
      pairs.push_back(pair);
    }
    for (std::size_t rank = 0; rank < pairs.size(); ++rank) {
      if (last[pairs[rank]] == rank) model_->merges.push_back(pairs[rank]);
    }
  }

  void read_added(const Json& added) {
    if (added.is_null()) return;
    if (!added.is_array()) fail("'added_tokens' to be an array but got {}", added.type_name());
    StringMap<bool> seen;
    for (const Json& entry : added) {
      only_keys(entry, "an added token", {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token;
      const Json& content = member(entry, "content");
      if (!content.is_string()) fail("an added token's 'content' to be a string but got {}", content.type_name());
      token.content = content.get<std::string>();
      if (token.content.empty() || token.content.size() > max_added_bytes) {
        fail("an added token of 1 to {} bytes but got {}", max_added_bytes, token.content.size());
      }
      if (!seen.emplace(token.content, true).second) {
        fail("each added token once but got '{}' twice", shown(token.content));
      }
      for (const char* flag : {"single_word", "lstrip", "rstrip"}) expect(entry, flag, false);
      for (const char* flag : {"normalized", "special"}) {
        if (!member(entry, flag).is_boolean()) fail("'{}' of an added token to be a boolean", flag);
      }
      token.normalized = entry["normalized"].get<bool>();
      token.special = entry["special"].get<bool>();
      // An added token is either one of the vocabulary or the next one after it.
      token.id = id_of(member(entry, "id"), model_->tokens.size() + 1, token.content);
      const auto found = ids_.find(token.content);
      const std::size_t id = found != ids_.end() ? static_cast<std::size_t>(found->second) : model_->tokens.size();
      if (static_cast<std::size_t>(token.id) != id) {
        fail("id {} for the added token '{}' but got {}", id, shown(token.content), token.id);
      }
      if (found == ids_.end()) model_->tokens.push_back(token.content);
      model_->added.push_back(std::move(token));
    }
    std::sort(model_->added.begin(), model_->added.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  }

  std::string name_;
  Json null_;
  std::shared_ptr<BpeModel> model_;
  StringMap<std::int32_t> ids_;  // of the vocabulary
};

OrderedJson byte_level_json(bool add_prefix_space, bool trim_offsets) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", trim_offsets}, {"use_regex", true}};
}

std::string read_file(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw DataError(fmt::format("{}: could not be opened: {}", path.string(), std::strerror(errno)));
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, file.get())) {
    text.append(buffer, n);
    if (text.size() > max_file_bytes) break;
  }
  if (std::ferror(file.get())) {
    throw DataError(fmt::format("{}: could not be read: {}", path.string(), std::strerror(errno)));
  }
  return text;
}

}  // namespace

std::string Tokenizer::to_json() const {
  OrderedJson added = OrderedJson::array();
  for (const AddedToken& token : model_->added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  // An ordered_json object looks for each new key among all it has. Tokens are all different, so its list is built
  // directly, which keeps this linear.
  OrderedJson::object_t vocab;
  vocab.reserve(model_->model_tokens);
  for (std::size_t id = 0; id < model_->model_tokens; ++id) {
    vocab.Container::emplace_back(model_->tokens[id], static_cast<std::int64_t>(id));
  }
  OrderedJson merges = OrderedJson::array();
  for (const PairKey pair : model_->merges) {
    merges.push_back(OrderedJson::array(
        {model_->tokens[static_cast<std::size_t>(left_of(pair))], model_->tokens[static_cast<std::size_t>(right_of(pair))]}));
  }
  OrderedJson root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = std::move(added);
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = byte_level_json(false, true);
  root["post_processor"] = byte_level_json(true, false);
  root["decoder"] = byte_level_json(true, true);
  root["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false}};
  root["model"]["vocab"] = std::move(vocab);
  root["model"]["merges"] = std::move(merges);
  return root.dump(2);
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view name) { return Tokenizer(Reader(name).read(json)); }

Tokenizer Tokenizer::load(const std::filesystem::path& path) { return from_json(read_file(path), path.string()); }

}  // namespace tern::text
