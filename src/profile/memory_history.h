#pragma once
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "autodiff/anomaly.h"
#include "autodiff/node.h"
#include "backend/memory_observer.h"
#include "nn/module.h"
#include "train/optimizer.h"

namespace tern::profile {

/// Note [Memory categories]
/// Each block of memory belongs to exactly one category for the whole of its life, so that the categories' bytes sum to the allocator's,
/// at the peak and at every other moment. It is the first of these that applies:
///  1. parameters: the memory of a model's parameters, buffers and constants, flat buffers of them included (MemoryHistory::name);
///  2. gradients: that of a leaf's gradient when a backward pass has it ready, or when the model is named;
///  3. optimizer: what Optimizer::state names: moments, the f32 masters of 16-bit parameters (which ZeRO counts so, too: Rajbhandari et
///     al., 2020), the learning rates and the step count;
///  4. activations: results of ops of a module's forward, whether kept for backward or not, a checkpoint's second run included, and all
///     else that an op saves for backward;
///  5. before: what was there when the history began and is none of the above. Of the CPU's allocator its bytes alone are known;
///  6. workspace: the rest: scratch of kernels, gradients on their way through a backward pass, a program's inputs.
enum class MemoryCategory : std::uint8_t { parameters, gradients, optimizer, activations, workspace, before };
/// The number of categories.
inline constexpr std::size_t memory_categories = 6;
/// "parameters", "gradients", "optimizer", "activations", "workspace", "before".
const char* name(MemoryCategory category);

/// The pass of the history's thread when a block was asked for. `recompute` is a checkpoint's forward within a backward pass.
enum class MemoryPass : std::uint8_t { none, forward, backward, recompute };
/// "", "forward", "backward", "recompute".
const char* name(MemoryPass pass);

/// Bytes of each category, in the order of MemoryCategory.
struct MemoryByCategory {
  std::array<std::size_t, memory_categories> bytes{};                                                  ///< in the order of MemoryCategory
  std::size_t of(MemoryCategory category) const { return bytes[static_cast<std::size_t>(category)]; }  ///< bytes of one
  std::size_t total() const;  ///< of all: what the allocator counts
};

/// A block of memory from its allocation to its end. Positions count the events of the history.
struct MemoryBlock {
  /// No event of the history.
  static constexpr std::size_t never = ~std::size_t{0};

  const void* address = nullptr;                        ///< of the first byte
  const void* stream = nullptr;                         ///< that it was allocated on, as a number to tell streams apart
  std::size_t bytes = 0;                                ///< as the allocator counts them, rounded up
  std::size_t requested = 0;                            ///< as they were asked for
  std::size_t begin = never;                            ///< the event of its allocation; `never`: it was there before
  std::size_t end = never;                              ///< the event of its end; `never`: it still lives
  MemoryCategory category = MemoryCategory::workspace;  ///< Note [Memory categories]
  MemoryPass pass = MemoryPass::none;                   ///< when it was asked for
  const std::string* module = nullptr;                  ///< "blocks.0.attn.qkv (Linear)", or null outside any
  const std::string* op = nullptr;                      ///< of backward the op whose gradient it is; null where no op named it
  const std::string* tensor = nullptr;                  ///< of a named model "head.weight", or "several" for a flat buffer
  std::vector<void*> stack;                             ///< return addresses, innermost first, where asked
};

/// An event of the allocator, in the order of the history.
struct MemoryHistoryEvent {
  backend::MemoryAction action = backend::MemoryAction::alloc;  ///< what happened
  const void* address = nullptr;                                ///< of the block or segment
  const void* stream = nullptr;                                 ///< as in MemoryBlock
  std::size_t bytes = 0;                                        ///< of the block or segment; of one that failed as they were asked for
  std::size_t available = 0;                                    ///< of one that failed: what the device had left
  std::int64_t time_us = 0;                                     ///< since the history began
  std::size_t block = MemoryBlock::never;                       ///< position in blocks(), of an allocation or a free; else `never`
};

/// The moment with the most memory.
struct MemoryPeak {
  std::size_t bytes = 0;                   ///< in live blocks
  std::size_t event = MemoryBlock::never;  ///< after which; `never`: what was there at the beginning
  MemoryByCategory categories;             ///< of these bytes
};

/// While it lasts, every allocation and free of one device, of all threads, with the op and the module of the thread that made it. One
/// history of a device at a time: a second one throws Error, and so it is with two CUDA devices. The thread that made it ends it. With
/// it an op takes some microseconds more, and an allocation some hundred nanoseconds.
class MemoryHistory final : backend::MemoryObserver, backend::Observer {
 public:
  /// Options of MemoryHistory.
  struct Options {
    bool stacks = false;  ///< keep the C++ stack of each allocation: dozens of microseconds each
  };
  /// `names` are the paths of modules, nn::module_names(model).
  explicit MemoryHistory(Device device, ModuleNames names, Options options);
  /// With the default options.
  explicit MemoryHistory(Device device, ModuleNames names = {}) : MemoryHistory(device, std::move(names), Options()) {}
  ~MemoryHistory() override;
  MemoryHistory(const MemoryHistory&) = delete;
  MemoryHistory& operator=(const MemoryHistory&) = delete;

  /// The model's and the optimizer's memory of this moment gets its category: Note [Memory categories]. To be called while they live:
  /// before they give memory back, and before the history ends.
  void name(const nn::Module& model);
  /// The optimizer's moments, masters, rates and step count.
  void name(train::Optimizer& optimizer);
  /// The modules of a model that was made since the history began.
  void set_names(ModuleNames names) { names_ = std::move(names); }
  /// Stops watching; what follows reads. Called by the destructor.
  void end();

  Device device() const { return device_; }                                  ///< that it watches
  const std::vector<MemoryBlock>& blocks() const { return blocks_; }         ///< in the order of their allocation, those from before first
  const std::vector<MemoryHistoryEvent>& events() const { return events_; }  ///< in order
  /// Bytes that were there at the beginning and of which no block is known.
  std::size_t unknown_before() const { return unknown_before_; }
  /// False where memory for the history itself ran out: then events are missing.
  bool is_complete() const { return is_complete_; }

  /// The categories' bytes before the first event, and after the last one.
  MemoryByCategory at_begin() const;
  /// The categories' bytes after the last event.
  MemoryByCategory at_end() const;
  /// Calls f(event, categories) after each event that changes them, in order.
  void walk(const std::function<void(std::size_t event, const MemoryByCategory& now)>& f) const;
  /// The most that was ever allocated: what memory_statistics().peak_allocated is if it was reset when the history began.
  MemoryPeak peak() const;
  /// The positions in blocks() of the largest blocks that lived at the peak, or of the largest that were made since the history began,
  /// largest first.
  std::vector<std::size_t> largest(std::size_t count, bool at_peak) const;

 private:
  void on_begin(const backend::MemoryStatistics& now) noexcept override;
  void on_memory(const backend::MemoryEvent& event) noexcept override;
  void end_op(const OpCall& call) noexcept override;
  void begin_backward(const Node& node) noexcept override;
  void end_backward(double bytes) noexcept override;
  void on_gradient(const Tensor& leaf) noexcept override;

  void add(const backend::MemoryEvent& event);
  void label(MemoryBlock& block);
  /// Returns the tensor's block, or null.
  MemoryBlock* mark(const Tensor& x, MemoryCategory category, bool may_be_before);
  const std::string* intern(std::string_view text);
  const std::string* module_of(const ModuleFrame* scope);
  bool is_own_thread() const { return &context() == own_context_; }

  /// A backward function that runs, and the module that ran when it began.
  struct RunningNode {
    const std::string *op, *module;
    const ModuleFrame* scope;
  };

  Device device_;
  Options options_;
  ModuleNames names_;
  const Context* own_context_;
  std::int64_t start_ns_;

  mutable std::mutex mutex_;  ///< of what follows: allocators call from any thread
  std::vector<MemoryBlock> blocks_;
  std::vector<MemoryHistoryEvent> events_;
  std::unordered_map<const void*, std::size_t> live_;
  std::vector<std::size_t> pending_;  ///< blocks of this thread that no op has named yet
  std::vector<RunningNode> running_;
  std::set<std::string, std::less<>> texts_;
  std::size_t unknown_before_ = 0;
  bool is_complete_ = true, is_beginning_ = true;

  std::unique_ptr<ScopedValue<const ModuleNames*>> names_in_use_;  ///< null after the end
};

/// The history of a call of `step`, a training step of the model and the optimizer, or a forward pass without one: begins, names the two
/// as the step leaves them, and ends. For a usual step's peak, let one go before: the first makes the optimizer's moments.
std::unique_ptr<MemoryHistory> memory_of_step(Device device, const nn::Module& model, train::Optimizer* optimizer,
                                              const std::function<void()>& step, MemoryHistory::Options options = {});

/// Bytes that the graph of `loss` keeps for its backward pass, by module and op.
struct SavedBytes {
  std::string module;     ///< "blocks.0.attn.qkv (Linear)", or "" outside any
  std::string op;         ///< name of the op that saved them
  std::size_t bytes = 0;  ///< of the storages
};
/// Each storage is counted once, for the op that saved it first; leaves' own memory, parameters, is not. Largest first. What checkpoints
/// keep in place of tensors is the memory of their inputs, and appears where an op outside saves it. Modules are known to nodes that were
/// recorded under a MemoryHistory.
std::vector<SavedBytes> saved_for_backward(const Tensor& loss);

}  // namespace tern::profile
