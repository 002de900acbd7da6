#pragma once
#include <functional>
#include <map>
#include <memory>

#include "backend/graph.h"
#include "tensor/tensor.h"

namespace tern {

/// A step of training or decoding, or any work on tensors, that a GPU is given as one graph instead of hundreds of kernels. For each set
/// of input shapes the first call runs as written, the second is recorded, and from then on the recording is replayed: every call is
/// one step. Results are bitwise those of the plain calls, dropout included, because random positions, learning rates and step
/// counts live in device memory (Note [Random position]). On the CPU, each call runs as written.
///
/// The function must do the same work each time: no decision on a tensor's value, no item(), no copy to or from the host. What
/// it changes must live outside of it: parameters, gradients (see flatten_parameters), an optimizer's moments, a KvCache.
class CapturedStep {
 public:
  using Function = std::function<Tensor(const Tensors& inputs)>;  ///< a loss, or another result of the step
  /// With `runs_as_written` of a shape more than one, what comes seldom is not recorded: to record takes the time of several runs. Throws
  /// Error without a function, and for runs below 1.
  explicit CapturedStep(Function step, Device device = cpu, std::int64_t runs_as_written = 1);
  ~CapturedStep();
  /// @{
  CapturedStep(CapturedStep&&) noexcept;  ///< recordings go with it
  CapturedStep& operator=(CapturedStep&&) noexcept;
  /// @}

  /// One step. The inputs, all of them defined, are on the device; the next call may get other tensors. The result stays valid until
  /// the next call with the same shapes. Throws Error if the function waits for the device.
  Tensor operator()(const Tensors& inputs);

  /// Forgets all recordings: to be called when tensors of the step have moved.
  void forget();

  /// Shapes that have been recorded, or have been run.
  std::size_t recordings() const;
  /// Kernels, copies and fills in the recording that the last call replayed; 0 if it ran as written.
  std::size_t nodes() const { return nodes_; }

 private:
  struct Recording;
  using Key = std::vector<std::int64_t>;

  Tensor run(const Tensors& inputs);
  void record(Recording& recording);

  Function step_;
  Device device_;
  std::int64_t runs_as_written_ = 1;
  std::unique_ptr<backend::GraphStream> stream_;
  std::map<Key, Recording> recordings_;
  Tensor position_;  ///< of the random numbers, i64 (), on the device; each launch writes it
  std::size_t nodes_ = 0;
};

}  // namespace tern
