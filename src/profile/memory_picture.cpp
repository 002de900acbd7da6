#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "io/svg.h"
#include "profile/memory_report.h"

namespace tern::profile {

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

}  // namespace tern::profile
