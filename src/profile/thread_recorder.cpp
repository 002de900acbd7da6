#include "profile/thread_recorder.h"

#include <cstring>
#include <utility>

#include "autodiff/node.h"
#include "backend/observer.h"

namespace tern::profile {

std::size_t ModuleTable::Hash::operator()(const Entry& entry) const {
  const std::hash<const void*> hash;
  return hash(entry.module) * 31 + hash(entry.type) * 7 + entry.outer;
}

std::shared_ptr<ModuleTable> ModuleTable::in_use() {
  static std::mutex mutex;
  static std::weak_ptr<ModuleTable> last;
  const std::lock_guard lock(mutex);
  std::shared_ptr<ModuleTable> table = last.lock();
  if (!table) last = table = std::make_shared<ModuleTable>();
  return table;
}

std::uint32_t ModuleTable::number_of(Entry entry) {
  const std::lock_guard lock(mutex_);
  if (entry.outer >= entries_.size()) entry.outer = 0;  // the number is of another table
  const auto [place, is_new] = numbers_.try_emplace(entry, static_cast<std::uint32_t>(entries_.size()));
  if (is_new) entries_.push_back(entry);
  return place->second;
}

ModulePath ModuleTable::describe(std::uint32_t number, const ModuleNames& names) const {
  const std::lock_guard lock(mutex_);
  if (number == 0 || number >= entries_.size()) return {};
  std::string path;
  for (std::uint32_t at = number; at != 0; at = entries_[at].outer) {
    const std::string* const known = names.find(entries_[at].module);
    const bool is_known = known && !known->empty();
    path = (is_known ? *known : entries_[at].type) + (path.empty() ? "" : "." + path);
    if (is_known) break;
  }
  return {path, entries_[number].type};
}

// Note [The op of a kernel]
// A kernel runs before its op is known, as an op reports its end. Its span is therefore pending until an op ends, and then becomes a
// child of that op, whose span starts with the first pending kernel. Ops that report none name their kernel themselves (the last
// argument of launch(), or begin_in_place). Kernels that are pending when a module or a pass starts or ends form an op called "other".
// Within a node of the backward pass the node is the op, and the ops that its function calls are inner ones: the backward of `linear` is
// one row in the table of ops.

/// The tracer's number for a launch: the thread, and the index of the launch from 1.
static std::uint64_t traced(std::uint32_t thread, std::size_t launches) { return std::uint64_t(thread) << 40 | launches; }

ThreadRecorder::ThreadRecorder(std::shared_ptr<Profiler::Shared> shared, std::uint32_t index, std::string name)
    : shared_(std::move(shared)), index_(index), name_(std::move(name)) {
  record_.names.emplace_back();
  frames_.push_back({none, 0, 0, 0});
}

void ThreadRecorder::restart() {
  const std::lock_guard lock(mutex_);
  record_.spans.clear();
  record_.collectives.clear();
  record_.memory.clear();
  pending_.clear();
  in_place_ = nullptr;
  frames_.resize(1);
  for (Launch& launch : record_.launches) launch.span = none;
  sample_memory();
}

ThreadRecorder::Record ThreadRecorder::finish() {
  const std::lock_guard lock(mutex_);
  if (kernel_depth_ > 0 && !pending_.empty()) record_.spans[pending_.back().span].end = backend::steady_ns();
  flush();
  while (frames_.size() > 1) close();
  is_over_ = true;
  return std::move(record_);
}

std::uint32_t ThreadRecorder::name_of(const char* name) {
  const auto known = literal_numbers_.find(name);
  if (known != literal_numbers_.end() && record_.names[known->second] == name) return known->second;
  const auto [place, is_new] = name_numbers_.try_emplace(name, static_cast<std::uint32_t>(record_.names.size()));
  if (is_new) record_.names.emplace_back(name);
  return literal_numbers_[name] = place->second;
}

ThreadRecorder::KnownModule ThreadRecorder::module_of(const void* module, const char* type) {
  const Frame& around = frames_.back();
  const bool calls_itself = around.object == module && !std::strcmp(around.type, type);  // an overload of forward that calls another one
  if (calls_itself) return {around.module, record_.spans[around.span].name};
  const ModuleTable::Entry entry{module, type, around.module};
  const auto known = known_modules_.find(entry);
  if (known != known_modules_.end()) return known->second;
  const std::uint32_t number = shared_->modules->number_of(entry);
  return known_modules_[entry] = {number, name_of(shared_->modules->describe(number, shared_->options.names).path.c_str())};
}

std::uint32_t ThreadRecorder::add(Kind kind, std::uint32_t name, std::int64_t begin) {
  const Frame& frame = frames_.back();
  Span span;
  span.kind = kind;
  span.thread = index_;
  span.begin = span.end = begin;
  span.parent = frame.span;
  span.name = name;
  span.pass = frame.pass;
  span.module = frame.module;
  record_.spans.push_back(span);
  return static_cast<std::uint32_t>(record_.spans.size() - 1);
}

void ThreadRecorder::open(Kind kind, std::uint32_t name, Frame frame) {
  flush();
  frame.span = add(kind, name, backend::steady_ns());
  Span& span = record_.spans.back();
  span.pass = frame.pass;
  span.module = frame.module;
  frames_.push_back(frame);
  if (tracer()) tracer()->begin_range(record_.names[name].c_str());
}

void ThreadRecorder::close() {
  flush();
  if (frames_.size() == 1) return;
  record_.spans[frames_.back().span].end = backend::steady_ns();
  frames_.pop_back();
  if (tracer() && std::this_thread::get_id() == thread_) tracer()->end_range();
}

void ThreadRecorder::sample_memory() {
  const std::uint64_t bytes = memory_statistics(shared_->options.device).allocated;
  if (record_.memory.empty() || record_.memory.back().bytes != bytes) record_.memory.push_back({backend::steady_ns(), bytes});
}

/// Closes an op that consists of the last `count` pending kernels.
void ThreadRecorder::close_op(std::uint32_t name, std::size_t count, double bytes) {
  const Frame& frame = frames_.back();
  std::vector<Span>& spans = record_.spans;
  const std::size_t first = pending_.size() - count;
  const std::int64_t end = backend::steady_ns();
  const std::uint32_t first_span = count > 0 ? pending_[first].span : static_cast<std::uint32_t>(spans.size());
  const std::uint32_t op = add(frame.backward_op ? Kind::inner : Kind::op, name, count > 0 ? spans[first_span].begin : end);
  spans[op].end = end;
  spans[op].bytes = bytes;
  for (std::uint32_t i = first_span; i < op; ++i) {  // kernels among them that named themselves stay as they are
    Span& span = spans[i];
    if (span.parent != frame.span || i == frame.span) continue;
    span.parent = op;
    if (span.kind == Kind::op) span.kind = Kind::inner;
  }
  for (std::size_t i = first; i < pending_.size(); ++i) {
    spans[pending_[i].span].name = name;
    if (tracer()) record_.launches[pending_[i].launch].op = frame.backward_op ? frame.backward_op : name;
  }
  pending_.resize(first);
}

void ThreadRecorder::flush() {
  in_place_ = nullptr;
  if (pending_.empty()) return;
  const Frame& frame = frames_.back();
  if (!frame.backward_op) {
    close_op(name_of("other"), pending_.size(), 0);
    return;
  }
  for (const Pending& kernel : pending_) {
    record_.spans[kernel.span].name = frame.backward_op;
    if (tracer()) record_.launches[kernel.launch].op = frame.backward_op;
  }
  pending_.clear();
}

void ThreadRecorder::begin_step() {
  const std::lock_guard lock(mutex_);
  if (!is_over_) open(Kind::step, name_of("step"), {none, 0, 0, 0});
}
void ThreadRecorder::end_step() {
  const std::lock_guard lock(mutex_);
  if (!is_over_) close();
}

void ThreadRecorder::begin_kernel() {
  const std::lock_guard lock(mutex_);
  if (kernel_depth_++ > 0 || is_over_) return;
  const std::uint32_t span = add(Kind::kernel, 0, backend::steady_ns());
  std::uint32_t launch = 0;
  if (tracer()) {
    const Frame& frame = frames_.back();
    launch = static_cast<std::uint32_t>(record_.launches.size());
    record_.launches.push_back({span, 0, frame.pass, frame.module});
    tracer()->push(traced(index_, record_.launches.size()));
  }
  pending_.push_back({span, launch});
}

void ThreadRecorder::end_kernel(const char* op) {
  const std::lock_guard lock(mutex_);
  if (kernel_depth_ == 0 || --kernel_depth_ > 0 || is_over_) return;
  if (tracer()) tracer()->pop();
  if (pending_.empty()) return;  // the kernel started before a restart
  record_.spans[pending_.back().span].end = backend::steady_ns();
  if (const char* const name = op ? op : in_place_) close_op(name_of(name), 1, 0);
  in_place_ = nullptr;
}

void ThreadRecorder::count_flops(double flops, bool is_product) {
  const std::lock_guard lock(mutex_);
  if (is_over_ || kernel_depth_ == 0 || pending_.empty()) return;
  Span& kernel = record_.spans[pending_.back().span];
  kernel.flops += flops;
  kernel.is_product = kernel.is_product || is_product;
}

void ThreadRecorder::begin_in_place(const char* op) {
  const std::lock_guard lock(mutex_);
  if (kernel_depth_ == 0) in_place_ = op;
}

void ThreadRecorder::end_op(const OpCall& call) {
  const std::lock_guard lock(mutex_);
  if (is_over_ || kernel_depth_ > 0) return;  // ops that a kernel calls are a part of it
  in_place_ = nullptr;
  close_op(name_of(call.op.name), pending_.size(), call.bytes());
  sample_memory();
}

void ThreadRecorder::begin_module(const void* module, const char* type) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return;
  flush();
  Frame frame = frames_.back();
  const KnownModule known = module_of(module, type);
  frame.module = known.number;
  frame.object = module;
  frame.type = type;
  open(Kind::module, known.name, frame);
}

void ThreadRecorder::end_module() {
  const std::lock_guard lock(mutex_);
  if (!is_over_) close();
}

std::uint32_t ThreadRecorder::module() {
  const std::lock_guard lock(mutex_);
  return frames_.back().module;
}

void ThreadRecorder::begin_backward(const Node& node) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return;
  const std::uint32_t name = name_of(node.op);
  open(Kind::op, name, {none, frames_.back().pass, node.observed_module, name});
}

void ThreadRecorder::end_backward(double bytes) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return;
  flush();
  if (frames_.size() > 1) record_.spans[frames_.back().span].bytes = bytes;
  close();
  sample_memory();
}

void ThreadRecorder::begin_pass(const char* name) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return;
  const std::uint32_t pass = name_of(name);
  open(Kind::pass, pass, {none, pass, frames_.back().module, 0});
}

void ThreadRecorder::end_pass() {
  const std::lock_guard lock(mutex_);
  if (!is_over_) close();
}

void ThreadRecorder::end_collective(const char* op, std::int64_t begin, std::int64_t end, std::int64_t waited, double bytes) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return;
  record_.collectives.push_back({.thread = index_, .name = name_of(op), .begin = begin, .end = end, .waited = waited, .bytes = bytes});
}

}  // namespace tern::profile
