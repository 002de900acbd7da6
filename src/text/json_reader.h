#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/input_file.h"

// Reads untrusted JSON in linear time and bounded memory, with nlohmann's lexer. (nlohmann's own document builder takes quadratic time:
// with a callback it scans a list after each object in it, and an ordered object compares a new key with all earlier ones. A few megabytes
// can take hours.)
namespace tern::text {

// Bounds on a text. A text past one of them is a DataError that begins with the text's name.
struct JsonLimits {
  std::size_t max_string_bytes = std::size_t{1} << 20;  // of one string or number, and of one run of white space
  std::size_t max_values = 100'000;                     // of any kind, keys included, that are kept at a time
  std::size_t max_depth = 64;
};

// The bytes of a text for the parser, from memory or from a file piece by piece.
class JsonSource {
 public:
  JsonSource(std::string_view text, std::string name, std::size_t max_string_bytes);
  // The next `bytes` bytes of the file, which has to outlive the source. `on_read` receives them as they are read.
  JsonSource(InputFile& file, std::uint64_t bytes, std::size_t max_string_bytes, std::function<void(std::string_view)> on_read = {});

  const std::string& name() const noexcept { return name_; }
  bool has_more() { return at_ < part_.size() || refill(); }
  char front() const noexcept { return part_[at_]; }        // after has_more()
  std::string_view part() const noexcept { return part_; }  // the bytes in memory; at first those that the text begins with
  void step() {
    if (part_[at_] == '\0' || ++since_ > max_string_bytes_) fail();
    ++at_;
  }
  // Restarts the count of bytes for max_string_bytes, at the end of a value.
  void begin_value() noexcept { since_ = 0; }

  // An input iterator. The end has no source.
  struct Iterator {
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = char;
    JsonSource* source = nullptr;
    char operator*() const { return source->front(); }
    Iterator& operator++() {
      source->step();
      return *this;
    }
    Iterator operator++(int) {
      source->step();
      return *this;
    }
    bool operator==(const Iterator& other) const { return !((source && source->has_more()) || (other.source && other.source->has_more())); }
  };
  Iterator begin() noexcept { return {this}; }
  Iterator end() const noexcept { return {}; }

 private:
  bool refill();
  [[noreturn]] void fail() const;

  std::string name_;
  std::string_view part_;
  std::size_t at_ = 0, since_ = 0, max_string_bytes_;
  InputFile* file_ = nullptr;
  std::uint64_t left_ = 0;  // of the file
  std::vector<char> buffer_;
  std::function<void(std::string_view)> on_read_;
};

// A SAX handler that builds a document, with the keys in their order. Throws DataError for invalid JSON, for a key that an object has
// twice, for a number outside float64's range, and past the limits.
class JsonReader : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  using Json = nlohmann::ordered_json;
  using Receiver = std::function<void(const std::string& key, Json& value)>;

  JsonReader(JsonSource& source, const JsonLimits& limits) : source_(source), limits_(limits) {}
  // Passes each member or element of the object or array at `path`, e.g. {"model", "vocab"}, to `receiver`; the container in the document
  // stays empty. An element has the key "". Repeated keys are not detected here: the receiver has to.
  void stream(std::vector<std::string> path, Receiver receiver) { streams_.push_back({std::move(path), std::move(receiver)}); }
  Json read();

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(value); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override;
  bool end_array() override { return close(); }
  bool key(string_t& name) override;
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override;

 private:
  struct Stream {
    std::vector<std::string> path;
    Receiver receiver;
  };
  bool is_streamed() const noexcept { return stream_ && open_.size() == stream_depth_; }
  bool add(Json value);
  bool open(Json empty);
  bool close();
  void deliver();
  void count();

  JsonSource& source_;
  JsonLimits limits_;
  std::vector<Stream> streams_;
  Json root_;
  std::vector<Json*> open_;        // the arrays and objects that are not closed yet; a parent does not grow before its child is closed
  std::vector<std::string> path_;  // their keys
  std::string key_, stream_key_;   // the last key, of the document and of the stream
  Json* last_ = nullptr;           // the value added last
  std::size_t values_ = 0;
  const Stream* stream_ = nullptr;
  std::size_t stream_depth_ = 0, stream_values_ = 0;
  Json element_;
};

}  // namespace tern::text
