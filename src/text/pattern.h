#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tern::text {

// A compiled regular expression over UTF-8 with Unicode properties (PCRE2, with its JIT if the machine has one). Immutable: threads may
// share one. The state of a search is in a Matcher.
class Pattern {
 public:
  // Throws std::logic_error for a pattern that does not compile: patterns come from this library, never from a user.
  explicit Pattern(const std::string& expression);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  bool matches(std::string_view text) const;  // `text` must be well-formed UTF-8

 private:
  friend class Matcher;
  void* code_;  // pcre2_code*
};

// Searches texts for a pattern, by one thread at a time.
class Matcher {
 public:
  explicit Matcher(const Pattern& pattern);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;
  // The first match in `text` at or after `from`, as [begin, end); false if there is none. `text` must be well-formed
  // UTF-8. Throws std::runtime_error when PCRE2 gives up (out of memory).
  bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end);

 private:
  const Pattern& pattern_;
  void* data_;  // pcre2_match_data*
};

}  // namespace tern::text
