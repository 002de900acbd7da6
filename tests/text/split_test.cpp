// Words by expressions of a user's file, within bounds, and normalization form C.
#include <stdexcept>

#include "catch.h"
#include "support.h"
#include "text/bpe.h"
#include "text/data_error.h"
#include "text/nfc.h"
#include "text/pretokenize.h"
#include "text/unicode.h"

using namespace tern::text;
using namespace tern::text::test;
using tern::contains;

namespace {

std::vector<std::string> words_of(const std::string& expression, std::string_view text) {
  const Pattern pattern = split_pattern(expression);
  std::vector<std::string> words;
  PreTokenizer(pattern).for_each(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("an expression of another tokenizer splits as Oniguruma does", "[text]") {
  // Of the words that tokenizers 0.23 makes of these.
  CHECK(words_of(R"(\d{1,2}|[ab]+)", "xyz123abc 4a") == Words{"xyz", "12", "3", "ab", "c ", "4", "a"});
  CHECK(words_of(R"('(?i:[sdmt]|ll|ve|re)|\p{L}+)", "I'LL we'sx") == Words{"I", "'LL", " ", "we", "'s", "x"});
  CHECK(words_of(R"(a(?=b)|.)", "ab\nab") == Words{"a", "b", "\n", "a", "b"});
  CHECK(words_of(R"(\S+?,|[^,\n]+)", "ab,cd\n") == Words{"ab,", "cd", "\n"});
  CHECK(words_of(R"(\.)", "a.b\xFF.") == Words{"a", ".", "b", "\xFF", "."});
  CHECK(words_of(R"((?=b))", "abb") == Words{"a", "b", "b"});
  CHECK(words_of(R"(b*)", "abba") == Words{"a", "bb", "a"});
  CHECK(words_of(R"(\p{Lu}\p{Ll}*)", "fooBarBAZ") == Words{"foo", "Bar", "B", "A", "Z"});
  CHECK(words_of(R"((?:ab|a)++c|[\]\-x])", "abc]-x") == Words{"abc", "]", "-", "x"});
  // Letters that are new in Unicode 16, in a class and outside of one.
  CHECK(words_of(R"([\p{L}!]+)", " \xF0\x90\xB5\x8A!") == Words{" ", "\xF0\x90\xB5\x8A!"});
  CHECK(words_of(R"(\P{L})", "\xF0\x90\xB5\x8A") == Words{"\xF0\x90\xB5\x8A"});
  CHECK(words_of(R"(\P{L}+)", "\xF0\x90\xB5\x8A!") == Words{"\xF0\x90\xB5\x8A", "!"});
  CHECK(words_of(R"(\s)",
                 "a\xE3\x80\x80"
                 "b") == Words{"a", "\xE3\x80\x80", "b"});
}

TEST_CASE("what PCRE2 and Oniguruma read differently is refused", "[text]") {
  for (const char* expression : {"^a",
                                 "a$",
                                 R"(\Aa)",
                                 R"(\bA)",
                                 R"(\w+)",
                                 R"(\h)",
                                 R"(\v)",
                                 R"(\1)",
                                 R"(\x41)",
                                 R"(\u0041)",
                                 R"(\p{Han})",
                                 R"(\p{^L})",
                                 R"(\pL)",
                                 R"([[:alpha:]])",
                                 "[a&&b]",
                                 "[]a]",
                                 R"([\S])",
                                 R"([\P{L}])",
                                 "(?<=a)b",
                                 "(?<!a)b",
                                 "(?<n>a)",
                                 "(?i)a",
                                 "(?i:\xC3\x9F)",
                                 "(?i:ss)",
                                 "(?i:sT)",
                                 "(?i:fi)",
                                 "(?i:[\xC3\xA9])",
                                 "a{,3}",
                                 "a{2}+",
                                 "a{2,3}?",
                                 "a{x}",
                                 "a{2",
                                 "(a",
                                 "a)",
                                 "[a",
                                 "\\",
                                 R"(\p{L)",
                                 "a**",
                                 "(?#a)b",
                                 "(?i:a(?:ss))"}) {
    INFO(expression);
    CHECK_THROWS_AS(split_pattern(expression), std::invalid_argument);
  }
  for (const char* expression :
       {"(?i:'s|t|f|i)", "ss", "(?:(?i:a)ss)", R"([&])", R"(\&&)", "a{2}b", "a{2,}", "a??b", R"(\[a\])", "(?i:s't)"}) {
    INFO(expression);
    CHECK_NOTHROW(split_pattern(expression));
  }
}

TEST_CASE("an expression that goes back without end is an error in moments", "[text]") {
  const auto error_of = [](const char* expression, std::size_t bytes) {
    return message_of<DataError>([&] { words_of(expression, std::string(bytes, 'a') + "cb"); });  // PCRE2 looks for the last letter first
  };
  for (const char* expression : {"(a+)+b", "(a|a)*b", "(?:a|aa)+b", "(a*)*b", "a*a*a*a*b", "(?:a?){40}a{40}b", "(?:(?:a+)+)+b"}) {
    INFO(expression);
    CHECK(contains(error_of(expression, 100'000),
                   "expected a Split expression in tokenizer.json that takes at most 100 steps for each byte"));
  }
  CHECK(contains(error_of("a*b|a", 1'000'000), "it goes back too often"));  // the square of the length
  // Long words are not too much.
  CHECK(error_of(R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}|\s+(?!\S)|\s+)",
                 3'000'000)
            .empty());
  for (const WordPattern& known : word_patterns) {
    const std::string text = std::string(1'000'000, ' ') + "a" + std::string(1'000'000, '7') + "\n" + std::string(1'000'000, '!');
    CHECK((words_of(known.expression, text) == [&] {
      Words words;
      PreTokenizer(static_cast<std::size_t>(&known - word_patterns)).for_each(text, [&](std::string_view word) {
        words.emplace_back(word);
      });
      return words;
    }()));
  }
}

TEST_CASE("a text in NFC is left as it is, and others become it", "[text]") {
  CHECK(nfc("e\xCC\x81") == "\xC3\xA9");
  CHECK(nfc("\xFF"
            "e\xCC\x81\xFF\xCC\x81") == "\xFF\xC3\xA9\xFF\xCC\x81");
  CHECK(nfc("\xE2\x84\xAB") == "\xC3\x85");                              // ANGSTROM SIGN
  CHECK(nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB") == "\xED\x95\x9C");  // Hangul
  CHECK(nfc("a\xCC\x81\xCC\xA3") == "\xE1\xBA\xA1\xCC\x81");             // the mark below comes first
  CHECK(nfc(std::string("\0e\xCC\x81", 4)) == std::string("\0\xC3\xA9", 3));
  CHECK(nfc("\xE0\xB0\xBC\xCC\xB8") == "\xE0\xB0\xBC\xCC\xB8");  // U+0C3C combines since Unicode 14
  SplitMix64 random{9};
  std::size_t sure = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (std::uint64_t n = 1 + random(6); n > 0; --n) {
      char32_t c = static_cast<char32_t>(random(4) == 0 ? random(0x250) : random(4) == 0 ? 0x300 + random(0x1000) : random(0x30000));
      if (c >= 0xD800 && c < 0xE000) c = 'a';
      append_utf8(text, c);
    }
    if (!is_surely_nfc(text)) continue;
    ++sure;
    if (nfc(text) != text) FAIL(text);
  }
  CHECK(sure > 5000);
  CHECK(is_surely_nfc("K\xC3\xB6nig \xE5\xAD\x97 \xED\x95\x9C \xFF"));
  for (const char* text : {"e\xCC\x81", "\xE2\x84\xAB", "\xE1\x84\x92\xE1\x85\xA1", "\xEF\xA4\x80"}) CHECK_FALSE(is_surely_nfc(text));
}

TEST_CASE("normalized text and other expressions give the ids of Hugging Face's library", "[text]") {
  const Json all = fixture("split_lines.json");  // scripts/tokenizer-lines.py --fixture
  REQUIRE(all["tokenizers"].size() == 3);
  for (const Json& each : all["tokenizers"]) {
    const Tokenizer tokenizer = Tokenizer::from_json(each["file"].dump(), "t.json");
    CHECK(Json::parse(tokenizer.to_json())["normalizer"] == Json{{"type", "NFC"}});
    const Tokenizer again = Tokenizer::from_json(tokenizer.to_json(), "t.json");
    for (std::size_t i = 0; i < all["lines"].size(); ++i) {
      INFO("line " << i);
      const auto ids = each["ids"][i].get<std::vector<std::int32_t>>();
      CHECK((tokenizer.encode(all["lines"][i].get<std::string>()) == ids));
      CHECK((again.encode(all["lines"][i].get<std::string>()) == ids));
    }
  }
}
