#pragma once
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "tensor/tensor.h"

namespace tern::data {

/// A list of examples, each a list of tensors on the CPU, such as an input and its target. All examples have the same shapes and dtypes.
/// Several threads read it concurrently.
template <class D>
concept Dataset = requires(const D& dataset, std::int64_t index) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  { dataset[index] } -> std::convertible_to<Tensors>;
};

/// A Dataset that makes batches itself: a tensor (B, ...) for each tensor of an example.
template <class D>
concept BatchedDataset = requires(const D& dataset, std::span<const std::int64_t> indices) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  { dataset.batch(indices) } -> std::convertible_to<Tensors>;
};

/// Makes a batch of the examples at these indices. Several threads call it concurrently.
using MakeBatch = std::function<Tensors(std::span<const std::int64_t> indices)>;

/// Stacks examples along a new first dimension, as a Loader does for a batch.
Tensors stack_examples(std::span<const Tensors> examples);

/// Options of Loader.
struct LoaderOptions {
  std::int64_t batch_size = 32;      ///< examples of a batch
  bool shuffle = true;               ///< a new order for each epoch, a function of the seed and the epoch's number
  std::uint64_t seed = 0;            ///< seed of the orders
  bool drop_last = false;            ///< leave out the last batch of an epoch if it is smaller
  int workers = 1;                   ///< threads that make batches; 0: next() makes them
  int prefetch = 4;                  ///< batches that are made ahead, 1 or more
  Device device = default_device();  ///< device of the returned batches
};

/// Position of a Loader: the next batch begins with entry `index` of the order of `epoch`.
struct LoaderPosition {
  std::int64_t epoch = 0;                                  ///< number of the epoch, from 0
  std::int64_t index = 0;                                  ///< index in the epoch's order, a multiple of the batch size
  bool operator==(const LoaderPosition&) const = default;  ///< the same batch of the same epoch
};

/// Loads batches of a dataset, epoch after epoch, with worker threads that make them ahead:
///
///     data::Loader loader(dataset, {.batch_size = 64, .seed = 1, .workers = 2, .device = cuda()});
///     while (loader.position().epoch < epochs)
///       while (const auto batch = loader.next()) train((*batch)[0], (*batch)[1]);
///
/// The batches and their order do not depend on the number of workers, nor on a resume from a saved position. To this end random numbers
/// that a dataset draws are a function of the seed and the batch's number. For a CUDA device workers copy batches to pinned memory, and
/// next() only queues the copy on the current stream. A Loader is for one thread at a time.
class Loader {
 public:
  /// Loads a dataset, of which it keeps a copy: pass a handle or a shared_ptr to a large one. Throws Error for a batch size or prefetch
  /// below 1 and for workers below 0.
  template <class D>
    requires(Dataset<D> || BatchedDataset<D>)
  explicit Loader(D dataset, const LoaderOptions& options = {}) : Loader(std::make_shared<const D>(std::move(dataset)), options) {}
  /// Loads batches that a function makes from `size` examples.
  Loader(std::int64_t size, MakeBatch make_batch, const LoaderOptions& options = {});
  /// Stops the workers, after the batches that they are making.
  ~Loader();
  /// @{
  Loader(Loader&&) noexcept;  ///< takes over the workers; the other one may only be assigned to or destroyed
  Loader& operator=(Loader&&) noexcept;
  /// @}

  /// Returns the next batch; none once at the end of each epoch, after which the next epoch begins. Rethrows the exception of the dataset
  /// for this batch, and then keeps the position, so that the next call tries again.
  std::optional<Tensors> next();

  /// Position of the batch that next() will return.
  LoaderPosition position() const;
  /// Moves to a position. Throws Error for one outside of an epoch or within a batch.
  void seek(const LoaderPosition& position);
  /// The position for a checkpoint, i64 (5): epoch, index, and the size, batch size and seed that they refer to.
  Tensor state() const;
  /// Moves to the position of a state(). Throws Error if the size of the dataset, the batch size or the seed differs, or for another
  /// tensor.
  void load_state(const Tensor& state);

  std::int64_t size() const;               ///< number of examples
  std::int64_t batches_per_epoch() const;  ///< number of batches, with a smaller last one unless drop_last is set

 private:
  struct Impl;
  template <class D>
  static MakeBatch batches_of(const std::shared_ptr<const D>& dataset) {
    if constexpr (BatchedDataset<D>) {
      return [dataset](std::span<const std::int64_t> indices) { return Tensors(dataset->batch(indices)); };
    } else {
      return [dataset](std::span<const std::int64_t> indices) {
        std::vector<Tensors> examples;
        for (const std::int64_t index : indices) examples.push_back((*dataset)[index]);
        return stack_examples(examples);
      };
    }
  }
  template <class D>
  Loader(const std::shared_ptr<const D>& dataset, const LoaderOptions& options)
      : Loader(static_cast<std::int64_t>(dataset->size()), batches_of(dataset), options) {}

  std::unique_ptr<Impl> impl_;
};

}  // namespace tern::data
