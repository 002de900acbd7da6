#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace tern::compiler {

/// A tensor that results have a gradient for: an argument, or a leaf from outside.
struct Source {
  std::size_t argument = 0;  ///< of no leaf
  Tensor leaf;
};
/// The history of a function's results.
struct History {
  std::vector<Source> sources;
  std::vector<std::size_t> results;  ///< those that have one
};

/// The history of results, back to the arguments and to leaves. It began after the node of that number; a result whose history a backward
/// pass has freed has none.
History history_of(const Tensors& results, const Tensors& arguments, std::uint64_t begin);

}  // namespace tern::compiler
