#include "profile/memory_history.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "autodiff/node.h"
#include "backend/observer.h"
#include "tensor/dispatch.h"

#if __has_include(<execinfo.h>)
#include <execinfo.h>
#endif

namespace tern::profile {

using backend::MemoryAction;

const char* name(MemoryCategory category) {
  constexpr std::array names = {"parameters", "gradients", "optimizer", "activations", "workspace", "before"};
  static_assert(names.size() == memory_categories);
  return names[static_cast<std::size_t>(category)];
}

const char* name(MemoryPass pass) {
  constexpr std::array names = {"", "forward", "backward", "recompute"};
  return names[static_cast<std::size_t>(pass)];
}

std::size_t MemoryByCategory::total() const {
  std::size_t sum = 0;
  for (const std::size_t part : bytes) sum += part;
  return sum;
}

struct MemoryHistory::State {
  /// A backward function that is running, and the module scope at its start.
  struct RunningNode {
    const std::string *op, *module;
    const ModuleFrame* scope;
  };

  std::mutex mutex;
  std::unordered_map<const void*, std::size_t> live;
  std::vector<std::size_t> pending;  // blocks of the history's thread whose op is not known yet
  std::vector<RunningNode> running;
  std::set<std::string, std::less<>> texts;
};

MemoryHistory::MemoryHistory(Device device, ModuleNames names, Options options)
    : device_(device),
      options_(options),
      names_(std::move(names)),
      own_context_(&context()),
      start_ns_(backend::steady_ns()),
      state_(std::make_unique<State>()) {
  with_backend(device_, [&](auto dev) { backend::observe_memory(dev, device_, static_cast<backend::MemoryObserver*>(this)); });
  names_in_use_ = std::make_unique<ScopedValue<const ModuleNames*>>(context().diagnosis.names, &names_);
  watch();
}

MemoryHistory::~MemoryHistory() { end(); }

void MemoryHistory::end() {
  if (!names_in_use_) return;
  with_backend(device_, [&](auto dev) { backend::observe_memory(dev, device_, nullptr); });
  unwatch();
  names_in_use_.reset();
}

// Events. The allocator holds its lock here, and another thread may be in an op of its own, so that the history has a lock as well. No code
// under the history's lock may call an allocator of tensors.

void MemoryHistory::on_begin(const backend::MemoryStatistics& now) noexcept {
  const std::lock_guard lock(state_->mutex);
  std::size_t known = 0;
  for (const MemoryBlock& block : blocks_) known += block.bytes;
  unknown_before_ = now.allocated - std::min(now.allocated, known);
  is_beginning_ = false;
}

void MemoryHistory::on_memory(const backend::MemoryEvent& event) noexcept {
  if (event.stream.device != device_) return;
  const std::lock_guard lock(state_->mutex);
  try {
    add(event);
  } catch (...) {
    is_complete_ = false;
  }
}

void MemoryHistory::add(const backend::MemoryEvent& event) {
  const std::int64_t since = (backend::steady_ns() - start_ns_) / 1000;
  MemoryHistoryEvent told{event.action, event.address, event.stream.handle, event.bytes, event.available, since, MemoryBlock::never};
  if (event.action == MemoryAction::alloc) {
    told.block = blocks_.size();
    MemoryBlock& block = blocks_.emplace_back();
    block.address = event.address;
    block.stream = event.stream.handle;
    block.bytes = event.bytes;
    block.requested = event.requested;
    state_->live[event.address] = told.block;
    if (is_beginning_) {
      block.category = MemoryCategory::before;
      return;
    }
    block.begin = events_.size();
    label(block);
  } else if (event.action == MemoryAction::free) {
    if (const auto found = state_->live.find(event.address); found != state_->live.end()) {
      told.block = found->second;
      blocks_[told.block].end = events_.size();
      state_->live.erase(found);
    }
  }
  events_.push_back(told);
}

void MemoryHistory::label(MemoryBlock& block) {
#if __has_include(<execinfo.h>)
  if (options_.stacks) {
    std::array<void*, 48> frames;
    const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
    // Skips the innermost frames: this function, add, on_memory and two of the allocator.
    constexpr int own = 3;
    block.stack.assign(frames.begin() + std::min(count, own), frames.begin() + count);
  }
#endif
  if (!is_own_thread()) return;
  const ModuleFrame* const scope = context().diagnosis.module;
  const ModuleFrame* const outer = state_->running.empty() ? nullptr : state_->running.back().scope;
  if (state_->running.empty()) {
    block.pass = scope ? MemoryPass::forward : MemoryPass::none;
    block.module = module_of(scope);
  } else if (scope != outer) {
    block.pass = MemoryPass::recompute;
    block.module = module_of(scope);
  } else {
    block.pass = MemoryPass::backward;
    block.module = state_->running.back().module;
    block.op = state_->running.back().op;
    return;
  }
  state_->pending.push_back(static_cast<std::size_t>(&block - blocks_.data()));
}

const std::string* MemoryHistory::intern(std::string_view text) {
  if (text.empty()) return nullptr;
  const auto found = state_->texts.find(text);
  return found != state_->texts.end() ? &*found : &*state_->texts.emplace(text).first;
}

const std::string* MemoryHistory::module_of(const ModuleFrame* scope) { return scope ? intern(running_module()) : nullptr; }

MemoryBlock* MemoryHistory::mark(const Tensor& x, MemoryCategory category, bool may_be_before) {
  if (!x.defined() || x.device() != device_) return nullptr;
  if (!x.impl().storage->is_here() || x.impl().storage->bytes() == 0) return nullptr;
  const Storage& storage = *x.impl().storage;
  auto found = state_->live.find(storage.data());
  if (found == state_->live.end()) {
    // The CPU's allocator does not report blocks that were allocated before: their bytes count as unknown.
    if (!may_be_before || device_.type != DeviceType::cpu) return nullptr;
    const std::size_t bytes = std::min(backend::allocated_size(Cpu{}, storage.bytes()), unknown_before_);
    unknown_before_ -= bytes;
    MemoryBlock& block = blocks_.emplace_back();
    block.address = storage.data();
    block.bytes = bytes;
    block.requested = storage.bytes();
    block.category = MemoryCategory::before;
    found = state_->live.emplace(storage.data(), blocks_.size() - 1).first;
  }
  MemoryBlock& block = blocks_[found->second];
  if (category < block.category) block.category = category;
  return &block;
}

// Ops

void MemoryHistory::end_op(const OpCall& call) noexcept {
  const std::lock_guard lock(state_->mutex);
  try {
    const std::string* const name = state_->pending.empty() ? nullptr : intern(call.op.name);
    for (const std::size_t block : state_->pending) blocks_[block].op = name;
    state_->pending.clear();
    const ModuleFrame* const outer = state_->running.empty() ? nullptr : state_->running.back().scope;
    const bool is_in_module = context().diagnosis.module != outer;
    for (const Tensor& y : call.outputs)
      if (is_in_module || (call.is_recorded && y.defined() && is_floating(y.dtype()))) mark(y, MemoryCategory::activations, false);
    if (call.is_recorded)
      for (const Tensor& x : call.saved) mark(x, MemoryCategory::activations, true);
  } catch (...) {
    is_complete_ = false;
  }
}

void MemoryHistory::begin_backward(const Node& node) noexcept {
  const std::lock_guard lock(state_->mutex);
  try {
    state_->running.push_back({intern(node.op), intern(node.module), context().diagnosis.module});
    state_->pending.clear();
  } catch (...) {
    is_complete_ = false;
  }
}

void MemoryHistory::end_backward(double) noexcept {
  const std::lock_guard lock(state_->mutex);
  if (!state_->running.empty()) state_->running.pop_back();
  state_->pending.clear();
}

void MemoryHistory::on_gradient(const Tensor& leaf) noexcept {
  try {
    const Tensor gradient = leaf.grad();
    const std::lock_guard lock(state_->mutex);
    mark(gradient, MemoryCategory::gradients, true);
  } catch (...) {
    is_complete_ = false;
  }
}

// Names

namespace {

/// All tensors that a model holds.
class TensorsOf final : public nn::Visitor {
 public:
  explicit TensorsOf(const nn::Module& model) { walk(const_cast<nn::Module&>(model)); }
  std::vector<NamedTensor> all;
  Tensors parameters;

 protected:
  void on_parameter(const std::string& path, Tensor& x) override {
    all.push_back({path, x});
    parameters.push_back(x);
  }
  void on_buffer(const std::string& path, Tensor& x) override { all.push_back({path, x}); }
  void on_constant(const std::string& path, Tensor& x) override { all.push_back({path, x}); }
};

}  // namespace

void MemoryHistory::name(const nn::Module& model) {
  const TensorsOf tensors(model);
  Tensors gradients;
  for (const Tensor& x : tensors.parameters) gradients.push_back(x.grad());
  const std::lock_guard lock(state_->mutex);
  for (const NamedTensor& entry : tensors.all) {
    MemoryBlock* const block = mark(entry.tensor, MemoryCategory::parameters, true);
    if (!block) continue;
    const std::string* const path = intern(entry.name);
    block->tensor = !block->tensor || block->tensor == path ? path : intern("several");
  }
  for (const Tensor& x : gradients) mark(x, MemoryCategory::gradients, true);
}

void MemoryHistory::name(train::Optimizer& optimizer) {
  const Tensors memory = optimizer.memory();
  const std::lock_guard lock(state_->mutex);
  for (const Tensor& x : memory) mark(x, MemoryCategory::optimizer, true);
}

// Reading the events

MemoryByCategory MemoryHistory::at_begin() const {
  MemoryByCategory now;
  now.bytes[static_cast<std::size_t>(MemoryCategory::before)] = unknown_before_;
  for (const MemoryBlock& block : blocks_)
    if (block.begin == MemoryBlock::never) now.bytes[static_cast<std::size_t>(block.category)] += block.bytes;
  return now;
}

void MemoryHistory::walk(const std::function<void(std::size_t, const MemoryByCategory&)>& f) const {
  MemoryByCategory now = at_begin();
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const MemoryHistoryEvent& event = events_[i];
    const MemoryCategory category = event.block == MemoryBlock::never ? MemoryCategory::before : blocks_[event.block].category;
    std::size_t& bytes = now.bytes[static_cast<std::size_t>(category)];
    if (event.action == MemoryAction::alloc) bytes += event.bytes;
    else if (event.action == MemoryAction::free) bytes -= event.bytes;
    else continue;
    f(i, now);
  }
}

MemoryByCategory MemoryHistory::at_end() const {
  MemoryByCategory end = at_begin();
  walk([&](std::size_t, const MemoryByCategory& now) { end = now; });
  return end;
}

MemoryPeak MemoryHistory::peak() const {
  const MemoryByCategory first = at_begin();
  MemoryPeak peak{first.total(), MemoryBlock::never, first};
  walk([&](std::size_t event, const MemoryByCategory& now) {
    if (const std::size_t total = now.total(); total > peak.bytes) peak = {total, event, now};
  });
  return peak;
}

std::vector<std::size_t> MemoryHistory::largest(std::size_t count, bool at_peak) const {
  const std::size_t event = at_peak ? peak().event : 0;
  const auto lives_at_peak = [&](const MemoryBlock& block) {
    if (event == MemoryBlock::never) return block.begin == MemoryBlock::never;
    return (block.begin == MemoryBlock::never || block.begin <= event) && (block.end == MemoryBlock::never || block.end > event);
  };
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    if (at_peak ? lives_at_peak(blocks_[i]) : blocks_[i].begin != MemoryBlock::never) places.push_back(i);
  std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) { return blocks_[a].bytes > blocks_[b].bytes; });
  places.resize(std::min(places.size(), count));
  return places;
}

std::unique_ptr<MemoryHistory> memory_of_step(Device device, const nn::Module& model, train::Optimizer* optimizer,
                                              const std::function<void()>& step, MemoryHistory::Options options) {
  auto history = std::make_unique<MemoryHistory>(device, nn::module_names(model), options);
  history->name(model);  // names gradients of an earlier step, which this step may free
  try {
    step();
  } catch (...) {
    history->end();
    throw;
  }
  history->name(model);
  if (optimizer) history->name(*optimizer);
  history->end();
  return history;
}

std::vector<SavedBytes> saved_for_backward(const Tensor& loss) {
  std::set<const Node*> seen;
  std::set<const Storage*> counted;  // at first the leaves' own, which are not counted
  std::vector<const Node*> nodes, queue;
  const auto visit = [&](const Edge& edge) {
    const Node* const node = edge.node.get();
    if (!node || !seen.insert(node).second) return;
    if (const Tensor* leaf = node->leaf()) counted.insert(leaf->impl().storage.get());
    else queue.push_back(node), nodes.push_back(node);
  };
  visit(edge_of(loss));
  while (!queue.empty()) {
    const Node* const node = queue.back();
    queue.pop_back();
    for (const Edge& edge : node->next) visit(edge);
  }
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
  std::map<std::pair<std::string, std::string>, std::size_t> sums;
  for (const Node* const node : nodes)
    for (const Saved& x : node->saved) {
      const Storage* const storage = x.kept().defined() ? x.kept().impl().storage.get() : nullptr;
      if (storage && counted.insert(storage).second) sums[{node->module, node->op}] += storage->bytes();
    }
  std::vector<SavedBytes> result;
  for (const auto& [key, bytes] : sums) result.push_back({key.first, key.second, bytes});
  std::stable_sort(result.begin(), result.end(), [](const SavedBytes& a, const SavedBytes& b) { return a.bytes > b.bytes; });
  return result;
}

}  // namespace tern::profile
