#include "common/plot/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "common/plot/svg.h"

namespace tern::apps {

namespace {

/// The range of values.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) { low = std::min(low, value), high = std::max(high, value); }
};

bool is_shown(const Chart& chart, const Point& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (!chart.is_log || (point.x > 0 && point.y > 0));
}

Range range_of(const Chart& chart, double Point::* coordinate, bool is_right) {
  Range range;
  for (const Series& series : chart.series)
    for (const Point& point : series.points)
      if (series.is_right == is_right && is_shown(chart, point)) range.add(point.*coordinate);
  return range;
}

Scale log_scale_of(const Range& range) { return range.low <= range.high ? log_scale(range.low, range.high) : log_scale(1, 1); }

/// The upper edges of a stacked chart's areas, from 0.
std::vector<double> sums(const Chart& chart) {
  std::vector<double> result;
  for (const Series& series : chart.series)
    for (std::size_t i = 0; i < series.points.size(); ++i) {
      if (i == result.size()) result.push_back(0);
      result[i] += series.points[i].y;
    }
  return result;
}

Scale y_scale(const Chart& chart, bool is_right) {
  Range range = range_of(chart, &Point::y, is_right);
  if (chart.is_log && !is_right) return log_scale_of(range);
  if (chart.is_stacked) {
    range.add(0);
    for (const double sum : sums(chart)) range.add(sum);
  }
  if (chart.level && !is_right) range.add(1.04 * chart.level->y);  // room for its name above it
  const Axis& axis = is_right ? chart.right : chart.left;
  double low = axis.low.value_or(range.low), high = axis.high.value_or(range.high);
  if (!std::isfinite(low)) low = std::isfinite(high) ? std::min(high - 1, 0.0) : 0;
  if (!std::isfinite(high) || high <= low) high = low + std::max(1.0, std::abs(low) / 10);
  return linear_scale(low, high, 5);
}

/// The x axis, from 0 or the first value to the last one.
Scale x_scale(const Chart& chart, const std::vector<double>& xs) {
  if (chart.is_even) return {.ticks = xs};
  Scale scale;
  if (chart.is_log) {
    Range range;
    for (const double x : xs) range.add(x);
    return log_scale_of(range);
  }
  if (!xs.empty()) {
    scale.low = std::min(xs.front(), 0.0);
    scale.high = xs.back() > scale.low ? xs.back() : scale.low + 1;
  }
  scale.ticks = nice_ticks(scale.low, scale.high, 6);
  std::erase_if(scale.ticks, [&](double tick) { return tick < scale.low || tick > scale.high; });
  return scale;
}

/// A mark of a radius of about 4, smaller if there are many. A disc is larger by a step for each of the discs `above` it.
std::string draw_mark(Mark mark, double x, double y, bool is_small, const std::string& note, int above = 0) {
  const double r = (is_small ? 2.5 : 3.5) + (mark == Mark::disc ? 2.5 * above : 0);
  std::string tag = "path", shape;
  switch (mark) {
    case Mark::none: return "";
    case Mark::disc:
      tag = "circle";
      shape = fmt::format("cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"currentColor\" stroke=\"none\"", x, y, r);
      break;
    case Mark::ring:
      tag = "circle";
      shape = fmt::format("cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\"", x, y, r + 2);
      break;
    case Mark::square: shape = fmt::format("d=\"M{:.1f} {:.1f}h{:g}v{:g}h-{:g}z\"", x - r, y - r, 2 * r, 2 * r, 2 * r); break;
    case Mark::diamond: {
      const double d = 1.4 * r;
      shape = fmt::format("d=\"M{:.1f} {:.1f}l{:g} {:g}l-{:g} {:g}l-{:g} -{:g}z\"", x, y - d, d, d, d, d, d, d);
      break;
    }
  }
  if (note.empty()) return fmt::format("<{} {}/>", tag, shape);
  return fmt::format("<{0} {1}><title>{2}</title></{0}>", tag, shape, svg::escape(note));
}

/// The number of discs of later series that would hide a point of series i. Series with lines do not count: their lines show.
int discs_above(const Chart& chart, std::size_t i, const Point& point) {
  if (chart.is_even || chart.series[i].has_line) return 0;
  int count = 0;
  for (std::size_t later = i + 1; later < chart.series.size(); ++later) {
    const Series& series = chart.series[later];
    if (series.has_line || series.mark != Mark::disc || series.is_right != chart.series[i].is_right) continue;
    count += std::any_of(series.points.begin(), series.points.end(), [&](const Point& other) {
      const auto is_near = [&](double a, double b) { return std::abs(a - b) <= 0.01 * std::abs(a); };
      return is_near(point.x, other.x) && is_near(point.y, other.y);
    });
  }
  return count;
}

/// Draws a line through points on the page, with error bars and marks; `above` are the discs above each.
std::string draw_series(const Series& series, const std::vector<Point>& points, const std::vector<int>& above, const char* colour) {
  // A single point has no line.
  const Mark mark = series.mark == Mark::none && points.size() == 1 ? Mark::disc : series.mark;
  std::string line, marks, body;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Point& point = points[i];
    line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", point.x, point.y);
    marks += draw_mark(mark, point.x, point.y, points.size() > 20, point.note, above[i]);
    if (point.low != point.high)
      marks += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}h8M{3:.1f} {2:.1f}h8\"/>", point.x, point.low, point.high,
                           point.x - 4);
  }
  if (series.has_line)
    body += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"{}/>\n", line, colour,
                        mark == Mark::none ? "1.5" : "2", mark == Mark::none ? "" : " stroke-opacity=\"0.6\"");
  if (!marks.empty()) body += fmt::format("<g color=\"{0}\" stroke=\"{0}\" stroke-width=\"1.5\" fill=\"none\">{1}</g>\n", colour, marks);
  return body;
}

/// Draws the area of a series in a stacked chart.
template <class X, class Y>
std::string draw_area(const Series& series, std::vector<double>& floor, const char* colour, const X& x_of, const Y& y_of) {
  std::string upper, lower;
  bool is_empty = true;
  floor.resize(std::max(floor.size(), series.points.size()), 0);
  for (std::size_t i = 0; i < series.points.size(); ++i) {
    const Point& point = series.points[i];
    const double x = x_of(point.x), end = x_of(series.points[std::min(i + 1, series.points.size() - 1)].x);
    is_empty = is_empty && point.y == 0;
    upper += fmt::format("{}{:.1f} {:.1f}H{:.1f}", i == 0 ? "M" : "L", x, y_of(floor[i] + point.y), end);
    lower = fmt::format("L{:.1f} {:.1f}H{:.1f}", end, y_of(floor[i]), x) + lower;
    floor[i] += point.y;
  }
  return is_empty ? "" : fmt::format("<path d=\"{}{}Z\" fill=\"{}\" fill-opacity=\"0.85\"/>\n", upper, lower, colour);
}

std::string draw_legend_entry(const Chart& chart, const Series& series, const Spot& at, const char* colour) {
  std::string body;
  if (chart.is_stacked)
    body = fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"22\" height=\"11\" fill=\"{}\"/>\n", at.x, at.y - 6, colour);
  else if (series.has_line) body = fmt::format("<path d=\"M{:g} {:g}h22\" stroke=\"{}\" stroke-width=\"3\"/>\n", at.x, at.y, colour);
  else
    body = fmt::format("<g color=\"{0}\" stroke=\"{0}\" stroke-width=\"1.5\" fill=\"none\">{1}</g>\n", colour,
                       draw_mark(series.mark, at.x + 15, at.y, false, ""));
  return body + svg::text(at.x + 28, at.y + 4, series.name, "start");
}

}  // namespace

std::string to_svg(const Chart& chart) {
  const bool has_right = std::any_of(chart.series.begin(), chart.series.end(), [](const Series& series) { return series.is_right; });
  Frame frame{.left = 64, .right = chart.width - (has_right ? 64 : 24), .top = 0, .bottom = 0};
  const auto colour_of = [&](std::size_t i) { return svg::colours[chart.series[i].colour.value_or(i) % std::size(svg::colours)]; };
  const auto is_empty = [&](const Series& series) {
    return chart.is_stacked && std::none_of(series.points.begin(), series.points.end(), [](const Point& point) { return point.y > 0; });
  };
  std::vector<std::string> names;
  for (const Series& series : chart.series) names.push_back(is_empty(series) ? "" : series.name);
  const std::vector<Spot> spots = legend_spots(names, frame.left, frame.right, 46);
  frame.top = (spots.empty() ? 46 : spots.back().y) + 24;
  frame.bottom = frame.top + 258;
  const double strip = chart.spans.empty() ? 0 : 20, height = frame.bottom + 52 + strip;

  std::set<double> values;
  for (const Series& series : chart.series)
    for (const Point& point : series.points)
      if (is_shown(chart, point)) values.insert(point.x);
  const std::vector<double> xs(values.begin(), values.end());
  const Scale x_axis = x_scale(chart, xs), left = y_scale(chart, false), right = y_scale(chart, true);
  const double gap = (frame.right - frame.left) / static_cast<double>(std::max<std::size_t>(xs.size(), 1));
  const auto x_of = [&](double x) {
    if (!chart.is_even) return frame.x(x_axis.place(x));
    return frame.left + gap * (static_cast<double>(std::lower_bound(xs.begin(), xs.end(), x) - xs.begin()) + 0.5);
  };

  std::string body = svg::title(frame.left, 24, chart.width - frame.left - 16, chart.title);
  body += draw_y_axis(frame, left, chart.left, false, 18);
  if (has_right) body += draw_y_axis(frame, right, chart.right, true, chart.width - 14);
  for (const double x : x_axis.ticks) body += draw_x_tick(frame, x_of(x), x, 19 + strip);
  body += svg::text((frame.left + frame.right) / 2, height - 12, chart.x_label);

  std::vector<double> floor;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    const Scale& scale = series.is_right ? right : left;
    const auto y_of = [&](double y) { return frame.y(scale.place(y)); };
    if (!names[i].empty()) body += draw_legend_entry(chart, series, spots[i], colour_of(i));
    if (chart.is_stacked) {
      body += draw_area(series, floor, colour_of(i), x_of, y_of);
      continue;
    }
    // Series are shifted slightly against each other, so that error bars at the same x do not overlap.
    const double shift = chart.is_even ? 7 * (static_cast<double>(i) - static_cast<double>(chart.series.size() - 1) / 2) : 0;
    std::vector<Point> points;
    std::vector<int> above;
    for (const Point& point : series.points)
      if (is_shown(chart, point)) {
        above.push_back(discs_above(chart, i, point));
        const bool has_bar = point.low < point.high;
        points.push_back({x_of(point.x) + shift, y_of(point.y), has_bar ? y_of(point.low) : 0, has_bar ? y_of(point.high) : 0, point.note});
      }
    if (!points.empty()) body += draw_series(series, points, above, colour_of(i));
  }
  for (const Chart::Span& span : chart.spans) {
    const double x = x_of(span.from), width = x_of(span.to) - x;
    body += fmt::format("<rect x=\"{:.1f}\" y=\"{:g}\" width=\"{:.1f}\" height=\"16\" fill=\"{}\" fill-opacity=\"0.45\"/>\n", x,
                        frame.bottom + 6, width, svg::colours[span.colour % std::size(svg::colours)]);
    if (width > 7 * static_cast<double>(span.name.size())) body += svg::text(x + width / 2, frame.bottom + 18, span.name);
  }
  if (chart.level) {
    const double y = frame.y(left.place(chart.level->y));
    body += fmt::format("<path d=\"M{:g} {:.1f}H{:g}\" stroke=\"{}\" stroke-dasharray=\"4 4\"/>\n", frame.left, y, frame.right, svg::grey);
    body += svg::text(frame.right, y - 5, chart.level->name, "end");
  }
  return svg::document(chart.width, height, chart.title, body);
}

}  // namespace tern::apps
