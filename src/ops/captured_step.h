#pragma once
#include <functional>
#include <map>
#include <memory>

#include "backend/graph.h"
#include "tensor/tensor.h"

namespace tern {

/// CUDA graph capture of a step of training or decoding, or of any function of tensors: the GPU gets one graph in place of hundreds of
/// kernels. For each set of input shapes the first call runs as written, the second is captured, and later calls replay the graph; every
/// call is one step. It keeps the recordings of the max_recordings sets of shapes that were used last; one that comes back after its
/// recording was dropped begins anew. Results are bitwise those of the plain calls, dropout included, because random positions, learning
/// rates and step counts are in device memory (Note [Random position]). On the CPU, each call runs as written.
///
/// The function must do the same work each time: no decision on a tensor's value, no item(), no copy to or from the host. What
/// it changes must live outside of it: parameters, gradients (see flatten_parameters), an optimizer's moments, a KvCache.
class CapturedStep {
 public:
  static constexpr std::size_t max_recordings = 64;  ///< sets of input shapes that are kept; a graph takes memory of the host and the GPU
  using Function = std::function<Tensor(const Tensors& inputs)>;  ///< a loss, or another result of the step
  /// `runs_as_written`: calls of each set of shapes that run as written before one is captured. A capture takes the time of several runs,
  /// so a value above 1 saves it for shapes that are rare. Throws Error without a function, and for a value below 1.
  explicit CapturedStep(Function step, Device device = default_device(), std::int64_t runs_as_written = 1);
  ~CapturedStep();
  /// @{
  CapturedStep(CapturedStep&&) noexcept;  ///< moves the recordings too
  CapturedStep& operator=(CapturedStep&&) noexcept;
  /// @}

  /// Runs one step. All inputs are defined and on the device; they may be other tensors at the next call. The result stays valid until the
  /// next call with the same shapes. Throws Error if the function waits for the device.
  Tensor operator()(const Tensors& inputs);

  /// Drops all recordings: call it after tensors of the step have moved in memory.
  void forget();

  /// Number of sets of input shapes that are kept, captured or not yet.
  std::size_t recordings() const;
  /// Number of kernels, copies and fills in the graph that the last call replayed; 0 if it ran as written.
  std::size_t nodes() const { return nodes_; }

 private:
  struct Recording;
  using Key = std::vector<std::int64_t>;

  Tensor run(const Tensors& inputs);
  void record(Recording& recording);
  Recording& recording_for(const Key& key);

  Function step_;
  Device device_;
  std::int64_t runs_as_written_ = 1;
  std::unique_ptr<backend::GraphStream> stream_;
  std::map<Key, Recording> recordings_;
  std::int64_t calls_ = 0;
  Tensor position_;  ///< random position, i64 (), on the device; written before each launch
  std::size_t nodes_ = 0;
};

}  // namespace tern
