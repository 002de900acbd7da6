#include "common/chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "common/svg.h"

namespace tern::apps {

namespace {

constexpr double width = 640;

/// The edges of the area that lines are drawn in.
struct Frame {
  double left, right, top, bottom;
};

/// An axis: its ends and the numbers that are written on it.
struct Scale {
  double low = 0, high = 1;
  std::vector<double> ticks;
  bool is_log = false;
  /// 0 at the low end, 1 at the high one.
  double place(double value) const { return is_log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low); }
};

/// Powers of ten, so that all the values lie between two of them.
Scale log_scale(const Chart& chart, double Point::* coordinate) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Series& series : chart.series)
    for (const Point& point : series.points)
      if (const double value = point.*coordinate; value > 0 && std::isfinite(value))
        low = std::min(low, value), high = std::max(high, value);
  if (!(low <= high)) low = high = 1;
  Scale scale{.is_log = true};
  const int last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
  for (int power = std::min(static_cast<int>(std::floor(std::log10(low) + 1e-9)), last - 1); power <= last; ++power)
    scale.ticks.push_back(std::pow(10, power));
  scale.low = scale.ticks.front();
  scale.high = scale.ticks.back();
  return scale;
}

bool is_shown(const Chart& chart, const Point& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (!chart.is_log || (point.x > 0 && point.y > 0));
}

Scale y_scale(const Chart& chart, bool is_right) {
  if (chart.is_log && !is_right) return log_scale(chart, &Point::y);
  const Axis& axis = is_right ? chart.right : chart.left;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Series& series : chart.series)
    for (const Point& point : series.points) {
      if (series.is_right != is_right || !is_shown(chart, point)) continue;
      low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
  low = axis.low.value_or(low);
  high = axis.high.value_or(high);
  if (!std::isfinite(low)) low = std::isfinite(high) ? std::min(high - 1, 0.0) : 0;
  if (!std::isfinite(high) || high <= low) high = low + std::max(1.0, std::abs(low) / 10);
  Scale scale{.ticks = nice_ticks(low, high, 5)};
  scale.low = scale.ticks.front();
  scale.high = scale.ticks.back();
  return scale;
}

/// From 0 or the first value to the last one.
Scale x_scale(const Chart& chart, const std::vector<double>& xs) {
  if (chart.is_even) return {.ticks = xs};
  if (chart.is_log) return log_scale(chart, &Point::x);
  Scale scale;
  if (!xs.empty()) {
    scale.low = std::min(xs.front(), 0.0);
    scale.high = std::max(xs.back(), scale.low + 1);
  }
  scale.ticks = nice_ticks(scale.low, scale.high, 6);
  std::erase_if(scale.ticks, [&](double tick) { return tick < scale.low || tick > scale.high; });
  return scale;
}

/// "0.25", "12.5k", "40%".
std::string tick_text(double value, bool is_percent = false) {
  if (is_percent) return fmt::format("{:g}%", 100 * value);
  if (std::abs(value) >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (std::abs(value) >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

/// The position of a series' name.
struct Spot {
  double x = 0, y = 0;
};

/// Names side by side, in as many rows as they need between left and right.
std::vector<Spot> legend(const Chart& chart, double left, double right, double top) {
  std::vector<Spot> result;
  Spot next{left, top};
  for (const Series& series : chart.series) {
    const double room = 48 + 6.4 * static_cast<double>(series.name.size());
    if (next.x > left && next.x + room > right) next = {left, next.y + 20};
    result.push_back(next);
    next.x += room;
  }
  return result;
}

std::string draw_y_axis(const Frame& frame, const Scale& scale, const Axis& axis, bool is_right) {
  std::string body;
  for (const double tick : scale.ticks) {
    const double y = frame.bottom - scale.place(tick) * (frame.bottom - frame.top);
    if (is_right) body += fmt::format("<path d=\"M{:g} {:.1f}h5\" stroke=\"{}\"/>\n", frame.right, y, svg::grey);
    else
      body += fmt::format("<path d=\"M{:g} {:.1f}H{:g}\" stroke=\"{}\" stroke-opacity=\"{}\"/>\n", frame.left, y, frame.right, svg::grey,
                          tick == scale.low ? "1" : "0.25");
    body += svg::text(is_right ? frame.right + 8 : frame.left - 8, y + 4, tick_text(tick, axis.is_percent), is_right ? "start" : "end");
  }
  const double middle = (frame.top + frame.bottom) / 2, x = is_right ? width - 14 : 18;
  return body + svg::text(x, middle, axis.label, "middle", fmt::format(" transform=\"rotate(-90 {:g} {:g})\"", x, middle));
}

/// A line through points on the page, with their marks and bars.
std::string draw_series(const std::vector<Point>& points, const char* colour, bool has_marks) {
  std::string line, marks;
  for (const Point& point : points) {
    line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", point.x, point.y);
    if (has_marks)
      marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" stroke=\"none\"/>", point.x, point.y,
                           points.size() > 20 ? "2.5" : "3.5", colour);
    if (point.low != point.high)
      marks += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}h8M{3:.1f} {2:.1f}h8\"/>", point.x, point.low, point.high,
                           point.x - 4);
  }
  std::string body = fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"{}/>\n", line,
                                 colour, has_marks ? "2" : "1.5", has_marks ? " stroke-opacity=\"0.6\"" : "");
  if (!marks.empty()) body += fmt::format("<g stroke=\"{}\" stroke-width=\"1.5\" fill=\"none\">{}</g>\n", colour, marks);
  return body;
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  const double rough = (high - low) / count, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  // Whole multiples: sums of steps would gather rounding errors.
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double multiple = first; multiple <= last; ++multiple) ticks.push_back(multiple * step);
  return ticks;
}

std::string to_svg(const Chart& chart) {
  const bool has_right = std::any_of(chart.series.begin(), chart.series.end(), [](const Series& series) { return series.is_right; });
  Frame frame{.left = 64, .right = has_right ? width - 64 : width - 24, .top = 0, .bottom = 0};
  const std::vector<Spot> names = legend(chart, frame.left, frame.right, 46);
  frame.top = (names.empty() ? 46 : names.back().y) + 24;
  frame.bottom = frame.top + 258;
  const double height = frame.bottom + 52;

  std::set<double> values;
  for (const Series& series : chart.series)
    for (const Point& point : series.points)
      if (is_shown(chart, point)) values.insert(point.x);
  const std::vector<double> xs(values.begin(), values.end());
  const Scale x_axis = x_scale(chart, xs), left = y_scale(chart, false), right = y_scale(chart, true);
  const double gap = (frame.right - frame.left) / static_cast<double>(std::max<std::size_t>(xs.size(), 1));
  const auto x_of = [&](double x) {
    if (!chart.is_even) return frame.left + x_axis.place(x) * (frame.right - frame.left);
    return frame.left + gap * (static_cast<double>(std::lower_bound(xs.begin(), xs.end(), x) - xs.begin()) + 0.5);
  };

  std::string body = svg::text(frame.left, 24, chart.title, "start", " font-size=\"15\"");
  body += draw_y_axis(frame, left, chart.left, false);
  if (has_right) body += draw_y_axis(frame, right, chart.right, true);
  for (const double x : x_axis.ticks) {
    body += fmt::format("<path d=\"M{:.1f} {:g}v5\" stroke=\"{}\"/>\n", x_of(x), frame.bottom, svg::grey);
    body += svg::text(x_of(x), frame.bottom + 19, tick_text(x));
  }
  body += svg::text((frame.left + frame.right) / 2, height - 12, chart.x_label);

  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    const char* colour = svg::colours[i % std::size(svg::colours)];
    const Scale& scale = series.is_right ? right : left;
    const auto y_of = [&](double y) { return frame.bottom - scale.place(y) * (frame.bottom - frame.top); };
    // Series at the same places stand a little apart, so that their bars can be told apart too.
    const double shift = chart.is_even ? 7 * (static_cast<double>(i) - static_cast<double>(chart.series.size() - 1) / 2) : 0;
    std::vector<Point> points;
    for (const Point& point : series.points)
      if (is_shown(chart, point)) {
        const bool has_bar = point.low < point.high;
        points.push_back({x_of(point.x) + shift, y_of(point.y), has_bar ? y_of(point.low) : 0, has_bar ? y_of(point.high) : 0});
      }
    if (!points.empty()) body += draw_series(points, colour, series.has_marks || points.size() == 1);
    if (series.name.empty()) continue;
    body += fmt::format("<path d=\"M{:g} {:g}h22\" stroke=\"{}\" stroke-width=\"3\"/>\n", names[i].x, names[i].y, colour);
    body += svg::text(names[i].x + 28, names[i].y + 4, series.name, "start");
  }
  return svg::document(width, height, chart.title, body);
}

}  // namespace tern::apps
