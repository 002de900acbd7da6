#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/unicode.h"

namespace tern::text {

// A compiled regular expression over UTF-8 with Unicode properties (PCRE2, with its JIT if the machine has one). Immutable: threads may
// share one. The state of a search is in a Matcher.
class Pattern {
 public:
  // Throws std::logic_error for a pattern that does not compile. A pattern of this library may take as long as it likes; one that a user's
  // file brought, `is_bounded`, counts its steps: Note [Bounded matching] in pretokenize.cpp.
  explicit Pattern(const std::string& expression, bool is_bounded = false);
  ~Pattern();
  Pattern(Pattern&& other) noexcept;
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  bool matches(std::string_view text) const;  // `text` must be well-formed UTF-8

 private:
  friend class Matcher;
  void* code_;  // pcre2_code*
  bool is_bounded_;
};

// Searches texts for a pattern, by one thread at a time.
class Matcher {
 public:
  explicit Matcher(const Pattern& pattern);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;
  // The first match in `text` at or after `from`, as [begin, end); false if there is none. `text` must be well-formed
  // UTF-8. Throws std::runtime_error when PCRE2 gives up (out of memory), and DataError when a bounded pattern has no steps left.
  bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end);
  // Gives a bounded pattern the steps for a text of so many bytes.
  void begin_text(std::size_t bytes) noexcept;

 private:
  const Pattern& pattern_;
  struct Steps {
    std::uint64_t left = 0;
    std::size_t at = 0;  // the place in the text of the last step
  };
  void* data_;     // pcre2_match_data*
  void* context_;  // pcre2_match_context*, of a bounded pattern
  Steps steps_;
};

// The expressions that words may follow, and of which each matches at every character. `expression` is as tokenizer.json spells it.
struct WordPattern {
  const char *name, *expression;
};
inline constexpr WordPattern word_patterns[] = {
    {"GPT-2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},  // Radford et al. 2019
    {"Llama 3", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"Qwen 2", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

// The pattern of any Split expression of a tokenizer.json that PCRE2 and Oniguruma, which Hugging Face's library has, understand alike, in
// PCRE2's spelling: alternatives, groups, (?i:...) of ASCII, look-ahead, quantifiers, classes of characters, \p{...} of general categories,
// \s, \S, \d. Throws std::invalid_argument, which says what it cannot be sure of: anchors, look-behind, back references, \w, \b,
// intersections and classes in classes, multi-character foldings.
Pattern split_pattern(std::string_view expression);

// Splits text into words; byte-level BPE never merges across their borders. GPT-2's words are contractions, runs of letters, of numbers and
// of other characters, each with one space before it, and runs of white space. A run of bytes that are not UTF-8 is one word.
class PreTokenizer {
 public:
  // The words of one of word_patterns.
  explicit PreTokenizer(std::size_t pattern = 0);
  // The matches of a split_pattern(), which has to outlive this, and the text between them.
  explicit PreTokenizer(const Pattern& split) : matcher_(split), is_split_(true) {}

  // Calls f(std::string_view) for each word, in order; the words cover the text. Throws DataError for a split_pattern() that takes more
  // steps than its bound.
  template <class F>
  void for_each(std::string_view text, F&& f) {
    if (is_split_) matcher_.begin_text(text.size());
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
  bool is_split_ = false;
};

}  // namespace tern::text
