#include "data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backend/memory.h"
#include "backend/stream.h"
#include "ops/factory.h"
#include "ops/view.h"
#include "tensor/context.h"
#include "tensor/tensor.h"
#include "text/batching.h"
#include "text/random.h"

namespace tern::data {

namespace {

/// Page-locked host memory, from which copies to a CUDA device are asynchronous.
struct PinnedBlock {
  PinnedBlock(std::size_t bytes, Device device);
  ~PinnedBlock();
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  void* data = nullptr;
  std::size_t bytes = 0;
  backend::Event copied;  ///< reached when the device has read the block
};

/// A staged batch: tensors on the CPU, or one pinned block with all of them.
struct Staged {
  Tensors tensors;                     ///< with a block, tensors of the shapes and dtypes only
  std::unique_ptr<PinnedBlock> block;  ///< null if batches stay on the CPU
  std::vector<std::size_t> offsets;    ///< byte offset of each tensor in the block
};

/// Moves batches to a device by way of pinned memory: worker threads call stage(), the thread that computes calls fetch().
class StagingPool {
 public:
  explicit StagingPool(Device device) : device_(device) {}
  /// Copies tensors of the CPU into pinned memory if the device is CUDA's; else leaves them as they are. Waits if the device still reads
  /// the block to be reused.
  Staged stage(Tensors batch);
  /// The tensors on the device. The copy is queued on the current stream, after which the block is reused.
  Tensors fetch(Staged staged);

 private:
  std::unique_ptr<PinnedBlock> block(std::size_t bytes);

  Device device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PinnedBlock>> free_;
};

PinnedBlock::PinnedBlock(std::size_t bytes_, Device device) : bytes(bytes_), copied(device) {
  if constexpr (built_with_cuda) data = backend::allocate_pinned(Cuda{}, bytes_, device);
  else fail_without_cuda(device);
}

PinnedBlock::~PinnedBlock() {
  if constexpr (built_with_cuda) {
    try {
      copied.synchronize();
    } catch (const Error&) {  // the device has failed, and does not read the block any more
    }
    backend::free_pinned(Cuda{}, data);
  }
}

std::unique_ptr<PinnedBlock> StagingPool::block(std::size_t bytes) {
  std::unique_ptr<PinnedBlock> result;
  {
    const std::lock_guard lock(mutex_);
    // The oldest block that is large enough, whose copy has usually completed.
    for (auto i = free_.begin(); i != free_.end() && !result; ++i)
      if ((*i)->bytes >= bytes) {
        result = std::move(*i);
        free_.erase(i);
        break;
      }
    // Blocks that are too small are freed, so that batches of varying sizes do not accumulate them.
    if (!result) free_.clear();
  }
  if (!result) return std::make_unique<PinnedBlock>(bytes, device_);
  result->copied.synchronize();
  return result;
}

Staged StagingPool::stage(Tensors batch) {
  if (device_.type != DeviceType::cuda) return {std::move(batch), nullptr, {}};
  Staged result;
  std::size_t bytes = 0;
  for (const Tensor& x : batch) {
    result.offsets.push_back(bytes);
    bytes += (static_cast<std::size_t>(x.numel()) * size_of(x.dtype()) + 255) / 256 * 256;
  }
  result.block = block(std::max<std::size_t>(bytes, 1));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Tensor x = contiguous(to(batch[i], cpu));
    if (x.numel() > 0)
      std::memcpy(static_cast<char*>(result.block->data) + result.offsets[i], x.view().data,
                  static_cast<std::size_t>(x.numel()) * size_of(x.dtype()));
  }
  result.tensors = std::move(batch);
  return result;
}

Tensors StagingPool::fetch(Staged staged) {
  if (!staged.block) return std::move(staged.tensors);
  const Stream stream = context().stream(device_);
  Tensors result;
  for (std::size_t i = 0; i < staged.tensors.size(); ++i) {
    const Tensor& x = staged.tensors[i];
    result.push_back(empty(x.shape(), x.dtype(), device_));
    if (x.numel() == 0) continue;
    const auto copy = [&](auto dev) {
      backend::copy_from_host(dev, result.back().view().data, static_cast<char*>(staged.block->data) + staged.offsets[i],
                              static_cast<std::size_t>(x.numel()) * size_of(x.dtype()), stream);
    };
    with_backend(device_, copy);
  }
  staged.block->copied.record(stream);
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(staged.block));
  return result;
}

}  // namespace

Tensors stack_examples(std::span<const Tensors> examples) {
  const NoGrad unrecorded;
  Tensors result;
  if (examples.empty()) return result;
  for (std::size_t part = 0; part < examples[0].size(); ++part) {
    Tensors column;
    for (std::size_t i = 0; i < examples.size(); ++i) {
      if (examples[i].size() != examples[0].size())
        fail("Loader", fmt::format("expected {} tensors in each example but got {} in number {} of the batch", examples[0].size(),
                                   examples[i].size(), i));
      if (examples[i][part].shape() != examples[0][part].shape() || examples[i][part].dtype() != examples[0][part].dtype())
        fail("Loader", fmt::format("expected examples of one form but tensor {} is {} {} in the first of the batch and {} {} in number {}",
                                   part, name(examples[0][part].dtype()), to_string(examples[0][part].shape()),
                                   name(examples[i][part].dtype()), to_string(examples[i][part].shape()), i));
      column.push_back(examples[i][part]);
    }
    result.push_back(stack(column));
  }
  return result;
}

// Note [Batches in order]
// Batches are numbered over all epochs. Workers take the next number while fewer than `prefetch` batches are being made or are ready, and
// put the result, a batch or an exception, into a map by its number. The caller takes the number of its position, so that the order does
// not depend on the number of workers or on their speed. A seek, and an error, restart the numbers at the position with a new generation:
// the results of earlier generations that workers are still making are discarded.
struct Loader::Impl {
  struct Made {
    Staged batch;
    std::exception_ptr error;
  };

  Impl(std::int64_t size_, MakeBatch make_batch_, const LoaderOptions& options_)
      : size(size_), make_batch(std::move(make_batch_)), options(options_), pool(options_.device) {
    const std::int64_t b = options.batch_size;
    per_epoch = options.drop_last ? size / b : size / b + (size % b != 0);
  }
  void start() {
    if (per_epoch > 0)
      for (int i = 0; i < options.workers; ++i) threads.emplace_back([this] { work(); });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      is_stopping = true;
    }
    may_make.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  /// The order of an epoch. The newest two are kept, as workers may be an epoch ahead of the caller. `mutex` has to be held.
  std::shared_ptr<const std::vector<std::size_t>> order(std::int64_t epoch) {
    for (const auto& [number, kept] : orders)
      if (number == epoch) return kept;
    auto made = std::make_shared<std::vector<std::size_t>>();
    if (options.shuffle) {
      *made = text::epoch_order(static_cast<std::size_t>(size), options.seed, static_cast<std::uint64_t>(epoch));
    } else {
      for (std::int64_t i = 0; i < size; ++i) made->push_back(static_cast<std::size_t>(i));
    }
    orders.emplace_back(epoch, made);
    if (orders.size() > 2) orders.pop_front();
    return made;
  }

  /// Makes the batch of a number, with random numbers of a generator that the number seeds. `mutex` must not be held.
  Staged make(std::int64_t number, const std::vector<std::size_t>& order_) {
    const std::int64_t first = number % per_epoch * options.batch_size, last = std::min(first + options.batch_size, size);
    std::vector<std::int64_t> indices;
    for (std::int64_t i = first; i < last; ++i) indices.push_back(static_cast<std::int64_t>(order_[static_cast<std::size_t>(i)]));
    const NoGrad unrecorded;
    const NoAutocast exact;
    const DeviceScope on_cpu(cpu);
    const ScopedValue<Generator> restored(context().generator, context().generator);
    manual_seed(text::Random(options.seed, static_cast<std::uint64_t>(number), 0x10ad).below(~std::uint64_t{0}));
    return pool.stage(make_batch(indices));
  }

  void work() {
    set_num_threads(1);  // workers run in parallel themselves, and leave the other threads to the kernels of the training
    std::unique_lock lock(mutex);
    while (true) {
      may_make.wait(lock, [&] { return is_stopping || next_number < taken + options.prefetch; });
      if (is_stopping) return;
      const std::int64_t number = next_number++;
      const std::uint64_t own_generation = generation;
      Made made;
      try {
        const auto epoch_order = order(number / per_epoch);
        lock.unlock();
        made.batch = make(number, *epoch_order);
      } catch (...) {
        made.error = std::current_exception();
      }
      if (!lock.owns_lock()) lock.lock();
      if (own_generation != generation) continue;
      ready.emplace(number, std::move(made));
      has_made.notify_one();
    }
  }

  /// Restarts the numbers at `number`.
  void restart(std::int64_t number) {
    has_failed = false;
    {
      const std::lock_guard lock(mutex);
      ++generation;
      ready.clear();
      next_number = taken = number;
    }
    may_make.notify_all();
  }

  Tensors take() {
    if (threads.empty()) {
      std::shared_ptr<const std::vector<std::size_t>> epoch_order;
      {
        const std::lock_guard lock(mutex);
        epoch_order = order(taken / per_epoch);
      }
      Staged batch = make(taken, *epoch_order);
      ++taken;
      return pool.fetch(std::move(batch));
    }
    if (has_failed) restart(taken);  // not before this call: the caller may have removed the cause by now
    Made made;
    {
      std::unique_lock lock(mutex);
      has_made.wait(lock, [&] { return ready.contains(taken); });
      const auto found = ready.find(taken);
      made = std::move(found->second);
      ready.erase(found);
      if (!made.error) ++taken;
    }
    has_failed = made.error != nullptr;
    if (has_failed) std::rethrow_exception(made.error);
    may_make.notify_one();
    return pool.fetch(std::move(made.batch));
  }

  const std::int64_t size;
  const MakeBatch make_batch;
  const LoaderOptions options;
  std::int64_t per_epoch = 0;
  bool is_at_end = false;   ///< the epoch has ended, and next() has not returned none yet
  bool has_failed = false;  ///< the last call of next() threw
  std::int64_t empty_epochs = 0;
  StagingPool pool;

  std::mutex mutex;
  std::condition_variable may_make, has_made;
  std::int64_t next_number = 0, taken = 0;  ///< the next batch to be made, and to be returned
  std::uint64_t generation = 0;
  std::map<std::int64_t, Made> ready;
  std::deque<std::pair<std::int64_t, std::shared_ptr<const std::vector<std::size_t>>>> orders;
  bool is_stopping = false;
  std::vector<std::thread> threads;
};

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

Loader::Loader(std::int64_t size, MakeBatch make_batch, const LoaderOptions& options) {
  const auto require = [](bool holds, const char* what, std::int64_t value) {
    if (!holds) fail("Loader", fmt::format("expected {} but got {}", what, value));
  };
  require(size >= 0, "a size of the dataset >= 0", size);
  require(options.batch_size >= 1, "a batch size >= 1", options.batch_size);
  require(options.workers >= 0 && options.workers <= 256, "0 to 256 workers", options.workers);
  require(options.prefetch >= 1, "a prefetch >= 1", options.prefetch);
  impl_ = std::make_unique<Impl>(size, std::move(make_batch), options);
  impl_->start();  // if a thread cannot be started, the destructor ends those that run
}

std::optional<Tensors> Loader::next() {
  Impl& self = *impl_;
  if (self.per_epoch == 0) {
    ++self.empty_epochs;
    return std::nullopt;
  }
  if (std::exchange(self.is_at_end, false)) return std::nullopt;
  std::optional<Tensors> batch = self.take();
  self.is_at_end = self.taken % self.per_epoch == 0;
  return batch;
}

LoaderPosition Loader::position() const {
  const Impl& self = *impl_;
  if (self.per_epoch == 0) return {self.empty_epochs, 0};
  if (self.is_at_end)
    return {self.taken / self.per_epoch - 1, self.options.drop_last ? self.per_epoch * self.options.batch_size : self.size};
  return {self.taken / self.per_epoch, self.taken % self.per_epoch * self.options.batch_size};
}

void Loader::seek(const LoaderPosition& position) {
  Impl& self = *impl_;
  const std::int64_t b = self.options.batch_size, end = self.options.drop_last ? self.per_epoch * b : self.size;
  if (position.epoch < 0 || position.index < 0 || position.index > end || (position.index % b != 0 && position.index != end))
    fail("Loader",
         fmt::format("expected an epoch >= 0 and the begin of a batch of {} in {} examples, or their end, but got epoch {}, index {}", b,
                     end, position.epoch, position.index));
  if (self.per_epoch == 0) {
    self.empty_epochs = position.epoch;
    return;
  }
  self.is_at_end = position.index == end;
  self.restart(position.epoch * self.per_epoch + (position.index + b - 1) / b);
}

Tensor Loader::state() const {
  const LoaderPosition at = position();
  return Tensor::from({at.epoch, at.index, impl_->size, impl_->options.batch_size, static_cast<std::int64_t>(impl_->options.seed)}, {5},
                      cpu);
}

void Loader::load_state(const Tensor& state) {
  if (!state.defined() || state.dtype() != DType::i64 || state.shape() != Shape{5})
    fail("Loader", "expected the state of a loader, i64 (5,)");
  const std::vector<std::int64_t> saved = state.to_vector<std::int64_t>(), own = this->state().to_vector<std::int64_t>();
  for (const auto& [i, what] : {std::pair<std::size_t, const char*>{2, "examples"}, {3, "examples a batch"}, {4, "as the seed"}})
    if (saved[i] != own[i]) fail("Loader", fmt::format("expected the state of a loader with {} {} but got {}", own[i], what, saved[i]));
  seek({saved[0], saved[1]});
}

std::int64_t Loader::size() const { return impl_->size; }
std::int64_t Loader::batches_per_epoch() const { return impl_->per_epoch; }

}  // namespace tern::data
