#include "profile/profiler.h"

#include <chrono>
#include <cstring>

#include "profile/device_tracer.h"
#include "tensor/tensor.h"

namespace tern::profile {

// Note [Whose kernel it is]
// A kernel runs before its op is known: `record` comes last. So its span waits in pending_ until an op ends, and is a part of that op,
// which began with the first kernel that waited. Ops that never reach `record` name their kernel themselves (the last argument of on(), or
// begin_in_place). What still waits when a module or a pass begins or ends is an op called "other". Within a node of the backward pass the
// node is the op, and ops that its function calls are its inner parts: so a table of ops has `linear` backward in one row.

std::size_t Profiler::ModuleHash::operator()(const ModuleKey& key) const {
  const std::hash<const void*> hash;
  return hash(key.module) * 31 + hash(key.type) * 7 + key.outer;
}

Profiler::Profiler(ProfilerOptions options) : options_(std::move(options)) {
  profile_.device = options_.device;
  profile_.names.emplace_back();
  profile_.modules.emplace_back();
  frames_.push_back({none, 0, 0, 0});
  if (options_.device.type == DeviceType::cuda) tracer_ = make_device_tracer();
  restart();
  watch();
}

Profiler::~Profiler() { stop(); }

void Profiler::stop() {
  if (in_force_) unwatch();
  in_force_ = false;
}

std::int64_t Profiler::clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Profiler::restart() {
  started_ = clock();
  profile_.spans.clear();
  profile_.memory.clear();
  pending_.clear();
  frames_.resize(1);
  for (Launch& launch : launches_) launch.span = none;
  if (tracer_) tracer_->collect();
  sample_memory();
}

Profile Profiler::finish() {
  if (tracer_) synchronize(options_.device);
  flush();
  while (frames_.size() > 1) close();
  stop();
  profile_.end = now();
  if (tracer_)
    for (DeviceTracer::Work& work : tracer_->collect()) {
      DeviceRecord& record = work.record;
      record.begin -= started_;
      record.end -= started_;
      if (record.begin < 0) continue;  // of the warm-up
      if (work.number > 0 && work.number <= launches_.size()) {
        const Launch& launch = launches_[work.number - 1];
        if (!record.is_in_graph) record.span = launch.span;
        record.op = launch.op;
        record.pass = launch.pass;
        record.module = launch.module;
      }
      profile_.device_records.push_back(std::move(record));
    }
  return std::move(profile_);
}

std::uint32_t Profiler::name_of(const char* name) {
  const auto known = literal_numbers_.find(name);
  if (known != literal_numbers_.end() && profile_.names[known->second] == name) return known->second;
  const auto [place, is_new] = name_numbers_.try_emplace(name, static_cast<std::uint32_t>(profile_.names.size()));
  if (is_new) profile_.names.emplace_back(name);
  return literal_numbers_[name] = place->second;
}

std::uint32_t Profiler::module_of(const void* module, const char* type) {
  const std::uint32_t outer = frames_.back().module;
  if (frames_.back().object == module && profile_.modules[outer].type == type) return outer;  // it calls another forward of its own
  const auto [place, is_new] = module_numbers_.try_emplace({module, type, outer}, static_cast<std::uint32_t>(profile_.modules.size()));
  if (is_new) {
    const std::string* const known = options_.names.find(module);
    const std::string& around = profile_.modules[outer].path;
    const std::string path = known && !known->empty() ? *known : around.empty() ? std::string(type) : around + "." + type;
    // A module is reached from several others, or twice from itself: one row for each path.
    for (std::uint32_t i = 1; i < profile_.modules.size(); ++i)
      if (profile_.modules[i].path == path && profile_.modules[i].type == type) return place->second = i;
    profile_.modules.push_back({path, type});
  }
  return place->second;
}

std::uint32_t Profiler::add(Kind kind, std::uint32_t name, std::int64_t begin) {
  const Frame& frame = frames_.back();
  Span span;
  span.kind = kind;
  span.begin = span.end = begin;
  span.parent = frame.span;
  span.name = name;
  span.pass = frame.pass;
  span.module = frame.module;
  profile_.spans.push_back(span);
  return static_cast<std::uint32_t>(profile_.spans.size() - 1);
}

void Profiler::open(Kind kind, std::uint32_t name, Frame frame) {
  flush();
  frame.span = add(kind, name, now());
  Span& span = profile_.spans.back();
  span.pass = frame.pass;
  span.module = frame.module;
  frames_.push_back(frame);
  if (tracer_) tracer_->begin_range(profile_.names[name].c_str());
}

void Profiler::close() {
  flush();
  if (frames_.size() == 1) return;
  profile_.spans[frames_.back().span].end = now();
  frames_.pop_back();
  if (tracer_) tracer_->end_range();
}

void Profiler::sample_memory() {
  const std::uint64_t bytes = memory_statistics(options_.device).allocated;
  if (profile_.memory.empty() || profile_.memory.back().bytes != bytes) profile_.memory.push_back({now(), bytes});
}

/// An op that the last `count` of the waiting kernels are.
void Profiler::close_op(std::uint32_t name, std::size_t count, double bytes) {
  const Frame& frame = frames_.back();
  const std::size_t first = pending_.size() - count;
  const std::int64_t end = now();
  const std::uint32_t first_span = count > 0 ? pending_[first].span : static_cast<std::uint32_t>(profile_.spans.size());
  const std::uint32_t op = add(frame.backward_op ? Kind::inner : Kind::op, name, count > 0 ? profile_.spans[first_span].begin : end);
  profile_.spans[op].end = end;
  profile_.spans[op].bytes = bytes;
  for (std::uint32_t i = first_span; i < op; ++i) {  // what lies in between named itself, or waited
    Span& span = profile_.spans[i];
    if (span.parent != frame.span || i == frame.span) continue;
    span.parent = op;
    if (span.kind == Kind::op) span.kind = Kind::inner;
  }
  for (std::size_t i = first; i < pending_.size(); ++i) {
    profile_.spans[pending_[i].span].name = name;
    if (tracer_) launches_[pending_[i].number - 1].op = frame.backward_op ? frame.backward_op : name;
  }
  pending_.resize(first);
}

void Profiler::flush() {
  in_place_ = nullptr;
  if (pending_.empty()) return;
  const Frame& frame = frames_.back();
  if (!frame.backward_op) {
    close_op(name_of("other"), pending_.size(), 0);
    return;
  }
  for (const Pending& kernel : pending_) {
    profile_.spans[kernel.span].name = frame.backward_op;
    if (tracer_) launches_[kernel.number - 1].op = frame.backward_op;
  }
  pending_.clear();
}

void Profiler::begin_step() { open(Kind::step, name_of("step"), {none, 0, 0, 0}); }
void Profiler::end_step() { close(); }

void Profiler::begin_kernel() {
  if (kernel_depth_++ > 0) return;
  const std::uint32_t span = add(Kind::kernel, 0, now());
  std::uint64_t number = 0;
  if (tracer_) {
    const Frame& frame = frames_.back();
    launches_.push_back({span, 0, frame.pass, frame.module});
    tracer_->push(number = launches_.size());
  }
  pending_.push_back({span, number});
}

void Profiler::end_kernel(const char* op) {
  if (kernel_depth_ == 0 || --kernel_depth_ > 0) return;
  if (pending_.empty()) return;  // it began before a restart
  if (tracer_) tracer_->pop();
  profile_.spans[pending_.back().span].end = now();
  if (const char* const name = op ? op : in_place_) close_op(name_of(name), 1, 0);
  in_place_ = nullptr;
}

void Profiler::count_flops(double flops, bool is_product) {
  if (kernel_depth_ == 0 || pending_.empty()) return;
  Span& kernel = profile_.spans[pending_.back().span];
  kernel.flops += flops;
  kernel.is_product = kernel.is_product || is_product;
}

void Profiler::begin_in_place(const char* op) {
  if (kernel_depth_ == 0) in_place_ = op;
}

void Profiler::end_op(const OpCall& call) {
  if (kernel_depth_ > 0) return;  // a kernel's call that calls ops is one piece
  in_place_ = nullptr;
  close_op(name_of(call.op), pending_.size(), call.bytes());
  sample_memory();
}

void Profiler::begin_module(const void* module, const char* type) {
  flush();
  Frame frame = frames_.back();
  frame.module = module_of(module, type);
  frame.object = module;
  const std::string& path = profile_.modules[frame.module].path;
  open(Kind::module, name_of(path.c_str()), frame);
}
void Profiler::end_module() { close(); }
std::uint32_t Profiler::module() { return frames_.back().module; }

void Profiler::begin_backward(const Node& node) {
  const std::uint32_t name = name_of(node.op), module = node.observed_module;
  open(Kind::op, name, {none, frames_.back().pass, module < profile_.modules.size() ? module : 0, name});
}

void Profiler::end_backward(double bytes) {
  flush();
  if (frames_.size() > 1) profile_.spans[frames_.back().span].bytes = bytes;
  close();
  sample_memory();
}

void Profiler::begin_pass(const char* name) {
  const std::uint32_t pass = name_of(name);
  open(Kind::pass, pass, {none, pass, frames_.back().module, 0});
}
void Profiler::end_pass() { close(); }

std::int64_t Profile::wall() const {
  std::int64_t total = 0;
  for (const Span& span : spans)
    if (span.kind == Kind::step) total += span.duration();
  return total > 0 ? total : end;
}

std::int64_t Profile::steps() const {
  std::int64_t count = 0;
  for (const Span& span : spans) count += span.kind == Kind::step;
  return count;
}

}  // namespace tern::profile
