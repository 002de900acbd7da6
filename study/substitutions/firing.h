#pragma once
#include "compile/match.h"
#include "substitutions/rules.h"

namespace tern::substitutions {

/// How often programs have the kernels of rules' left sides (compile/match.h, Note [Patterns]).
class Firing {
 public:
  /// For programs whose inputs of rules are of this dtype.
  Firing(const Terms& terms, const std::vector<Rule>& rules, DType dtype);

  /// True if the rule changes kernels: not if it moves views alone, which are free, or casts in f32.
  bool changes_kernels(std::size_t rule) const;
  /// Number of places of a program that each rule could rewrite: what is between its kernels is read by nothing else.
  std::vector<std::size_t> count(const compiler::Program& program) const;

 private:
  std::vector<std::vector<compiler::Pattern>> lefts_;  ///< of each rule, for inputs of two to four dimensions
};

}  // namespace tern::substitutions
