#include "io/json_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/json_reader.h"
#include "text/unicode.h"

namespace tern::io {

namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

bool is_int64(const Json& value) {
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
}

}  // namespace

std::string json_text(std::string_view text) { return text_of(text); }

JsonObject JsonObject::parse(std::string_view text, std::string where) {
  const text::JsonLimits limits;
  text::JsonSource source(text, where, limits.max_string_bytes);
  const Json document = text::JsonReader(source, limits).read();
  if (!document.is_object()) throw FileError(fmt::format("{}: expected a JSON object but got {}", where, document.type_name()));
  JsonObject result;
  result.members_.reserve(document.size());
  for (const auto& [key, value] : document.items()) result.members_.emplace_back(key, text_of(value));
  result.where_ = std::move(where);
  return result;
}

JsonObject& JsonObject::set_text(std::string_view key, std::string json) {
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const auto& member) { return member.first == key; });
  if (found == members_.end()) members_.emplace_back(key, std::move(json));
  else found->second = std::move(json);
  return *this;
}

JsonObject& JsonObject::set(std::string_view key, std::string_view value) { return set_text(key, text_of(value)); }
JsonObject& JsonObject::set(std::string_view key, bool value) { return set_text(key, value ? "true" : "false"); }
JsonObject& JsonObject::set(std::string_view key, double value) { return set_text(key, text_of(value)); }
JsonObject& JsonObject::set(std::string_view key, const JsonObject& value) { return set_text(key, value.dump()); }
JsonObject& JsonObject::set(std::string_view key, const std::vector<std::string>& values) { return set_text(key, text_of(values)); }
JsonObject& JsonObject::set(std::string_view key, const std::vector<std::int64_t>& values) {
  return set_text(key, fmt::format("[{}]", fmt::join(values, ", ")));
}
JsonObject& JsonObject::set_integer(std::string_view key, std::int64_t value) { return set_text(key, fmt::to_string(value)); }

JsonObject& JsonObject::update(const JsonObject& other) {
  for (const auto& [key, text] : other.members_) set_text(key, text);
  return *this;
}

const std::string* JsonObject::find(std::string_view key) const {
  for (const auto& [name, text] : members_)
    if (name == key) return &text;
  return nullptr;
}

void JsonObject::fail(std::string_view key, const char* expected) const {
  const std::string* text = find(key);
  throw FileError(fmt::format("{}: expected the key \"{}\" to be {} but {}", where_.empty() ? "JSON" : where_, key, expected,
                              text ? "got " + text::printable(*text, 60) : "it is missing"));
}

std::string JsonObject::get_string(std::string_view key) const {
  const std::string* text = find(key);
  if (!text || text->front() != '"') fail(key, "a string");
  return Json::parse(*text).get<std::string>();
}

bool JsonObject::get_bool(std::string_view key) const {
  const std::string* text = find(key);
  if (!text || (*text != "true" && *text != "false")) fail(key, "true or false");
  return *text == "true";
}

std::int64_t JsonObject::get_int(std::string_view key) const {
  const std::string* text = find(key);
  const Json value = text ? Json::parse(*text) : Json();
  if (!is_int64(value)) fail(key, "an integer");
  return value.get<std::int64_t>();
}

double JsonObject::get_double(std::string_view key) const {
  const std::string* text = find(key);
  const Json value = text ? Json::parse(*text) : Json();
  if (!value.is_number()) fail(key, "a number");
  return value.get<double>();
}

std::vector<std::int64_t> JsonObject::get_ints(std::string_view key) const {
  const std::string* text = find(key);
  const Json list = text ? Json::parse(*text) : Json();
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_int64)) fail(key, "a list of integers");
  return list.get<std::vector<std::int64_t>>();
}

JsonObject JsonObject::get_object(std::string_view key) const {
  const std::string* text = find(key);
  if (!text || text->front() != '{') fail(key, "an object");
  return parse(*text, where_);
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> result;
  for (const auto& [key, text] : members_) result.push_back(key);
  return result;
}

std::vector<std::pair<std::string, double>> JsonObject::numbers() const {
  std::vector<std::pair<std::string, double>> result;
  for (const auto& [key, text] : members_)
    if (text.front() == '-' || (text.front() >= '0' && text.front() <= '9')) result.emplace_back(key, get_double(key));
  return result;
}

std::string JsonObject::dump() const {
  std::string result = "{";
  for (const auto& [key, text] : members_) result += fmt::format("{}{}:{}", result.size() > 1 ? "," : "", text_of(key), text);
  return result + "}";
}

std::string JsonObject::pretty() const {
  std::string result = "{\n";
  for (const auto& [key, text] : members_) result += fmt::format("{}  {}: {}", result.size() > 2 ? ",\n" : "", text_of(key), text);
  return result + "\n}\n";
}

JsonObject read_json(const std::string& path) {
  constexpr std::size_t max_bytes = std::size_t(16) << 20;
  return JsonObject::parse(read_file(path, max_bytes), path);
}

void write_json(const std::string& path, const JsonObject& object) { write_file_atomically(path, object.pretty()); }

}  // namespace tern::io
