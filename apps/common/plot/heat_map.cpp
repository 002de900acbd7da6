#include "common/plot/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/plot/svg.h"
#include "tensor/ceil_div.h"

namespace tern::apps {

namespace {

constexpr std::int64_t max_cells = 120;  // on a side: more are not visible, and enlarge the file
constexpr float hidden = -std::numeric_limits<float>::infinity();

/// Reduces a matrix to at most max_cells a side, by means of squares. A square of hidden cells is hidden.
HeatMap shrunk(const HeatMap& map) {
  const std::int64_t piece = ceil_div(std::max(map.rows, map.columns), max_cells);
  if (piece <= 1) return map;
  HeatMap small{map.title, ceil_div(map.rows, piece), ceil_div(map.columns, piece), {}};
  for (std::int64_t row = 0; row < small.rows; ++row)
    for (std::int64_t column = 0; column < small.columns; ++column) {
      double sum = 0;
      std::int64_t count = 0;
      for (std::int64_t i = row * piece; i < std::min((row + 1) * piece, map.rows); ++i)
        for (std::int64_t j = column * piece; j < std::min((column + 1) * piece, map.columns); ++j) {
          const float value = map.values[static_cast<std::size_t>(i * map.columns + j)];
          if (value == hidden) continue;
          sum += value;
          ++count;
        }
      small.values.push_back(count ? static_cast<float>(sum / static_cast<double>(count)) : hidden);
    }
  return small;
}

/// The range of the values and 0.
std::pair<float, float> range(const HeatMap& map) {
  float least = 0, greatest = 0;
  for (float value : map.values) {
    if (value == hidden) continue;
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  return {least, greatest};
}

/// The colour of a value: eight shades of blue for positive and of red for negative ones; "" for about 0, the background.
std::string shade(float value, float largest) {
  if (value == hidden || largest == 0) return "";
  const int level = static_cast<int>(std::lround(8 * std::sqrt(std::abs(value) / largest)));
  if (level == 0) return "";
  const int faint = 235 - level * 23, strong = level < 8 ? 246 : 216;
  return value > 0 ? fmt::format("#{:02x}{:02x}{:02x}", faint, faint + 10, strong)
                   : fmt::format("#{:02x}{:02x}{:02x}", strong, faint + 10, faint);
}

/// Draws the cells. Adjacent cells of a row with one colour are one rectangle, and cells about 0, the majority, are none.
std::string cells(const HeatMap& map, float largest) {
  std::string result;
  for (std::int64_t row = 0; row < map.rows; ++row)
    for (std::int64_t column = 0; column < map.columns;) {
      const auto at = [&](std::int64_t j) { return shade(map.values[static_cast<std::size_t>(row * map.columns + j)], largest); };
      const std::string colour = at(column);
      std::int64_t end = column + 1;
      while (end < map.columns && at(end) == colour) ++end;
      if (!colour.empty())
        result += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"1\" fill=\"{}\"/>", column, row, end - column, colour);
      column = end;
    }
  return result;
}

constexpr double room = 12;             // width that a name needs
constexpr std::int64_t max_named = 64;  // names of a side up to which a map grows to fit them

/// The length of a map's longest side on the page.
double side_of(const HeatMap& map) {
  constexpr double side = 300;
  const std::int64_t longest = std::max(map.rows, map.columns);
  const bool has_names = !map.row_names.empty() || !map.column_names.empty();
  return has_names && longest <= max_named ? std::max(side, room * static_cast<double>(longest)) : side;
}

/// The space for the longest name, of about six units a letter; 0 for names of up to three letters.
double reach(const std::vector<std::string>& names) {
  std::size_t longest = 0;
  for (const std::string& name : names) longest = std::max(longest, name.size());
  return longest > 3 ? 6 * static_cast<double>(longest) : 0;
}

/// Draws the names of rows and columns if the cells have room, and lines between blocks of columns with the blocks' names.
std::string labels(const HeatMap& map, double left, double top, double cell) {
  const double bottom = top + cell * static_cast<double>(map.rows), middle = cell / 2 + 4;
  std::string result;
  const auto write = [&](double x, double y, const std::string& name, const char* anchor) {
    result += svg::text(x, y, name, anchor, " font-size=\"10\"");
  };
  if (cell >= room) {
    for (std::size_t i = 0; i < map.row_names.size(); ++i)
      write(left - 5, top + cell * static_cast<double>(i) + middle, map.row_names[i], "end");
    const bool is_slanted = reach(map.column_names) > 0;
    for (std::size_t i = 0; i < map.column_names.size(); ++i) {
      const double x = left + cell * (static_cast<double>(i) + 0.5), y = bottom + 14;
      if (is_slanted)
        result += svg::text(x, y, map.column_names[i], "end", fmt::format(" font-size=\"10\" transform=\"rotate(-50 {:g} {:g})\"", x, y));
      else write(x, y, map.column_names[i], "middle");
    }
  }
  double named = left - room;  // where the last block's name is: one beside it keeps a distance, however narrow the blocks
  for (std::size_t i = 0; i < map.blocks.size(); ++i) {
    const std::int64_t first = map.blocks[i].first, end = i + 1 < map.blocks.size() ? map.blocks[i + 1].first : map.columns;
    if (first > 0)
      result +=
          fmt::format("<path d=\"M{:g} {:g}V{:g}\" stroke=\"{}\"/>\n", left + cell * static_cast<double>(first), top, bottom, svg::grey);
    named = std::max(left + cell * static_cast<double>(first + end) / 2, named + room);
    write(named, bottom + 14, map.blocks[i].name, "middle");
  }
  return result;
}

}  // namespace

std::string to_svg(const std::string& title, const std::vector<HeatMap>& maps) {
  constexpr double gap = 36, top = 84, below = 18;
  std::string body = svg::text(gap, 26, title, "start", " font-size=\"15\"");
  double left = gap, lowest = top;
  for (const HeatMap& whole : maps) {
    const auto [least, greatest] = range(whole);
    const HeatMap map = shrunk(whole);
    const auto [low, high] = range(map);
    const auto longest = [](const HeatMap& of) { return static_cast<double>(std::max(of.rows, of.columns)); };
    const double side = side_of(whole), cell = side / longest(map), whole_cell = side / longest(whole);
    const double width = cell * static_cast<double>(map.columns), height = cell * static_cast<double>(map.rows);
    const bool is_named = whole_cell >= room;
    if (is_named) left += reach(whole.row_names);
    body += svg::text(left, top - 26, whole.title, "start", " font-size=\"13\"");
    body += svg::text(left, top - 10, fmt::format("{} x {}, from {:.3g} to {:.3g}", whole.rows, whole.columns, least, greatest), "start",
                      " font-size=\"11\"");
    body += fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" fill=\"#ffffff\" stroke=\"{}\"/>\n", left, top, width,
                        height, svg::grey);
    body += fmt::format("<g transform=\"translate({:g} {:g}) scale({:g})\" shape-rendering=\"crispEdges\">{}</g>\n", left, top, cell,
                        cells(map, std::max(-low, high)));
    body += labels(whole, left, top, whole_cell);
    left += std::max(width, 170.0) + gap;
    lowest = std::max(lowest, top + height + below + (is_named ? reach(whole.column_names) : 0));
  }
  const double title_width = 8 * static_cast<double>(title.size());  // of letters of that size, or more
  return svg::document(std::max(left, gap + title_width + gap), lowest + gap, title, body);
}

}  // namespace tern::apps
