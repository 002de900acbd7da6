#include "profile/trace.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <string_view>

#include "io/files.h"
#include "io/json_object.h"

namespace tern::profile {

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

}  // namespace tern::profile
