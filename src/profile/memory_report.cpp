#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files.h"
#include "io/markdown.h"
#include "io/svg.h"
#include "profile/memory_history.h"
#if __has_include(<dlfcn.h>)
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#endif

namespace tern::profile {

using backend::MemoryAction;

namespace {

constexpr std::size_t largest_shown = 10, saved_shown = 20;

std::string peaks_table(const std::vector<MemoryReportPart>& parts) {
  std::vector<std::string> columns = {"part", "peak"};
  for (std::size_t i = 0; i < memory_categories; ++i) columns.emplace_back(name(static_cast<MemoryCategory>(i)));
  columns.emplace_back("end");
  io::MarkdownTable table(columns);
  for (const MemoryReportPart& part : parts) {
    std::vector<std::string> cells = {part.title, part.failure};
    if (part.history) {
      const MemoryPeak peak = part.history->peak();
      cells.back() += (part.failure.empty() ? "" : ": ") + bytes_text(peak.bytes);
      for (const std::size_t bytes : peak.categories.bytes) cells.push_back(bytes_text(bytes));
      cells.push_back(bytes_text(part.history->at_end().total()));
    }
    cells.resize(columns.size());
    table.add(cells);
  }
  return table.text();
}

std::string largest_table(const MemoryHistory& history, bool at_peak) {
  io::MarkdownTable table({"bytes", "category", "op", "module or tensor"});
  std::string stacks;
  for (const std::size_t place : history.largest(largest_shown, at_peak)) {
    const MemoryBlock& block = history.blocks()[place];
    const std::string op = block.op ? *block.op : "", pass = name(block.pass);
    const std::string* const where = block.tensor ? block.tensor : block.module;
    table.add({bytes_text(block.bytes), name(block.category), op + (op.empty() || pass.empty() ? "" : ", ") + pass, where ? *where : ""});
    if (block.stack.empty()) continue;
    stacks += fmt::format("\n{} {}:\n```\n", bytes_text(block.bytes), op);
    for (const std::string& line : stack_lines(block.stack)) stacks += line + "\n";
    stacks += "```\n";
  }
  return table.text() + stacks;
}

std::string saved_table(const std::vector<SavedBytes>& saved) {
  io::MarkdownTable table({"bytes", "op", "module"});
  std::size_t sum = 0, rest = 0;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    sum += saved[i].bytes;
    if (i < saved_shown) table.add({bytes_text(saved[i].bytes), saved[i].op, saved[i].module});
    else rest += saved[i].bytes;
  }
  if (rest > 0) table.add({bytes_text(rest), fmt::format("{} others", saved.size() - saved_shown), ""});
  table.add({bytes_text(sum), "in all", ""});
  return table.text();
}

}  // namespace

std::string bytes_text(std::size_t bytes) {
  const auto count = static_cast<double>(bytes);
  if (bytes >= std::size_t{1} << 30) return fmt::format("{:.3f} GiB", count / 0x1p30);
  if (bytes >= std::size_t{1} << 20) return fmt::format("{:.2f} MiB", count / 0x1p20);
  if (bytes >= std::size_t{1} << 10) return fmt::format("{:.1f} KiB", count / 0x1p10);
  return fmt::format("{}", bytes);
}

std::string memory_report(const std::string& title, const std::vector<std::string>& notes, const std::vector<MemoryReportPart>& parts) {
  std::string text = "# " + title + "\n\n";
  for (const std::string& note : notes) text += note + "\n\n";
  text += "Peak bytes by category, which sum to the allocator's own peak:\n\n" + peaks_table(parts);
  for (const MemoryReportPart& part : parts) {
    if (part.history) {
      text += fmt::format("\n## {}: the largest blocks at the peak\n\n", part.title) + largest_table(*part.history, true);
      text += fmt::format("\n## {}: the largest allocations within it\n\n", part.title) + largest_table(*part.history, false);
    }
    if (part.history && !part.history->is_complete()) text += "\nEvents are missing: there was no memory to keep them.\n";
    if (!part.saved.empty()) text += fmt::format("\n## {}: saved for backward\n\n", part.title) + saved_table(part.saved);
  }
  return text;
}

void write_memory_report(const std::string& path, const std::string& title, const std::vector<std::string>& notes,
                         const std::vector<MemoryReportPart>& parts) {
  io::write_file_atomically(path, memory_report(title, notes, parts));
}

namespace {

constexpr std::size_t columns = 712;  // one pixel wide each
constexpr std::size_t passes = 4;

/// A column of the picture.
struct Column {
  MemoryByCategory highest;
  std::size_t total = 0;
  std::array<std::size_t, passes> allocations{};  ///< by pass
};

std::vector<Column> columns_of(const MemoryHistory& history, double length) {
  std::vector<Column> result(columns);
  const auto column_at = [&](std::size_t event) {
    const auto time = static_cast<double>(history.events()[event].time_us);
    return std::min(columns - 1, static_cast<std::size_t>(time / length * static_cast<double>(columns)));
  };
  MemoryByCategory before = history.at_begin();
  std::size_t filled = 0;  // columns up to here know what they begin with
  const auto fill = [&](std::size_t end) {
    for (; filled < end; ++filled)
      if (before.total() >= result[filled].total) result[filled].highest = before, result[filled].total = before.total();
  };
  history.walk([&](std::size_t event, const MemoryByCategory& now) {
    const std::size_t place = column_at(event);
    fill(place + 1);
    Column& column = result[place];
    if (now.total() > column.total) column.highest = now, column.total = now.total();
    const MemoryHistoryEvent& told = history.events()[event];
    if (told.action == backend::MemoryAction::alloc && told.block != MemoryBlock::never)
      ++column.allocations[static_cast<std::size_t>(history.blocks()[told.block].pass)];
    before = now;
  });
  fill(columns);
  return result;
}

/// The bytes of the axis's unit.
struct Unit {
  double bytes;
  const char* name;
};
Unit unit_of(std::size_t bytes) {
  if (bytes >= std::size_t{2} << 30) return {0x1p30, "GiB"};
  if (bytes >= std::size_t{2} << 20) return {0x1p20, "MiB"};
  return {0x1p10, "KiB"};
}

/// The band of passes: the pass with the most allocations of each column.
std::vector<io::svg::Chart::Span> spans_of(const std::vector<Column>& shown, double column_ms) {
  std::vector<io::svg::Chart::Span> spans;
  std::size_t pass = 0;
  for (std::size_t i = 0; i < columns; ++i) {
    const auto& allocations = shown[i].allocations;
    if (const auto most = std::max_element(allocations.begin(), allocations.end()); *most > 0)
      pass = static_cast<std::size_t>(most - allocations.begin());
    const std::string name = profile::name(static_cast<MemoryPass>(pass));
    const double from = static_cast<double>(i) * column_ms, to = from + column_ms;
    if (!spans.empty() && spans.back().name == name) spans.back().to = to;
    else spans.push_back({name, from, to, 6 + (pass + 2) % 3});
  }
  std::erase_if(spans, [](const io::svg::Chart::Span& span) { return span.name.empty(); });
  return spans;
}

}  // namespace

std::string to_svg(const MemoryHistory& history, const std::string& title) {
  const double length = history.events().empty() ? 1 : std::max<double>(1, static_cast<double>(history.events().back().time_us));
  const std::vector<Column> shown = columns_of(history, length);
  const MemoryPeak peak = history.peak();
  const Unit unit = unit_of(peak.bytes);
  const double column_ms = length / 1e3 / static_cast<double>(columns), highest = static_cast<double>(peak.bytes) / unit.bytes;
  io::svg::Chart chart{.title = title,
                       .x_label = "ms, by the host's clock",
                       .left = {.label = unit.name},
                       .is_stacked = true,
                       .width = 800,
                       .spans = spans_of(shown, column_ms),
                       .level = io::svg::Chart::Level{highest, fmt::format("peak {:.2f} {}", highest, unit.name)}};
  for (std::size_t category = 0; category < memory_categories; ++category) {
    io::svg::Series series{.name = profile::name(static_cast<MemoryCategory>(category))};
    for (std::size_t i = 0; i <= columns; ++i) {  // one more column closes the area
      const auto bytes = static_cast<double>(shown[std::min(i, columns - 1)].highest.bytes[category]);
      series.points.push_back({static_cast<double>(i) * column_ms, bytes / unit.bytes});
    }
    chart.series.push_back(std::move(series));
  }
  return io::svg::to_svg(chart);
}

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
