#include "common/plot/svg.h"

#include "text/unicode.h"

namespace tern::apps::svg {

namespace {

bool is_xml(char32_t c) { return c == '\t' || c == '\n' || c == '\r' || (c >= 0x20 && c <= 0xFFFD) || c >= 0x10000; }

}  // namespace

std::string escape(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const text::Utf8Step step = text::decode_utf8(text);
    const char32_t c = step.code_point;
    if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '&') result += "&amp;";
    else if (c == '"') result += "&quot;";
    else text::append_utf8(result, step.valid && is_xml(c) ? c : text::replacement_character);
    text.remove_prefix(step.size);
  }
  return result;
}

}  // namespace tern::apps::svg
