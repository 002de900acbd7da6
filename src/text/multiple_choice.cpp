#include "text/multiple_choice.h"

#include <fmt/format.h>

#include "text/data_error.h"
#include "text/json_reader.h"
#include "text/unicode.h"

namespace tern::text {

MultipleChoice read_multiple_choice(std::string_view line, const std::string& place) {
  const JsonLimits limits;
  JsonSource source(line, place, limits.max_string_bytes);
  const JsonReader::Json json = JsonReader(source, limits).read();
  const auto require = [&](bool holds, const char* expected) {
    if (!holds) throw DataError(fmt::format("{}: expected {}", place, expected));
  };
  require(json.is_object() && json.contains("ctx") && json["ctx"].is_string(), "an object with the text \"ctx\"");
  require(json.contains("endings") && json["endings"].is_array() && json["endings"].size() >= 2,
          "\"endings\", a list of two texts or more");
  MultipleChoice result;
  result.context = json["ctx"].get<std::string>();
  for (const JsonReader::Json& ending : json["endings"]) {
    require(ending.is_string() && !is_blank(ending.get<std::string>()), "\"endings\" that are texts and not blank");
    result.endings.push_back(ending.get<std::string>());
  }
  const JsonReader::Json label = json.contains("label") ? json["label"] : JsonReader::Json();
  const std::string number = label.is_string() ? label.get<std::string>() : label.dump();
  const bool is_number = !number.empty() && number.size() < 7 && number.find_first_not_of("0123456789") == std::string::npos;
  require(is_number && std::stoul(number) < result.endings.size(), "\"label\", the number of an ending from 0");
  result.label = std::stoul(number);
  return result;
}

}  // namespace tern::text
