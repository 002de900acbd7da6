#include "profile/profiler.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "backend/error.h"
#include "backend/observer.h"
#include "io/files.h"
#include "io/json_object.h"
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

namespace {

constexpr int host = 1, device = 2;  ///< process ids in the trace: a viewer groups tracks by process

/// Microseconds, the unit of the format.
std::string us(std::int64_t nanoseconds) { return fmt::format("{:.3f}", static_cast<double>(nanoseconds) / 1e3); }

const char* category(Kind kind) {
  switch (kind) {
    case Kind::step: return "step";
    case Kind::pass: return "pass";
    case Kind::module: return "module";
    case Kind::op: return "op";
    case Kind::inner: return "inner op";
    case Kind::kernel: return "kernel";
  }
  return "";
}

class Trace {
 public:
  Trace(const Profile& profile, const std::string& path) : profile_(profile), file_(path) {}

  void write() {
    buffer_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    name_process(host, "CPU");
    std::set<std::uint32_t> tracks;
    for (const Span& span : profile_.spans) tracks.insert(track_of(span));
    for (const std::uint32_t track : tracks) {
      const std::uint32_t thread = track / 2;
      const std::string name = thread < profile_.threads.size() ? profile_.threads[thread] : fmt::format("thread {}", thread);
      name_track(host, track, track % 2 ? "communication of " + name : name);
    }
    for (std::uint32_t i = 0; i < profile_.spans.size(); ++i) add(profile_.spans[i]);
    add_collectives();
    add_device();
    for (const MemorySample& sample : profile_.memory)
      event(fmt::format(R"("ph":"C","pid":{},"tid":0,"ts":{},"name":"memory","args":{{"bytes":{}}})", host, us(sample.time), sample.bytes));
    buffer_ += "\n]}\n";
    flush();
    file_.commit();
  }

 private:
  void event(const std::string& fields) {
    buffer_ += is_first_ ? "{" : ",\n{";
    is_first_ = false;
    buffer_ += fields;
    buffer_ += '}';
    if (buffer_.size() > (1u << 20)) flush();
  }
  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }
  void name_process(int process, const std::string& name) {
    event(fmt::format(R"("ph":"M","pid":{},"tid":0,"name":"process_name","args":{{"name":{}}})", process, io::json_text(name)));
  }
  void name_track(int process, std::uint32_t track, const std::string& name) {
    event(fmt::format(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}})", process, track, io::json_text(name)));
  }

  /// The track of a thread, which is followed by that of its communication.
  std::uint32_t track_of(const Span& span) const { return 2 * span.thread + (profile_.names[span.pass] == "communication"); }
  std::string place(std::uint32_t pass, std::uint32_t module) const {
    return fmt::format(R"("pass":{},"module":{})", io::json_text(profile_.names[pass]), io::json_text(profile_.modules[module].path));
  }

  void add(const Span& span) {
    if (span.duration() == 0) return;  // an op without a kernel: a view
    std::string arguments = place(span.pass, span.module);
    if (span.flops > 0) arguments += fmt::format(",\"flops\":{:.0f}", span.flops);
    if (span.bytes > 0) arguments += fmt::format(",\"bytes\":{:.0f}", span.bytes);
    event(fmt::format(R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":{},"args":{{{}}})", host, track_of(span),
                      us(span.begin), us(span.duration()), io::json_text(profile_.name(span)), io::json_text(category(span.kind)),
                      arguments));
  }

  void add_collectives() {
    std::set<std::uint32_t> tracks;
    for (const Collective& each : profile_.collectives) {
      const std::uint32_t track = 1'000'000 + each.thread;
      if (tracks.insert(track).second) name_track(host, track, "collectives of " + profile_.threads[each.thread]);
      event(fmt::format(
          R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"collective","args":{{"bytes":{:.0f},"waited_us":{}}})", host,
          track, us(each.begin), us(each.end - each.begin), io::json_text(profile_.names[each.name]), each.bytes, us(each.waited)));
    }
  }

  void add_device() {
    if (profile_.device_records.empty()) return;
    name_process(device, "GPU");
    std::set<std::uint32_t> tracks;
    std::size_t flow = 0;
    for (const DeviceRecord& record : profile_.device_records) {
      const std::uint32_t track = record.device * 1000 + record.stream;
      if (tracks.insert(track).second) name_track(device, track, fmt::format("GPU {} stream {}", record.device, record.stream));
      std::string arguments = place(record.pass, record.module) + ",\"op\":" + io::json_text(profile_.names[record.op]);
      if (record.bytes > 0) arguments += fmt::format(",\"bytes\":{:.0f}", record.bytes);
      const char* const kind = record.kind == DeviceRecord::Kind::kernel ? "kernel"
                               : record.kind == DeviceRecord::Kind::copy ? "copy"
                                                                         : "fill";
      event(fmt::format(R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}})", device, track,
                        us(record.begin), us(record.end - record.begin), io::json_text(record.name), kind, arguments));
      if (record.span == none) continue;
      const Span& launch = profile_.spans[record.span];
      ++flow;
      event(fmt::format(R"("ph":"s","pid":{},"tid":{},"ts":{},"id":{},"name":"launch","cat":"launch")", host, track_of(launch),
                        us(launch.begin), flow));
      event(fmt::format(R"("ph":"f","bp":"e","pid":{},"tid":{},"ts":{},"id":{},"name":"launch","cat":"launch")", device, track,
                        us(record.begin), flow));
    }
  }

  const Profile& profile_;
  io::AtomicFile file_;
  std::string buffer_;
  bool is_first_ = true;
};

}  // namespace

void write_chrome_trace(const Profile& profile, const std::string& path) { Trace(profile, path).write(); }

namespace detail {

std::string readable_kernel_name(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0 || !demangled) return name;
  std::string function = demangled.get();
  const std::string anonymous = "(anonymous namespace)::";
  for (std::size_t at = function.find(anonymous); at != std::string::npos; at = function.find(anonymous))
    function.erase(at, anonymous.size());
  function.resize(std::min(function.find('('), function.size()));
  function.resize(std::min(function.find('<'), function.size()));
  if (const std::size_t space = function.rfind(' '); space != std::string::npos) function.erase(0, space + 1);
  std::smatch file;
  // nvcc writes _GLOBAL__N__<hash>_<length>_<file>_cu_<hash>.
  static const std::regex pattern("_GLOBAL__N__[0-9a-f]+_[0-9]+_([A-Za-z0-9_]+?)_cu_");
  if (!std::regex_search(name, file, pattern)) return function;
  if (const std::size_t colons = function.rfind("::"); colons != std::string::npos) function.erase(0, colons + 2);
  return file[1].str() + ".cu: " + function;
}

bool is_product_kernel(const std::string& name) {
  for (const char* part : {"nvjet", "gemm", "splitK", "tf32", "cutlass"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

}  // namespace detail

}  // namespace tern::profile
