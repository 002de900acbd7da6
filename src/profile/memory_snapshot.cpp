#include <fmt/format.h>

#include "profile/memory_report.h"

#if __has_include(<dlfcn.h>)
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#endif

#include <algorithm>
#include <map>
#include <string_view>

#include "io/files.h"

namespace tern::profile {

using backend::MemoryAction;

namespace {

/// Writes a pickle with the opcodes that the page's reader supports (protocol 4 without memo: integers, text, None, lists and dicts).
/// Source of the opcodes: Lib/pickletools.py.
class Pickle {
 public:
  Pickle() { bytes_ = std::string("\x80\x04", 2); }
  std::string finish() { return std::move(bytes_ += '.'); }

  void integer(std::uint64_t value) {
    if (value < 0x100) bytes_ += 'K', number(value, 1);
    else if (value < 0x10000) bytes_ += 'M', number(value, 2);
    else if (value < 0x80000000) bytes_ += 'J', number(value, 4);
    else bytes_ += '\x8a', bytes_ += '\x08', number(value, 8);  // addresses lie below 2^63
  }
  void text(std::string_view value) {
    bytes_ += 'X';
    number(value.size(), 4);
    bytes_ += value;
  }

  /// Writes a list; f(i) writes an element. In batches: the page passes each batch as the arguments of one call, whose number is limited.
  template <class F>
  void list(std::size_t count, const F& f) {
    bytes_ += ']';
    for (std::size_t i = 0; i < count;) {
      bytes_ += '(';
      for (const std::size_t end = std::min(count, i + 1000); i < end; ++i) f(i);
      bytes_ += 'e';
    }
  }
  /// Writes a dict: f(set) calls set(key, value), or set(key) and then writes the value.
  void begin_dict() { bytes_ += "}("; }
  void set(std::string_view key, std::uint64_t value) { text(key), integer(value); }
  void set(std::string_view key, std::string_view value) { text(key), text(value); }
  void end_dict() { bytes_ += 'u'; }

 private:
  void number(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }
  std::string bytes_;
};

std::uint64_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

/// A part of a segment at the end of the history.
struct Part {
  std::uint64_t address = 0, size = 0;
  const MemoryBlock* block = nullptr;  ///< null for free memory
};

struct Segment {
  std::uint64_t size = 0;
  const void* stream = nullptr;
  std::vector<Part> parts;
};

/// The segments at the end of the history: those that the allocator reported, and one for each other live block.
std::map<std::uint64_t, Segment> segments_of(const MemoryHistory& history) {
  std::map<std::uint64_t, Segment> segments;
  for (const MemoryHistoryEvent& event : history.events()) {
    if (event.action == MemoryAction::segment_alloc) segments[number_of(event.address)] = {event.bytes, event.stream, {}};
    if (event.action == MemoryAction::segment_free) segments.erase(number_of(event.address));
  }
  std::map<std::uint64_t, const MemoryBlock*> live;
  for (const MemoryBlock& block : history.blocks())
    if (block.end == MemoryBlock::never && block.bytes > 0) live[number_of(block.address)] = &block;
  for (const auto& [address, block] : live) {
    auto segment = segments.upper_bound(address);
    const bool is_inside = segment != segments.begin() && (--segment, address + block->bytes <= segment->first + segment->second.size);
    if (!is_inside) segment = segments.insert_or_assign(address, Segment{block->bytes, block->stream, {}}).first;
    segment->second.parts.push_back({address, block->bytes, block});
  }
  for (auto& [address, segment] : segments) {
    std::vector<Part> parts;
    std::uint64_t next = address;
    for (const Part& part : segment.parts) {
      if (part.address > next) parts.push_back({next, part.address - next, nullptr});
      parts.push_back(part);
      next = part.address + part.size;
    }
    if (next < address + segment.size) parts.push_back({next, address + segment.size - next, nullptr});
    segment.parts = std::move(parts);
  }
  return segments;
}

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const MemoryHistory& history) : history_(history) {}

  std::string write() {
    const bool is_cpu = history_.device().type == DeviceType::cpu;
    const auto device = static_cast<std::size_t>(is_cpu ? 0 : history_.device().index);
    out_.begin_dict();
    write_segments(device);
    out_.text("device_traces");
    out_.list(device + 1, [&](std::size_t i) { write_trace(i == device); });
    out_.text("allocator_settings");
    out_.begin_dict();
    out_.set("device", to_string(history_.device()));
    out_.end_dict();
    out_.end_dict();
    return out_.finish();
  }

 private:
  void frame(std::string_view name, std::string_view file) {
    out_.begin_dict();
    out_.set("name", name);
    out_.set("filename", file);
    out_.set("line", std::uint64_t{0});
    out_.end_dict();
  }

  void write_frames(const MemoryBlock* block) {
    out_.text("frames");
    std::vector<std::pair<std::string, std::string>> frames;
    if (block) {
      for (const std::string& line : lines_of(block->stack)) frames.emplace_back(line, "c++");
      const std::string pass = name(block->pass);
      if (block->op) frames.emplace_back(*block->op + (pass.empty() ? "" : " " + pass), "op");
      if (block->tensor) frames.emplace_back(*block->tensor, "tensor");
      if (block->module) frames.emplace_back(*block->module, "module");
      frames.emplace_back(name(block->category), "category");
    }
    out_.list(frames.size(), [&](std::size_t i) { frame(frames[i].first, frames[i].second); });
  }

  /// Caches the symbol of each address.
  std::vector<std::string> lines_of(const std::vector<void*>& stack) {
    std::vector<std::string> lines;
    for (void* const address : stack) {
      auto [place, is_new] = symbols_.try_emplace(address);
      if (is_new) place->second = stack_lines({address}).front();
      lines.push_back(place->second);
    }
    return lines;
  }

  void write_segments(std::size_t device) {
    const auto segments = segments_of(history_);
    auto segment = segments.begin();
    out_.text("segments");
    out_.list(segments.size(), [&](std::size_t) {
      const auto& [address, s] = *segment++;
      std::uint64_t active = 0, requested = 0;
      for (const Part& part : s.parts)
        if (part.block) active += part.size, requested += part.block->requested;
      out_.begin_dict();
      out_.set("device", device);
      out_.set("address", address);
      out_.set("total_size", s.size);
      out_.set("allocated_size", active);
      out_.set("active_size", active);
      out_.set("requested_size", requested);
      out_.set("stream", number_of(s.stream));
      out_.set("segment_type", "large");
      write_frames(nullptr);
      out_.text("blocks");
      out_.list(s.parts.size(), [&](std::size_t i) {
        const Part& part = s.parts[i];
        out_.begin_dict();
        out_.set("address", part.address);
        out_.set("size", part.size);
        out_.set("requested_size", part.block ? part.block->requested : 0);
        out_.set("state", part.block ? "active_allocated" : "inactive");
        write_frames(part.block);
        out_.end_dict();
      });
      out_.end_dict();
    });
  }

  /// One event gets the category "unknown": the page adds it if there are other categories, and fails if no event has it (a misspelt name
  /// in MemoryViz.js).
  void write_begin() {
    out_.begin_dict();
    out_.set("action", "snapshot");
    out_.set("addr", std::uint64_t{0});
    out_.set("size", std::uint64_t{0});
    out_.set("stream", std::uint64_t{0});
    out_.set("time_us", std::uint64_t{0});
    out_.set("category", "unknown");
    write_frames(nullptr);
    out_.end_dict();
  }

  void write_event(const MemoryHistoryEvent& event, std::string_view action) {
    const MemoryBlock* const block = event.block == MemoryBlock::never ? nullptr : &history_.blocks()[event.block];
    const bool is_alloc = event.action == MemoryAction::alloc;
    out_.begin_dict();
    out_.set("action", action);
    if (event.action == MemoryAction::out_of_memory) out_.set("device_free", event.available);
    else out_.set("addr", number_of(event.address));
    out_.set("size", event.bytes);
    out_.set("stream", number_of(event.stream));
    out_.set("time_us", static_cast<std::uint64_t>(event.time_us));
    if (is_alloc) out_.set("category", name(block->category));
    write_frames(is_alloc ? block : nullptr);
    out_.end_dict();
  }

  /// A free is two events in the format, requested and completed; here the second follows at once.
  void write_trace(bool is_own) {
    std::vector<std::pair<const MemoryHistoryEvent*, const char*>> entries;
    if (is_own)
      for (const MemoryHistoryEvent& event : history_.events()) {
        switch (event.action) {
          case MemoryAction::alloc: entries.emplace_back(&event, "alloc"); break;
          case MemoryAction::free:
            entries.emplace_back(&event, "free_requested");
            entries.emplace_back(&event, "free_completed");
            break;
          case MemoryAction::segment_alloc: entries.emplace_back(&event, "segment_alloc"); break;
          case MemoryAction::segment_free: entries.emplace_back(&event, "segment_free"); break;
          case MemoryAction::out_of_memory: entries.emplace_back(&event, "oom"); break;
        }
      }
    const std::size_t begin = is_own ? 1 : 0;
    out_.list(begin + entries.size(), [&](std::size_t i) {
      if (i < begin) write_begin();
      else write_event(*entries[i - begin].first, entries[i - begin].second);
    });
  }

  const MemoryHistory& history_;
  Pickle out_;
  std::map<void*, std::string> symbols_;
};

}  // namespace

std::vector<std::string> stack_lines(const std::vector<void*>& stack) {
  std::vector<std::string> lines;
  for (void* const address : stack) {
    std::string line = fmt::format("{}", fmt::ptr(address));
#if __has_include(<dlfcn.h>)
    if (Dl_info info; ::dladdr(address, &info) && info.dli_fname) {
      const std::string_view file = info.dli_fname;
      const auto offset = number_of(address) - number_of(info.dli_fbase);
      line = fmt::format("{}+{:#x}", file.substr(file.find_last_of('/') + 1), offset);
      if (info.dli_sname) {
        int status = 0;
        char* const plain = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
        line = fmt::format("{} at {}", plain ? plain : info.dli_sname, line);
        std::free(plain);
      }
    }
#endif
    lines.push_back(line);
  }
  return lines;
}

std::string memory_snapshot(const MemoryHistory& history) { return SnapshotWriter(history).write(); }

void write_snapshot(const MemoryHistory& history, const std::string& path) { io::write_file_atomically(path, memory_snapshot(history)); }

}  // namespace tern::profile
