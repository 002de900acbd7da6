#pragma once
#include <optional>
#include <vector>

#include "compile/cuda_text.h"
#include "ops/kernels/reduce.h"

namespace tern::compiler {

/// Note [Parts of sums]: kernels leave sums of columns as parts, one for each of some blocks of threads: generated ones, and those of the
/// library that take a kernels::DeferredSums. They are added up as late as can be, many at a time, as in an eager backward pass: gradients
/// of biases and norms are small, and are read at the end of the pass.
class PendingSums {
 public:
  /// `deferred` is that of the program, on the stream of its run.
  explicit PendingSums(kernels::DeferredSums& deferred) : deferred_(deferred) {}
  /// @{
  /// True if a sum of the text, or an operand of the call, is in memory that a pending sum goes to.
  bool has(const CudaText& text) const;
  bool has(const Call& call) const;
  /// @}
  /// Adds the sums of a text, whose parts have their places.
  void add(const CudaText& text);
  /// Adds the sums of a kernel of the library that can leave them.
  void add(Call& call);
  /// The call that adds up all that are pending; then none is.
  std::optional<Call> added_up();

 private:
  /// A sum and its parts, which are absent if a kernel of the library has left them: those are in the program's DeferredSums.
  struct Sum {
    View parts, to;
    Call::Place parts_at, at;
    bool adds;
  };
  class Kernel;
  bool has(const View& view, const Call::Place& place) const;
  template <class Kernel>
  bool defer(Call& call);

  kernels::DeferredSums& deferred_;
  std::vector<Sum> sums_;
};

}  // namespace tern::compiler
