#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "catch.h"
#include "support.h"
#include "text/metrics.h"
#include "text/pretokenize.h"

using namespace tern::text;
using namespace tern::text::test;

TEST_CASE("every code point survives UTF-8", "[text]") {
  std::array<int, 5> of_size = {};
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string bytes;
    append_utf8(bytes, c);
    const Utf8Step step = decode_utf8(bytes);
    if (!(step.valid && step.code_point == c && step.size == bytes.size())) FAIL("U+" << std::hex << std::uint32_t(c));
    if (bytes.size() > 1 && find_invalid_utf8(std::string_view(bytes).substr(0, bytes.size() - 1)) != 0) FAIL();
    ++of_size[bytes.size()];
  }
  CHECK(of_size == std::array<int, 5>{0, 0x80, 0x800 - 0x80, 0x10000 - 0x800 - 0x800, 0x100000});
}

TEST_CASE("ill-formed UTF-8 is found and replaced by maximal subparts", "[text]") {
  const std::string r = "\xEF\xBF\xBD";
  CHECK(find_invalid_utf8("plain ascii, long enough for eight") == std::string_view::npos);
  CHECK(find_invalid_utf8("12345678901\xFF") == 11);
  CHECK(utf8_lossy("") == "");
  CHECK(utf8_lossy("a\x80z") == "a" + r + "z");
  CHECK(utf8_lossy("\xC0\xAF") == r + r);                  // overlong
  CHECK(utf8_lossy("\xE0\x80\x80") == r + r + r);          // overlong
  CHECK(utf8_lossy("\xED\xA0\x80") == r + r + r);          // surrogate
  CHECK(utf8_lossy("\xF4\x90\x80\x80") == r + r + r + r);  // past U+10FFFF
  CHECK(utf8_lossy("\xF0\x9F\x98") == r);                  // cut short: one subpart
  CHECK(utf8_lossy("\xF0\x9F\x98"
                   "a") == r + "a");
  CHECK(utf8_lossy("\xE2\x82\xE2\x82\xAC") == r + "\xE2\x82\xAC");
  CHECK(utf8_lossy("\xF8\x88\x80\x80\x80") == r + r + r + r + r);
  // The example of The Unicode Standard, table 3-8.
  CHECK(utf8_lossy("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64") == "a" + r + r + r + "b" + r + "c" + r + r + "d");
}

TEST_CASE("white space is Python's", "[text]") {
  const Json spaces = fixture("characters.json")["spaces"];
  std::size_t next = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    const bool expected = next < spaces.size() && spaces[next].get<char32_t>() == c;
    next += expected;
    if (is_python_space(c) != expected) FAIL("U+" << std::hex << std::uint32_t(c));
  }
  CHECK(strip_right("a b \t\xE3\x80\x80\x1C") == "a b");
  CHECK(strip_right(" \xC2\xA0\xC2\x85") == "");
  CHECK(strip_right("x\xA0") == "x\xA0");  // a stray byte is not a space
}

TEST_CASE("a blank line shows nothing", "[text]") {
  for (const std::string blank :
       {"", " ", "   ", "\t", "\r", "\xC2\xA0", "\xE3\x80\x80", "\xE2\x80\x8B", "\xEF\xBB\xBF", "\xE2\x81\xA0 \xC2\xAD", "\x1B",
        "\xE2\xA0\x80", "\xE3\x85\xA4", "\xE1\xA0\x8E", "\xE2\x80\xA8\xC2\x85", "\xF3\xA0\x80\xA0"})
    CHECK(is_blank(blank));
  for (const std::string text :
       {"a", " .", "\xE2\x80\x8B-", "\xE3\x80\x81", "\xF0\x9F\x98\x80", "\xFF", " \xC2", "\xCC\x81", "\xEF\xBF\xBD"})
    CHECK_FALSE(is_blank(text));
  // As many as Python's spaces, control characters, U+2800 and the property Default_Ignorable_Code_Point (of the package regex) are.
  std::size_t blanks = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const bool is_one = is_blank(text);
    blanks += is_one;
    if (is_python_space(c) && !is_one) FAIL("U+" << std::hex << std::uint32_t(c));
  }
  CHECK(blanks == 4259);
}

namespace {

// Letters that got a lower case after Unicode 15: whether the machine's utf8proc has it is up to its version.
bool is_later_letter(char32_t c) {
  constexpr char32_t latin[] = {0xA7CB, 0xA7CC, 0xA7CE, 0xA7D2, 0xA7D4, 0xA7DA, 0xA7DC};
  return c == 0x1C89 || std::find(std::begin(latin), std::end(latin), c) != std::end(latin) || (c >= 0x10D50 && c <= 0x10D65) ||
         (c >= 0x16EA0 && c <= 0x16EB8);
}

}  // namespace

TEST_CASE("lower-casing is Python's", "[text]") {
  const Json characters = fixture("characters.json");
  for (const Json& pair : characters["lower"]) CHECK(lower(pair[0].get<std::string>()) == pair[1].get<std::string>());
  std::uint64_t hash = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    for (const char byte : is_later_letter(c) ? text + "x" : lower(text + "x"))
      hash = hash * 1000003 + static_cast<unsigned char>(byte) + 1;
  }
  CHECK(std::to_string(hash) == characters["lower_hash"].get<std::string>());
  CHECK(lower("A\xFFZ") == "a\xFFz");
}

TEST_CASE("every code point has the class that the pre-tokeniser's definition gives it", "[text]") {
  const Json characters = fixture("characters.json");
  const Json& classes = characters["classes"];
  PreTokenizer words;
  const auto count = [&](const std::string& text) {
    int n = 0;
    words.for_each(text, [&](std::string_view) { ++n; });
    return n;
  };
  std::size_t seen = 0;
  for (std::size_t run = 0; run < classes.size(); run += 3) {
    for (auto c = classes[run].get<char32_t>(); c <= classes[run + 1].get<char32_t>(); ++c, ++seen) {
      std::string text;
      append_utf8(text, c);
      const char* kind = count("a" + text) == 1 ? "L" : count("1" + text) == 1 ? "N" : count("." + text) == 2 ? "S" : "O";
      if (classes[run + 2] != kind) FAIL("U+" << std::hex << std::uint32_t(c) << " is " << kind);
    }
  }
  CHECK(seen == 0x110000 - 0x800);
}
