#include "profile/profiler.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "backend/error.h"
#include "backend/observer.h"
#include "profile/thread_recorder.h"

namespace tern::profile {

Profiler::Shared::Shared(ProfilerOptions given) : options(std::move(given)) {
  if (options.device.type == DeviceType::cuda) tracer = make_device_tracer();
}

/// Makes and registers the recorder of this thread. Null if the profile is finished.
static std::shared_ptr<ThreadRecorder> watch_this_thread(const std::shared_ptr<Profiler::Shared>& shared, std::string name) {
  for (const backend::Observer* there = backend::observer; there; there = there->outer())
    if (const auto* recorder = dynamic_cast<const ThreadRecorder*>(there); recorder && &recorder->shared() == shared.get())
      fail("profile", "expected a thread that the profiler does not watch yet but it does, as '" + recorder->name() + "'");
  const std::lock_guard lock(shared->mutex);
  if (shared->is_over) return nullptr;
  auto recorder = std::make_shared<ThreadRecorder>(shared, static_cast<std::uint32_t>(shared->threads.size()), std::move(name));
  shared->threads.push_back(recorder);
  recorder->watch();
  return recorder;
}

Profiler::Profiler(ProfilerOptions options)
    : shared_(std::make_shared<Shared>(std::move(options))), own_(watch_this_thread(shared_, "thread 0")) {
  restart();
}

Profiler::~Profiler() {
  stop();
  shared_->tracer.reset();
}

WatchedThread::WatchedThread(Profiler& profiler, std::string name) : recorder_(watch_this_thread(profiler.shared_, std::move(name))) {}
WatchedThread::~WatchedThread() {
  if (recorder_) recorder_->unwatch();
}

void Profiler::begin_step() { own_->begin_step(); }
void Profiler::end_step() { own_->end_step(); }

void Profiler::restart() {
  const std::lock_guard lock(shared_->mutex);
  started_ = backend::steady_ns();
  if (shared_->tracer) shared_->tracer->collect();
  for (const auto& thread : shared_->threads) thread->restart();
}

void Profiler::stop() {
  own_->unwatch();
  const std::lock_guard lock(shared_->mutex);
  for (const auto& thread : shared_->threads) thread->finish();
  shared_->threads.clear();  // breaks the cycle: each recorder owns the shared state
  shared_->is_over = true;
}

namespace {

/// Merges the records of all threads into one profile.
class Merger {
 public:
  Merger(Profile& profile, const Profiler::Shared& shared, std::int64_t started) : profile_(profile), shared_(shared), started_(started) {
    name_of("");
    module_of(0);
  }

  void add(const ThreadRecorder& thread, const ThreadRecorder::Record& record) {
    profile_.threads.push_back(thread.name());
    std::vector<std::uint32_t> names;
    for (const std::string& name : record.names) names.push_back(name_of(name));
    const auto first = static_cast<std::uint32_t>(profile_.spans.size());
    for (Span span : record.spans) {
      span.begin -= started_;
      span.end -= started_;
      if (span.parent != none) span.parent += first;
      span.name = names[span.name];
      span.pass = names[span.pass];
      span.module = module_of(span.module);
      profile_.spans.push_back(span);
    }
    for (Collective collective : record.collectives) {
      collective.begin -= started_;
      collective.end -= started_;
      collective.name = names[collective.name];
      if (collective.begin >= 0) profile_.collectives.push_back(collective);  // else it started in the warm-up
    }
    for (const MemorySample& sample : record.memory) profile_.memory.push_back({sample.time - started_, sample.bytes});
    std::vector<ThreadRecorder::Launch>& launches = launches_.emplace_back(record.launches);
    for (ThreadRecorder::Launch& launch : launches) {
      if (launch.span != none) launch.span += first;
      launch.op = names[launch.op];
      launch.pass = names[launch.pass];
      launch.module = module_of(launch.module);
    }
  }

  void add(DeviceTracer::Work work) {
    DeviceRecord& record = work.record;
    record.begin -= started_;
    record.end -= started_;
    if (record.begin < 0) return;  // of the warm-up
    if (const ThreadRecorder::Launch* const launch = find(work.number)) {
      if (!record.is_in_graph) record.span = launch->span;
      record.op = launch->op;
      record.pass = launch->pass;
      record.module = launch->module;
    }
    profile_.device_records.push_back(std::move(record));
  }

  /// Sorts the samples of all threads by time.
  void finish() {
    std::vector<MemorySample>& memory = profile_.memory;
    std::stable_sort(memory.begin(), memory.end(), [](const MemorySample& a, const MemorySample& b) { return a.time < b.time; });
    const auto is_same = [](const MemorySample& a, const MemorySample& b) { return a.bytes == b.bytes; };
    memory.erase(std::unique(memory.begin(), memory.end(), is_same), memory.end());
  }

 private:
  const ThreadRecorder::Launch* find(std::uint64_t number) const {
    const std::uint64_t thread = number >> 40, launch = number & ((std::uint64_t(1) << 40) - 1);
    return launch > 0 && thread < launches_.size() && launch <= launches_[thread].size() ? &launches_[thread][launch - 1] : nullptr;
  }
  std::uint32_t name_of(const std::string& name) {
    const auto [place, is_new] = names_.try_emplace(name, static_cast<std::uint32_t>(profile_.names.size()));
    if (is_new) profile_.names.push_back(name);
    return place->second;
  }
  /// Merges modules of the same path, which a module has that was called from several others.
  std::uint32_t module_of(std::uint32_t number) {
    const auto known = modules_.find(number);
    if (known != modules_.end()) return known->second;
    const ModulePath module = shared_.modules->describe(number, shared_.options.names);
    const auto [place, is_new] = paths_.try_emplace({module.path, module.type}, static_cast<std::uint32_t>(profile_.modules.size()));
    if (is_new) profile_.modules.push_back(module);
    return modules_[number] = place->second;
  }

  Profile& profile_;
  const Profiler::Shared& shared_;
  const std::int64_t started_;
  std::vector<std::vector<ThreadRecorder::Launch>> launches_;  ///< by thread
  std::unordered_map<std::string, std::uint32_t> names_;
  std::unordered_map<std::uint32_t, std::uint32_t> modules_;
  std::map<std::pair<std::string, std::string>, std::uint32_t> paths_;
};

}  // namespace

Profile Profiler::finish() {
  if (shared_->tracer) synchronize(shared_->options.device);
  Profile profile;
  profile.device = shared_->options.device;
  Merger merger(profile, *shared_, started_);
  own_->unwatch();
  {
    const std::lock_guard lock(shared_->mutex);
    for (const auto& thread : shared_->threads) merger.add(*thread, thread->finish());
    shared_->is_over = true;
    shared_->threads.clear();
  }
  profile.end = backend::steady_ns() - started_;
  if (shared_->tracer)
    for (DeviceTracer::Work& work : shared_->tracer->collect()) merger.add(std::move(work));
  merger.finish();
  return profile;
}

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
