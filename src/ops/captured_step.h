#pragma once
#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/stream.h"
#include "tensor/context.h"
#include "tensor/fields.h"
#include "tensor/tensor.h"

namespace tern {

/// A batch with names: an aggregate whose fields are tensors, each of which may be undefined, `struct Batch { Tensor ids, labels; };`.
template <class T>
concept TensorStruct = std::is_aggregate_v<T> && std::is_default_constructible_v<T>;

/// The list of a batch's tensors.
template <TensorStruct Batch>
Tensors tensors_of(const Batch& batch) {
  Tensors result;
  for_each_tensor(batch, [&](const Tensor& x) { result.push_back(x); });
  return result;
}

/// A step of training or decoding: a function of a list of tensors, or of a batch with names.
class StepFunction : public std::function<Tensor(const Tensors&)> {
 public:
  StepFunction(std::nullptr_t = nullptr) {}  ///< none
  /// Of a list.
  template <class F>
    requires std::invocable<F&, const Tensors&>
  StepFunction(F step) : function(std::move(step)) {}
  /// Of a batch with names.
  template <class F>
    requires(!std::invocable<F&, const Tensors&>)
  StepFunction(F step) : StepFunction(std::function(std::move(step))) {}
  /// The same.
  template <TensorStruct Batch>
  StepFunction(std::function<Tensor(const Batch&)> step)
      : function([step = std::move(step)](const Tensors& list) {
          Batch batch;
          auto next = list.begin();
          for_each_tensor(batch, [&](Tensor& x) { x = *next++; });
          return step(batch);
        }) {}
};

// Parts of what keeps runs of a step: a CapturedStep, and a compiled function.
namespace detail {

/// Scope in which work goes to another stream. That stream waits for the current one at the start, and the current one for it at the end.
class OnStream {
 public:
  explicit OnStream(Stream stream) : stream_(stream), scope_(stream) { backend::wait_stream(stream_, scope_.outer()); }
  /// To be called when all work is queued.
  void finish() { backend::wait_stream(scope_.outer(), stream_); }

 private:
  Stream stream_;
  StreamScope scope_;
};

/// Kind of a step's inputs: dtypes, shapes, and the rows of a batch for which this process draws random numbers.
std::vector<std::int64_t> key_of(const Tensors& inputs);
/// The modes of all modules, which ops cannot see, as one number: it is that of before when each trains, or does not, as before.
std::uint64_t module_modes() noexcept;
/// Notes that the module at an address begins or ends training.
void note_module_mode(const void* module, bool is_training) noexcept;
/// Contiguous copies, which are not recorded, of the tensors that are defined.
Tensors copies_of(const Tensors& inputs);

}  // namespace detail

/// CUDA graph capture of a step of training or decoding, or of any function of tensors: the GPU gets one graph in place of hundreds of
/// kernels. For each set of input shapes the first call runs as written, the second is captured, and later calls replay the graph; every
/// call is one step. It keeps the recordings of the max_recordings sets of shapes that were used last; one that comes back after its
/// recording was dropped begins anew. Results are bitwise those of the plain calls, dropout included, because random positions, learning
/// rates and step counts are in device memory (Note [Random position]). The choice of kernels (Context::Kernels) is that of the captured
/// call, whatever it is at a replay. On the CPU, each call runs as written.
///
/// The function must do the same work each time: no decision on a tensor's value, no item(), no copy to or from the host. What
/// it changes must live outside of it: parameters, gradients (see flatten_parameters), an optimizer's moments, a KvCache.
class CapturedStep {
 public:
  static constexpr std::size_t max_recordings = 64;  ///< sets of input shapes that are kept; a graph takes memory of the host and the GPU
  using Function = StepFunction;                     ///< its result is a loss, or another one of the step
  /// `runs_as_written`: calls of each set of shapes that run as written before one is captured. A capture takes the time of several runs,
  /// so a value above 1 saves it for shapes that are rare. Throws Error without a function, and for a value below 1.
  explicit CapturedStep(Function step, Device device = default_device(), std::int64_t runs_as_written = 1);
  ~CapturedStep();
  /// @{
  CapturedStep(CapturedStep&&) noexcept;  ///< moves the recordings too
  CapturedStep& operator=(CapturedStep&&) noexcept;
  /// @}

  /// Runs one step. The inputs are on the device, or undefined; they may be other tensors at the next call. The result stays valid until
  /// the next call with the same shapes. Throws Error if the function waits for the device.
  Tensor operator()(const Tensors& inputs);
  /// Runs one step of a function of a batch with names.
  template <TensorStruct Batch>
  Tensor operator()(const Batch& batch) {
    return (*this)(tensors_of(batch));
  }

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
