#pragma once
#include <string>
#include <vector>

#include "substitutions/rules.h"

namespace tern::substitutions {

/// Two graphs of equal fingerprints, of which the right one costs less.
struct Pair {
  Id left = 0, right = 0;
  Judgement judgement;
};

/// The graphs of up to three ops and three inputs that each stage leaves.
struct Funnel {
  std::size_t graphs = 0, terms = 0;                            ///< graphs, and with renamings
  std::size_t equal = 0;                                        ///< graphs that have an equal fingerprint with a cheaper one
  std::vector<Pair> pairs;                                      ///< of those, judged
  std::vector<Rule> kept;                                       ///< after pruning, by ops of their left sides
  double enumerate = 0, fingerprint = 0, judge = 0, prune = 0;  ///< seconds
  std::size_t count(Verdict verdict) const;
};
/// Runs all stages, by threads. `ops` and `inputs` are at most 3. A graph with a part that has a cheaper form, or that is 0, 1 or NaN as
/// x - x or x / x, is not judged. Of the equals of others the cheapest ones are, up to four and until one holds.
Funnel search(Terms& terms, int ops, int inputs);

/// The rules among judged pairs that shorter rules do not imply: a left side that these make the right side, or as cheap, is no rule. The
/// order is that of ops, then of inputs that are matrices, then of costs.
std::vector<Rule> prune(Terms& terms, const std::vector<Pair>& pairs);

}  // namespace tern::substitutions
