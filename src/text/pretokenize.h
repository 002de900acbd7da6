#pragma once

#include <cstddef>
#include <string_view>

#include "text/pattern.h"
#include "text/unicode.h"

namespace tern::text {

// The expressions that words may follow, and of which each matches at every character. `expression` is as tokenizer.json spells it.
struct WordPattern {
  const char *name, *expression;
};
inline constexpr WordPattern word_patterns[] = {
    {"GPT-2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},  // Radford et al. 2019
    {"Llama 3", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"Qwen 2", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

// Splits text into words; byte-level BPE never merges across their borders. GPT-2's words are contractions, runs of letters, of numbers and
// of other characters, each with one space before it, and runs of white space. A run of bytes that are not UTF-8 is one word.
class PreTokenizer {
 public:
  // The words of one of word_patterns.
  explicit PreTokenizer(std::size_t pattern = 0);

  // Calls f(std::string_view) for each word, in order; the words cover the text.
  template <class F>
  void for_each(std::string_view text, F&& f) {
    while (!text.empty()) {
      const std::size_t bad = find_invalid_utf8(text);
      const std::string_view valid = text.substr(0, bad);
      for (std::size_t begin = 0, end = 0; begin < valid.size(); begin = end) {
        end = word_end(valid, begin);
        f(valid.substr(begin, end - begin));
      }
      text.remove_prefix(valid.size());
      if (text.empty()) break;
      std::size_t run = 0;
      for (Utf8Step step{}; run < text.size() && !(step = decode_utf8(text.substr(run))).valid;) run += step.size;
      f(text.substr(0, run));
      text.remove_prefix(run);
    }
  }

 private:
  std::size_t word_end(std::string_view valid, std::size_t begin);

  Matcher matcher_;
};

}  // namespace tern::text
