#pragma once
#include <vector>

#include "catch.h"
#include "nn/generate.h"

/// Continuations of several rows, and their comparison.

namespace tern {

using Results = std::vector<std::vector<nn::Hypothesis>>;

inline std::vector<nn::TokenIds> best(const Results& results) {
  std::vector<nn::TokenIds> tokens;
  for (const auto& row : results) tokens.push_back(row.at(0).tokens);
  return tokens;
}

inline bool is_same(const Results& a, const Results& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return false;
    for (std::size_t n = 0; n < a[i].size(); ++n)
      if (a[i][n].tokens != b[i][n].tokens || a[i][n].log_probability != b[i][n].log_probability || a[i][n].score != b[i][n].score)
        return false;
  }
  return true;
}

}  // namespace tern
