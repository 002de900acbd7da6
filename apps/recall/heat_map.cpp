#include <algorithm>
#include <cmath>
#include <limits>

#include "recall/plot.h"
#include "recall/svg.h"

namespace tern::recall {

namespace {

constexpr std::int64_t most_cells = 120;  // a side: more cannot be told apart, and make the file large
constexpr float hidden = -std::numeric_limits<float>::infinity();

/// Means of blocks, few enough to draw; a block of which all is hidden is hidden.
HeatMap shrunk(const HeatMap& map) {
  const std::int64_t block = (std::max(map.rows, map.columns) + most_cells - 1) / most_cells;
  if (block <= 1) return map;
  HeatMap small{map.title, (map.rows + block - 1) / block, (map.columns + block - 1) / block, {}};
  for (std::int64_t row = 0; row < small.rows; ++row)
    for (std::int64_t column = 0; column < small.columns; ++column) {
      double sum = 0;
      std::int64_t count = 0;
      for (std::int64_t i = row * block; i < std::min((row + 1) * block, map.rows); ++i)
        for (std::int64_t j = column * block; j < std::min((column + 1) * block, map.columns); ++j) {
          const float value = map.values[static_cast<std::size_t>(i * map.columns + j)];
          if (value == hidden) continue;
          sum += value;
          ++count;
        }
      small.values.push_back(count ? static_cast<float>(sum / static_cast<double>(count)) : hidden);
    }
  return small;
}

/// The least and the greatest value, and 0.
std::pair<float, float> range(const HeatMap& map) {
  float least = 0, greatest = 0;
  for (float value : map.values) {
    if (value == hidden) continue;
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  return {least, greatest};
}

/// Eight shades of blue for positive and of red for negative values; "" for about 0, which is the ground's colour.
std::string shade(float value, float largest) {
  if (value == hidden || largest == 0) return "";
  const int level = static_cast<int>(std::lround(8 * std::abs(value) / largest));
  if (level == 0) return "";
  const int faint = 235 - level * 23, strong = level < 8 ? 246 : 216;
  return value > 0 ? fmt::format("#{:02x}{:02x}{:02x}", faint, faint + 10, strong)
                   : fmt::format("#{:02x}{:02x}{:02x}", strong, faint + 10, faint);
}

/// Cells of one shade in a row are one rectangle, and what is about 0 is none: most of these matrices is.
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

}  // namespace

std::string to_svg(const std::string& title, const std::vector<HeatMap>& maps) {
  constexpr double side = 300, gap = 28, top = 84;
  std::string body = svg::text(gap, 26, title, "start", " font-size=\"15\"");
  double left = gap, lowest = top;
  for (const HeatMap& whole : maps) {
    const auto [least, greatest] = range(whole);
    const HeatMap map = shrunk(whole);
    const auto [low, high] = range(map);
    const double cell = side / static_cast<double>(std::max(map.rows, map.columns));
    const double width = cell * static_cast<double>(map.columns), height = cell * static_cast<double>(map.rows);
    body += svg::text(left, top - 26, whole.title, "start", " font-size=\"13\"");
    body += svg::text(left, top - 10, fmt::format("{} x {}, from {:.3g} to {:.3g}", whole.rows, whole.columns, least, greatest),
                      "start", " font-size=\"11\"");
    body += fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" fill=\"#ffffff\" stroke=\"{}\"/>\n", left, top,
                        width, height, svg::grey);
    body += fmt::format("<g transform=\"translate({:g} {:g}) scale({:g})\" shape-rendering=\"crispEdges\">{}</g>\n", left, top, cell,
                        cells(map, std::max(-low, high)));
    left += std::max(width, 170.0) + gap;
    lowest = std::max(lowest, top + height);
  }
  return svg::document(left, lowest + gap, title, body);
}

}  // namespace tern::recall
