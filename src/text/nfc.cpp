#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <vector>

#include "text/unicode.h"

namespace tern::text {
namespace {

constexpr char32_t first_mark = 0x300;  // below it nothing changes, moves or joins

// Characters that combine or compose since Unicode 10: to the tables of Hugging Face's tokenizers, which are those of Unicode 9, each is
// one that does not. Tokens must not depend on the installed library either.
struct Range {
  char32_t first, last;
};
constexpr Range later[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},
    {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1AEB},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C9, 0x105C9},
    {0x105E4, 0x105E4}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFA, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11382, 0x113E2}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x1611E, 0x1612F}, {0x16D63, 0x16D6A}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6F5}};

bool is_later(char32_t c) {
  const auto range = std::lower_bound(std::begin(later), std::end(later), c, [](const Range& each, char32_t x) { return each.last < x; });
  return range != std::end(later) && range->first <= c;
}

// The size of the text before the first byte that is not UTF-8 and the first character that is_later().
std::size_t composing_size(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = decode_utf8(text.substr(at));
    if (!step.valid || (step.code_point >= first_mark && is_later(step.code_point))) break;
    at += step.size;
  }
  return at;
}

// The quick check of Annex 15, section 9, for each character: true where its answer is not yes, or the combining class not 0.
const std::vector<bool>& may_change() {
  static const std::vector<bool> table = [] {
    std::vector<bool> result(0x110000);
    for (utf8proc_int32_t c = first_mark; c < 0x110000; ++c) {
      if ((c >= 0xD800 && c < 0xE000) || is_later(static_cast<char32_t>(c))) continue;
      if (utf8proc_get_property(c)->combining_class != 0) result[static_cast<std::size_t>(c)] = true;
      utf8proc_int32_t parts[32];
      int last_class = 0;
      const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
      const utf8proc_ssize_t count = utf8proc_decompose_char(c, parts, 32, options, &last_class);
      if (count == 1 && parts[0] == c) continue;
      for (utf8proc_ssize_t i = 1; i < count; ++i) result[static_cast<std::size_t>(parts[i])] = true;
      const utf8proc_ssize_t composed =
          utf8proc_normalize_utf32(parts, count, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      if (composed != 1 || parts[0] != c) result[static_cast<std::size_t>(c)] = true;
    }
    return result;
  }();
  return table;
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  const std::vector<bool>& table = may_change();
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0xCC) {  // the lead byte of U+0300
      ++at;
      continue;
    }
    const Utf8Step step = decode_utf8(text.substr(at));
    if (step.valid && table[step.code_point]) return false;
    at += step.size;
  }
  return true;
}

// Appends text without a line break but at its end.
static void append_nfc(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, composing_size(text));
    text.remove_prefix(valid.size());
    if (!valid.empty()) {
      utf8proc_uint8_t* composed = nullptr;
      const utf8proc_ssize_t size =
          utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()), static_cast<utf8proc_ssize_t>(valid.size()), &composed,
                       static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      if (size < 0) throw std::bad_alloc();
      const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, std::free);
      out.append(reinterpret_cast<const char*>(composed), static_cast<std::size_t>(size));
    }
    if (text.empty()) break;
    const std::size_t other = decode_utf8(text).size;
    out += text.substr(0, other);
    text.remove_prefix(other);
  }
}

// Nothing composes with a line break, and most lines stay as they are.
std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::string_view line = text.substr(0, std::min(text.size(), text.find('\n')) + 1);
    text.remove_prefix(line.size());
    if (is_surely_nfc(line)) out += line;
    else append_nfc(out, line);
  }
  return out;
}

}  // namespace tern::text
