#include "io/json_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "io/file_error.h"

namespace tern::io {

namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

JsonObject JsonObject::parse(std::string_view text, std::string where) {
  const auto fail = [&](const std::string& message) { throw FileError(where + ": " + message); };
  // To the parser a NUL ends the text, whatever stands behind it.
  if (text.find('\0') != text.npos) fail("is not valid JSON: it holds a NUL byte");
  // The parser is iterative, but what uses a document is not: a hostile depth would overflow the stack.
  constexpr int max_depth = 64;
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > max_depth) fail(fmt::format("is nested deeper than {} levels", max_depth));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      fail(fmt::format("has the key {} twice", text_of(parsed)));
    return true;
  };
  JsonObject result;
  try {
    const Json document = Json::parse(text.begin(), text.end(), check);
    if (!document.is_object()) fail(fmt::format("expected a JSON object but got {}", document.type_name()));
    for (const auto& [key, value] : document.items()) result.members_.emplace_back(key, text_of(value));
  } catch (const Json::parse_error& error) {
    fail(fmt::format("is not valid JSON: error at byte {}", error.byte));
  }
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
                              text ? "got " + text->substr(0, 40) : "it is missing"));
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
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  if (!fits) fail(key, "an integer");
  return value.get<std::int64_t>();
}

double JsonObject::get_double(std::string_view key) const {
  const std::string* text = find(key);
  const Json value = text ? Json::parse(*text) : Json();
  if (!value.is_number()) fail(key, "a number");
  return value.get<double>();
}

JsonObject JsonObject::get_object(std::string_view key) const {
  const std::string* text = find(key);
  if (!text || text->front() != '{') fail(key, "an object");
  return parse(*text, where_);
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

}  // namespace tern::io
