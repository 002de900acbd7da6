#pragma once
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "tensor/tensor.h"

namespace tern::data {

/// A number of examples, each a list of tensors of the same shapes and dtypes, on the CPU: an input and its target for instance. Several
/// threads ask at once.
template <class D>
concept Dataset = requires(const D& dataset, std::int64_t index) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  { dataset[index] } -> std::convertible_to<Tensors>;
};

/// A Dataset that makes a batch of examples at once: a tensor for each part, (B, ...).
template <class D>
concept BatchedDataset = requires(const D& dataset, std::span<const std::int64_t> indices) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  { dataset.batch(indices) } -> std::convertible_to<Tensors>;
};

/// Makes a batch of the examples at these indices. Several threads call it at once.
using MakeBatch = std::function<Tensors(std::span<const std::int64_t> indices)>;

/// Stacks examples along a new first dimension, as a Loader does for a batch.
Tensors stack_examples(std::span<const Tensors> examples);

/// Options of Loader.
struct LoaderOptions {
  std::int64_t batch_size = 32;  ///< examples of a batch
  bool shuffle = true;           ///< each epoch in an order of its own, that follows from the seed and the number of the epoch alone
  std::uint64_t seed = 0;        ///< of the orders
  bool drop_last = false;        ///< leave out the last batch of an epoch where it is not whole
  int workers = 1;               ///< threads that make batches; 0: the caller's, when it asks
  int prefetch = 4;              ///< batches that may be ready or in the making, 1 or more
  Device device = cpu;           ///< where batches are returned
};

/// Position of a Loader: the next batch begins with entry `index` of the order of `epoch`.
struct LoaderPosition {
  std::int64_t epoch = 0;                                  ///< its number, from 0
  std::int64_t index = 0;                                  ///< in the order of that epoch; a multiple of the batch size
  bool operator==(const LoaderPosition&) const = default;  ///< the same batch of the same epoch
};

/// Batches of a dataset, epoch after epoch, made ahead by threads:
///
///     data::Loader loader(dataset, {.batch_size = 64, .seed = 1, .workers = 2, .device = cuda()});
///     while (loader.position().epoch < epochs)
///       while (const auto batch = loader.next()) train((*batch)[0], (*batch)[1]);
///
/// Batches and their order are the same for any number of workers, and after a resume from a saved position. Random numbers that a dataset
/// draws follow from the seed and the batch, for the same reason. On a CUDA device workers put batches into pinned memory, and next() only
/// queues the copy on the current stream. One thread uses a Loader.
class Loader {
 public:
  /// Keeps a copy of the dataset (a shared_ptr to a large one, or the dataset's own handle). Throws Error for a batch size or prefetch
  /// below 1 and a number of workers below 0.
  template <class D>
    requires(Dataset<D> || BatchedDataset<D>)
  explicit Loader(D dataset, const LoaderOptions& options = {}) : Loader(std::make_shared<const D>(std::move(dataset)), options) {}
  /// Of `size` examples, of which a function makes batches, without a Dataset.
  Loader(std::int64_t size, MakeBatch make_batch, const LoaderOptions& options = {});
  /// Waits for the batches that workers are making, and makes no others.
  ~Loader();
  /// @{
  Loader(Loader&&) noexcept;  ///< workers go on; the other one may only be assigned to or destroyed
  Loader& operator=(Loader&&) noexcept;
  /// @}

  /// The next batch; nothing once at the end of each epoch, after which the next one begins. Throws what the dataset threw while it made
  /// this batch, whatever was made ahead; the position stays before it.
  std::optional<Tensors> next();

  /// That of the batch that next() returns next, and not of those made ahead.
  LoaderPosition position() const;
  /// Throws Error for a position outside of an epoch, or not at the begin of a batch.
  void seek(const LoaderPosition& position);
  /// The position for a checkpoint, i64 (5): epoch, index, and what the order depends on: size, batch size, seed.
  Tensor state() const;
  /// Goes on from such a tensor. Throws Error where the size of the dataset, the batch size or the seed is another, or it is no such
  /// tensor.
  void load_state(const Tensor& state);

  std::int64_t size() const;               ///< examples
  std::int64_t batches_per_epoch() const;  ///< with the last one that is not whole, unless it is dropped

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
