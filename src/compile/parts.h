#pragma once
#include <optional>
#include <vector>

#include "compile/cuda_text.h"

namespace tern::compiler {

/// Note [Parts of sums]: a generated kernel leaves sums of columns as parts, one for each of its blocks of threads. They are added up as
/// late as can be, many at a time, as in an eager backward pass (kernels::DeferredSums): gradients of biases and norms are small, and are
/// read at the end of the pass.
class PendingSums {
 public:
  /// True if a sum of the text, or an operand of the call, is in memory that a pending sum goes to.
  bool has(const CudaText& text) const;
  bool has(const Call& call) const;
  /// Adds the sums of a text, whose parts have their places.
  void add(const CudaText& text);
  /// The call that adds up all that are pending; then none is.
  std::optional<Call> added_up();

 private:
  struct Sum {
    View parts, to;
    Call::Place parts_at, at;
    bool adds;
  };
  class Kernel;
  bool has(const View& view, const Call::Place& place) const;

  std::vector<Sum> sums_;
};

}  // namespace tern::compiler
