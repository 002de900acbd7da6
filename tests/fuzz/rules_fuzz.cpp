// A text of rules of graphs: read, written, read again.
#include "fuzz.h"
#include "substitutions/rules.h"
#include "text/data_error.h"

using namespace tern::substitutions;
using tern::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Terms terms;
  try {
    for (const Rule& rule : read_rules(tern::fuzz::text_of(data, size), "f", terms)) {
      const std::vector<Rule> again = read_rules(text_of(terms, rule), "f", terms);
      require(again.size() == 1 && again[0].left == rule.left && again[0].right == rule.right && again[0].verdict == rule.verdict &&
                  again[0].fingerprint == rule.fingerprint,
              "a written rule is read as the same");
      require(terms.ops(rule.left) <= 64 && terms.cost(rule.left) >= 0, "a rule has few ops");
    }
  } catch (const tern::text::DataError& error) {
    tern::fuzz::require_message(error.what());
  }
  return 0;
}
