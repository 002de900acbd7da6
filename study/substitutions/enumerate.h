#pragma once
#include <vector>

#include "substitutions/terms.h"

namespace tern::substitutions {

/// Sizes at which a term must have a type, and at which it gets its fingerprint: square matrices of n rows, in which a dimension of one
/// element, half a dimension and twice one are never equal by chance.
inline constexpr std::array<std::int64_t, 3> fingerprint_sizes = {4, 6, 8};

/// The terms of up to `ops` ops, each counted once wherever it is used, and up to `inputs` inputs.
struct Enumeration {
  std::vector<Id> begin;  ///< of the terms of 0, 1, ... ops in the table; one more for the end
  /// For each term the first one that is it but for the names of a, b and c; the term itself if it is the first.
  std::vector<Id> first;
  std::size_t graphs = 0;  ///< terms that are the first
};
/// Adds them to an empty table.
Enumeration enumerate(Terms& terms, int ops, int inputs);

}  // namespace tern::substitutions
