#include "common/memory_picture.h"

#include <algorithm>
#include <vector>

#include "common/chart.h"
#include "common/svg.h"

namespace tern::apps {

namespace {

using profile::MemoryByCategory;
using profile::MemoryHistory;
using profile::MemoryPass;

constexpr double left = 64, right = 776, top = 62, bottom = 330, width = 800, height = 410;
constexpr std::size_t columns = 712;
constexpr std::size_t passes = 4;

/// A column of the picture.
struct Column {
  MemoryByCategory highest;
  std::size_t total = 0;
  std::array<std::size_t, passes> asked{};  ///< allocations in each pass
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
    const profile::MemoryHistoryEvent& told = history.events()[event];
    if (told.action == backend::MemoryAction::alloc && told.block != profile::MemoryBlock::never)
      ++column.asked[static_cast<std::size_t>(history.blocks()[told.block].pass)];
    before = now;
  });
  fill(columns);
  return result;
}

/// 1, or how many bytes a unit of the axis has.
struct Unit {
  double bytes;
  const char* name;
};
Unit unit_of(std::size_t bytes) {
  if (bytes >= std::size_t{2} << 30) return {0x1p30, "GiB"};
  if (bytes >= std::size_t{2} << 20) return {0x1p20, "MiB"};
  return {0x1p10, "KiB"};
}

std::string draw_areas(const std::vector<Column>& shown, double high) {
  std::string body;
  const double step = (right - left) / static_cast<double>(columns);
  const auto y_of = [&](double bytes) { return bottom - bytes / high * (bottom - top); };
  std::vector<double> floor(columns, 0);
  for (std::size_t category = 0; category < profile::memory_categories; ++category) {
    std::string upper, lower;
    bool is_empty = true;
    for (std::size_t i = 0; i < columns; ++i) {
      const double x = left + static_cast<double>(i) * step;
      const auto bytes = static_cast<double>(shown[i].highest.bytes[category]);
      is_empty = is_empty && bytes == 0;
      upper += fmt::format("{}{:.1f} {:.1f}H{:.1f}", i == 0 ? "M" : "L", x, y_of(floor[i] + bytes), x + step);
      lower = fmt::format("L{:.1f} {:.1f}H{:.1f}", x + step, y_of(floor[i]), x) + lower;
      floor[i] += bytes;
    }
    if (!is_empty) body += fmt::format("<path d=\"{}{}Z\" fill=\"{}\" fill-opacity=\"0.85\"/>\n", upper, lower, svg::colours[category]);
  }
  return body;
}

/// The names of the categories that the picture has.
std::string draw_legend(const std::vector<Column>& shown) {
  std::string body;
  double x = left;
  for (std::size_t category = 0; category < profile::memory_categories; ++category) {
    if (std::none_of(shown.begin(), shown.end(), [&](const Column& column) { return column.highest.bytes[category] > 0; })) continue;
    const std::string name = profile::name(static_cast<profile::MemoryCategory>(category));
    body += fmt::format("<rect x=\"{:g}\" y=\"38\" width=\"11\" height=\"11\" fill=\"{}\"/>\n", x, svg::colours[category]);
    body += svg::text(x + 17, 48, name, "start");
    x += 40 + 7 * static_cast<double>(name.size());
  }
  return body;
}

/// A band below the areas: which pass asked for most blocks in a column.
std::string draw_passes(const std::vector<Column>& shown) {
  std::string body;
  const double step = (right - left) / static_cast<double>(columns);
  std::vector<std::size_t> pass_of(columns, 0);
  std::size_t last = 0;
  for (std::size_t i = 0; i < columns; ++i) {
    const auto& asked = shown[i].asked;
    if (const auto most = std::max_element(asked.begin(), asked.end()); *most > 0) last = static_cast<std::size_t>(most - asked.begin());
    pass_of[i] = last;
  }
  for (std::size_t begin = 0, end = 0; begin < columns; begin = end) {
    while (end < columns && pass_of[end] == pass_of[begin]) ++end;
    const std::string name = profile::name(static_cast<MemoryPass>(pass_of[begin]));
    if (name.empty()) continue;
    const double x = left + static_cast<double>(begin) * step, w = static_cast<double>(end - begin) * step;
    body += fmt::format("<rect x=\"{:.1f}\" y=\"{:g}\" width=\"{:.1f}\" height=\"16\" fill=\"{}\" fill-opacity=\"0.45\"/>\n", x, bottom + 6,
                        w, svg::colours[6 + (pass_of[begin] + 2) % 3]);
    if (w > 7 * static_cast<double>(name.size())) body += svg::text(x + w / 2, bottom + 18, name);
  }
  return body;
}

}  // namespace

std::string to_svg(const MemoryHistory& history, const std::string& title) {
  const double length = history.events().empty() ? 1 : std::max<double>(1, static_cast<double>(history.events().back().time_us));
  const std::vector<Column> shown = columns_of(history, length);
  const profile::MemoryPeak peak = history.peak();
  const Unit unit = unit_of(peak.bytes);
  const std::vector<double> ticks = nice_ticks(0, std::max(1.0, static_cast<double>(peak.bytes)) / unit.bytes * 1.04, 5);
  const double high = ticks.back() * unit.bytes;
  const auto y_of = [&](double bytes) { return bottom - bytes / high * (bottom - top); };

  std::string body = svg::text(left, 24, title, "start", " font-size=\"15\"");
  body += draw_legend(shown);
  for (const double tick : ticks) {
    const double y = y_of(tick * unit.bytes);
    body += fmt::format("<path d=\"M{:g} {:.1f}H{:g}\" stroke=\"{}\" stroke-opacity=\"{}\"/>\n", left, y, right, svg::grey,
                        tick == 0 ? "1" : "0.25");
    body += svg::text(left - 8, y + 4, fmt::format("{:g}", tick), "end");
  }
  body += draw_areas(shown, high) + draw_passes(shown);
  const double y = y_of(static_cast<double>(peak.bytes));
  body += fmt::format("<path d=\"M{:g} {:.1f}H{:g}\" stroke=\"{}\" stroke-dasharray=\"4 4\"/>\n", left, y, right, svg::grey);
  body += svg::text(right, y - 5, fmt::format("peak {:.2f} {}", static_cast<double>(peak.bytes) / unit.bytes, unit.name), "end");
  for (const double tick : nice_ticks(0, length / 1e3, 6)) {
    const double x = left + tick * 1e3 / length * (right - left);
    if (x > right + 1) continue;
    body += fmt::format("<path d=\"M{:.1f} {:g}v5\" stroke=\"{}\"/>\n", x, bottom, svg::grey);
    body += svg::text(x, bottom + 37, fmt::format("{:g}", tick));
  }
  body += svg::text((left + right) / 2, height - 12, "ms, by the host's clock");
  const double middle = (top + bottom) / 2;
  body += svg::text(18, middle, unit.name, "middle", fmt::format(" transform=\"rotate(-90 18 {:g})\"", middle));
  return svg::document(width, height, title, body);
}

}  // namespace tern::apps
