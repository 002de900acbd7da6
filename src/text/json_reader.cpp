#include "text/json_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/data_error.h"
#include "text/unicode.h"

namespace tern::text {

JsonSource::JsonSource(std::string_view text, std::string name, std::size_t max_string_bytes)
    : name_(std::move(name)), part_(text), max_string_bytes_(max_string_bytes) {}

JsonSource::JsonSource(InputFile& file, std::uint64_t bytes, std::size_t max_string_bytes, std::function<void(std::string_view)> on_read)
    : name_(file.name()),
      max_string_bytes_(max_string_bytes),
      file_(&file),
      left_(bytes),
      buffer_(std::size_t{1} << 16),
      on_read_(std::move(on_read)) {}

bool JsonSource::refill() {
  if (!file_ || left_ == 0) return false;
  const auto got = static_cast<std::size_t>(std::min<std::uint64_t>(left_, buffer_.size()));
  file_->read_exactly(buffer_.data(), got);
  left_ -= got;
  part_ = {buffer_.data(), got};
  at_ = 0;
  if (on_read_) on_read_(part_);
  return true;
}

void JsonSource::fail() const {
  if (part_[at_] == '\0') throw DataError(name_ + ": expected valid JSON but got a NUL byte");
  throw DataError(fmt::format("{}: expected strings and white space of at most {} bytes but got more", name_, max_string_bytes_));
}

JsonReader::Json JsonReader::read() {
  Json::sax_parse(source_.begin(), source_.end(), this);
  return std::move(root_);
}

bool JsonReader::parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
  if (error.id == 406)
    throw DataError(fmt::format("{}: expected numbers that fit in a float64 but got one at byte {}", source_.name(), position));
  constexpr std::size_t begin = 64;
  if (const std::string_view kind = position <= begin ? foreign_kind(source_.part()) : ""; !kind.empty())
    throw DataError(fmt::format("{}: expected JSON but got {}", source_.name(), kind));
  throw DataError(fmt::format("{}: expected valid JSON but got an error at byte {}", source_.name(), position));
}

void JsonReader::count() {
  source_.begin_value();
  if (++values_ <= limits_.max_values) return;
  throw DataError(fmt::format("{}: expected at most {} JSON values but got more", source_.name(), limits_.max_values));
}

bool JsonReader::key(string_t& name) {
  count();
  (is_streamed() ? stream_key_ : key_) = name;
  // Appends without the object's own search for the key; end_object() checks all keys at once.
  if (!is_streamed()) open_.back()->get_ref<Json::object_t&>().Container::emplace_back(key_, nullptr);
  return true;
}

bool JsonReader::add(Json value) {
  count();
  if (is_streamed()) {
    element_ = std::move(value);
    last_ = &element_;
    if (!element_.is_structured()) deliver();
  } else if (open_.empty()) {
    last_ = &(root_ = std::move(value));
  } else if (open_.back()->is_array()) {
    last_ = &open_.back()->emplace_back(std::move(value));
  } else {
    last_ = &(open_.back()->get_ref<Json::object_t&>().back().second = std::move(value));
  }
  return true;
}

bool JsonReader::open(Json empty) {
  if (open_.size() >= limits_.max_depth)
    throw DataError(fmt::format("{}: expected at most {} levels of nesting but got more", source_.name(), limits_.max_depth));
  const bool is_member = !open_.empty() && open_.back()->is_object();
  add(std::move(empty));
  open_.push_back(last_);
  path_.push_back(is_member ? key_ : "");
  if (stream_) return true;
  for (const Stream& stream : streams_) {
    if (!std::equal(path_.begin() + 1, path_.end(), stream.path.begin(), stream.path.end())) continue;
    stream_ = &stream;
    stream_depth_ = open_.size();
    stream_values_ = values_;
  }
  return true;
}

bool JsonReader::end_object() {
  std::vector<const std::string*> keys;
  for (const auto& [key, value] : open_.back()->get_ref<const Json::object_t&>()) keys.push_back(&key);
  std::sort(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto same = std::adjacent_find(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a == *b; });
  if (same != keys.end())
    throw DataError(fmt::format("{}: expected each key once but got \"{}\" twice", source_.name(), printable(**same, 120)));
  return close();
}

bool JsonReader::close() {
  source_.begin_value();
  open_.pop_back();
  path_.pop_back();
  if (stream_ && open_.size() < stream_depth_) stream_ = nullptr;
  if (is_streamed()) deliver();
  return true;
}

void JsonReader::deliver() {
  stream_->receiver(stream_key_, element_);
  element_ = nullptr;
  values_ = stream_values_;
}

}  // namespace tern::text
