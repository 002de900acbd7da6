#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "substitutions/judge.h"
#include "substitutions/terms.h"

namespace tern::substitutions {

/// A graph that may replace another one, `(neg (neg a)) => a ; exact`, with its certificate.
struct Rule {
  Id left = 0, right = 0;
  Verdict verdict = Verdict::rejected;  ///< sound or exact
  std::uint64_t fingerprint = 0;        ///< of both sides; 0 in a text that has none
  double error = 0;                     ///< Judgement::error
  int line = 0;                         ///< of the text, from 1
};

/// The rule as a line, without its end.
std::string text_of(const Terms& terms, const Rule& rule);
/// The rules of a text, whose terms are added to the table: one a line, but for empty ones and comments after #. Throws text::DataError
/// with one line that begins with the file's name for any other text, and for sides of more than 64 ops, or 4 times concat.
std::vector<Rule> read_rules(std::string_view text, const std::string& file, Terms& terms);

}  // namespace tern::substitutions
