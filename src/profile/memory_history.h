#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autodiff/anomaly.h"
#include "autodiff/node.h"
#include "backend/memory.h"
#include "nn/module.h"
#include "train/optimizer.h"

namespace tern::profile {

/// Note [Memory categories]
/// Each block of memory belongs to exactly one category for its whole lifetime, so that the bytes of the categories sum to the allocator's
/// at every moment. The first of these that applies:
///  1. parameters: a model's parameters, buffers and constants, including their flat buffers (MemoryHistory::name);
///  2. gradients: the gradient of a leaf, known when a backward pass completes it or when the model is named;
///  3. optimizer: the tensors of Optimizer::state: moments, f32 masters of 16-bit parameters, learning rates, the step count;
///  4. activations: results of ops in a module's forward, saved for backward or not, including the recomputation of a checkpoint; and all
///     other tensors that an op saves for backward;
///  5. before: blocks that existed when the history began (of the CPU's allocator only their bytes are known);
///  6. workspace: the rest: scratch memory of kernels, intermediate gradients of a backward pass, a program's inputs.
enum class MemoryCategory : std::uint8_t { parameters, gradients, optimizer, activations, workspace, before };
/// The number of categories.
inline constexpr std::size_t memory_categories = 6;
/// "parameters", "gradients", "optimizer", "activations", "workspace", "before".
const char* name(MemoryCategory category);

/// The pass that the history's thread was in when a block was allocated. `recompute` is a checkpoint's forward within a backward pass.
enum class MemoryPass : std::uint8_t { none, forward, backward, recompute };
/// "", "forward", "backward", "recompute".
const char* name(MemoryPass pass);

/// Bytes of each category, in the order of MemoryCategory.
struct MemoryByCategory {
  std::array<std::size_t, memory_categories> bytes{};                                                  ///< in the order of MemoryCategory
  std::size_t of(MemoryCategory category) const { return bytes[static_cast<std::size_t>(category)]; }  ///< bytes of one category
  std::size_t total() const;  ///< bytes of all categories, equal to the allocator's count
};

/// A block of memory from its allocation to its free. `begin` and `end` are indices in MemoryHistory::events().
struct MemoryBlock {
  /// The index of no event.
  static constexpr std::size_t never = ~std::size_t{0};

  const void* address = nullptr;                        ///< address of the first byte
  const void* stream = nullptr;                         ///< identifies the stream of the allocation
  std::size_t bytes = 0;                                ///< size as the allocator counts it, rounded up
  std::size_t requested = 0;                            ///< size of the request in bytes
  std::size_t begin = never;                            ///< event of its allocation; `never`: before the history began
  std::size_t end = never;                              ///< event of its free; `never`: it is still allocated
  MemoryCategory category = MemoryCategory::workspace;  ///< Note [Memory categories]
  MemoryPass pass = MemoryPass::none;                   ///< pass of its allocation
  const std::string* module = nullptr;                  ///< "blocks.0.attn.qkv (Linear)"; null outside any module
  const std::string* op = nullptr;                      ///< op that allocated it, in backward the one whose gradient it is; null if unknown
  const std::string* tensor = nullptr;                  ///< "head.weight" of a named model, or "several" for a flat buffer; else null
  std::vector<void*> stack;                             ///< return addresses, innermost first, with Options::stacks
};

/// An event of the allocator, in the order of the history.
struct MemoryHistoryEvent {
  backend::MemoryAction action = backend::MemoryAction::alloc;  ///< what happened
  const void* address = nullptr;                                ///< address of the block or segment
  const void* stream = nullptr;                                 ///< as in MemoryBlock
  std::size_t bytes = 0;                                        ///< size of the block or segment, or of a request that failed
  std::size_t available = 0;                                    ///< for a request that failed: bytes that the device had left
  std::int64_t time_us = 0;                                     ///< microseconds since the history began
  std::size_t block = MemoryBlock::never;                       ///< for an allocation or a free, the index in blocks(); else `never`
};

/// The moment with the most memory.
struct MemoryPeak {
  std::size_t bytes = 0;                   ///< bytes in live blocks
  std::size_t event = MemoryBlock::never;  ///< the event that led to the peak; `never`: the peak was at the beginning
  MemoryByCategory categories;             ///< these bytes by category
};

/// Records every allocation and free of one device by all threads, with the op and the module for those of its own thread, until end().
/// One history at a time for the CPU, and one for all CUDA devices: a second one throws Error. The thread that made it has to end it. It
/// costs some microseconds an op and some hundred nanoseconds an allocation.
class MemoryHistory final : backend::MemoryObserver, backend::Observer {
 public:
  /// Options of MemoryHistory.
  struct Options {
    bool stacks = false;  ///< record the C++ stack of each allocation, which costs dozens of microseconds each
  };
  /// Begins the history. `names` are the paths of modules, nn::module_names(model).
  explicit MemoryHistory(Device device, ModuleNames names, Options options);
  /// Begins the history with the default options.
  explicit MemoryHistory(Device device, ModuleNames names = {}) : MemoryHistory(device, std::move(names), Options()) {}
  ~MemoryHistory() override;
  MemoryHistory(const MemoryHistory&) = delete;
  MemoryHistory& operator=(const MemoryHistory&) = delete;

  /// Assigns categories to the memory that a model holds now: Note [Memory categories]. To be called before the model frees memory, and
  /// before end().
  void name(const nn::Module& model);
  /// Assigns the category `optimizer` to the memory that an optimizer holds now. To be called as for a model.
  void name(train::Optimizer& optimizer);
  /// Sets the paths of modules, for a model that was made since the history began.
  void set_names(ModuleNames names) { names_ = std::move(names); }
  /// Ends the history, before it is read. Called by the destructor.
  void end();

  Device device() const { return device_; }                                  ///< the recorded device
  const std::vector<MemoryBlock>& blocks() const { return blocks_; }         ///< in order of allocation, earlier blocks first
  const std::vector<MemoryHistoryEvent>& events() const { return events_; }  ///< in order
  /// Bytes allocated at the beginning whose blocks are not known.
  std::size_t unknown_before() const { return unknown_before_; }
  /// False if the host had no memory for all events, so that some are missing.
  bool is_complete() const { return is_complete_; }

  /// The categories' bytes before the first event.
  MemoryByCategory at_begin() const;
  /// The categories' bytes after the last event.
  MemoryByCategory at_end() const;
  /// Calls f(event, categories) after each event that changes them, in order.
  void walk(const std::function<void(std::size_t event, const MemoryByCategory& now)>& f) const;
  /// The peak of allocated memory: equal to memory_statistics().peak_allocated if that was reset when the history began.
  MemoryPeak peak() const;
  /// Indices in blocks() of the `count` largest blocks, the largest first: of those live at the peak, or of all that were allocated since
  /// the history began.
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

  struct State;

  Device device_;
  Options options_;
  ModuleNames names_;
  const Context* own_context_;
  std::int64_t start_ns_;

  std::unique_ptr<State> state_;  ///< with the lock that guards it and the members below: allocators call from any thread
  std::vector<MemoryBlock> blocks_;
  std::vector<MemoryHistoryEvent> events_;
  std::size_t unknown_before_ = 0;
  bool is_complete_ = true, is_beginning_ = true;

  std::unique_ptr<ScopedValue<const ModuleNames*>> names_in_use_;  ///< null after end()
};

/// Records the history of a call of `step`: a training step of the model and the optimizer, or a forward pass if `optimizer` is null. The
/// model and the optimizer are named after the step. For a representative peak run a step before, as the first one allocates the
/// optimizer's moments.
std::unique_ptr<MemoryHistory> memory_of_step(Device device, const nn::Module& model, train::Optimizer* optimizer,
                                              const std::function<void()>& step, MemoryHistory::Options options = {});

/// Bytes that the graph of `loss` keeps for its backward pass, by module and op.
struct SavedBytes {
  std::string module;     ///< "blocks.0.attn.qkv (Linear)"; "" outside any module
  std::string op;         ///< name of the op that saved them
  std::size_t bytes = 0;  ///< bytes of the storages
};
/// The bytes that the graph of `loss` saves for backward, largest first. Each storage is counted once, for the op that saved it first; the
/// memory of leaves (parameters) is not counted. A checkpoint saves its inputs, which are counted where an op outside of it saves them.
/// Modules are known for nodes that were recorded under a MemoryHistory.
std::vector<SavedBytes> saved_for_backward(const Tensor& loss);

/// A part of the report: a history, and the memory that is saved for its backward pass.
struct MemoryReportPart {
  std::string title;                       ///< "forward", "step"
  const MemoryHistory* history = nullptr;  ///< null if memory ran out before it began
  std::vector<SavedBytes> saved = {};      ///< saved_for_backward(loss)
  std::string failure = {};                ///< "out of memory"; "" if the work succeeded
};

/// A size as text: "1.250 GiB", "20.00 MiB", "1.5 KiB", "512".
std::string bytes_text(std::size_t bytes);

/// A report in Markdown: a table of peaks by category; then for each part the largest blocks at its peak, with category, op, module and
/// recorded stack, and the bytes saved for backward by module. `notes` are lines above the table.
std::string memory_report(const std::string& title, const std::vector<std::string>& notes, const std::vector<MemoryReportPart>& parts);

/// Writes the memory_report to a file. Throws FileError.
void write_memory_report(const std::string& path, const std::string& title, const std::vector<std::string>& notes,
                         const std::vector<MemoryReportPart>& parts);

/// An SVG picture of a history: a stacked area chart of the bytes of each category over time, with the peak, and a band of the passes
/// below. Each column shows the maximum of its interval, so that no peak is lost. Suits light and dark pages.
std::string to_svg(const MemoryHistory& history, const std::string& title);

/// The history as a pickle in the format of torch.cuda.memory._snapshot, for the page pytorch.org/memory_viz and for
/// torch/cuda/_memory_viz.py: `segments` at the end of the history, and `device_traces` with the actions alloc, free_requested,
/// free_completed, segment_alloc, segment_free and oom. The frames of a block are its category, its op with the pass, and its module, with
/// the op innermost, followed by the recorded C++ stack. The CPU appears as device 0, with one segment for each block.
std::string memory_snapshot(const MemoryHistory& history);

/// Writes the memory_snapshot to a file. Throws FileError.
void write_snapshot(const MemoryHistory& history, const std::string& path);

/// A stack as text, one line "name at library+0x1234" for each frame, innermost first.
std::vector<std::string> stack_lines(const std::vector<void*>& stack);

}  // namespace tern::profile
