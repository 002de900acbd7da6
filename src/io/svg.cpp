#include "io/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "io/svg_parts.h"
#include "tensor/sizes.h"
#include "text/unicode.h"

namespace tern::io::svg {

const char* colour(std::size_t number) {
  constexpr const char* colours[] = {"#3b82f6", "#ea7317", "#22a352", "#b45bd6", "#d64561", "#12a5b0", "#a5841c", "#6366d8", "#c46aa0"};
  return colours[number % std::size(colours)];
}

std::string text_at(double x, double y, const std::string& words, const char* anchor, const std::string& more) {
  return fmt::format("<text x=\"{:g}\" y=\"{:g}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more, escape(words));
}

std::string document(double width, double height, const std::string& title, const std::string& body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\" role=\"img\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"{2}\">\n<title>{3}</title>\n{4}</svg>\n",
      width, height, grey, escape(title), body);
}

namespace {

std::string rotated(int degrees, double x, double y) { return fmt::format(" transform=\"rotate({} {:g} {:g})\"", degrees, x, y); }

/// The text of a tick: "0.25", "12.5k", "40%".
std::string tick_text(double value, bool is_percent = false) {
  if (is_percent) return fmt::format("{:g}%", 100 * value);
  if (std::abs(value) >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (std::abs(value) >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

/// The ends and the ticks of an axis.
struct Scale {
  double low = 0, high = 1;
  std::vector<double> ticks = {};
  bool is_log = false;
  /// The position of a value: 0 at the low end, 1 at the high end.
  double place(double value) const { return is_log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low); }
};

/// A range of values.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) { low = std::min(low, value), high = std::max(high, value); }
};

/// A logarithmic scale between powers of ten; values are above 0.
Scale log_scale(const Range& range) {
  const double low = range.low <= range.high ? range.low : 1, high = range.low <= range.high ? range.high : 1;
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
  Range range;
  std::vector<double> sums;  // the upper edges of a stacked chart's areas
  for (const Series& series : chart.series)
    for (std::size_t i = 0; i < series.points.size(); ++i) {
      if (series.is_right == is_right && is_shown(chart, series.points[i])) range.add(series.points[i].y);
      if (i == sums.size()) sums.push_back(0);
      sums[i] += series.points[i].y;
    }
  if (!is_right)
    for (const Chart::Box& box : chart.boxes) range.add(box.low), range.add(box.high);
  if (chart.is_log && !is_right) return log_scale(range);
  if (chart.is_stacked) {
    range.add(0);
    for (const double sum : sums) range.add(sum);
  }
  if (chart.level && !is_right) range.add(1.04 * chart.level->y);  // room for its name above it
  const Axis& axis = is_right ? chart.right : chart.left;
  double low = axis.low.value_or(range.low), high = axis.high.value_or(range.high);
  if (!std::isfinite(low)) low = std::isfinite(high) ? std::min(high - 1, 0.0) : 0;
  if (!std::isfinite(high) || high <= low) high = low + std::max(1.0, std::abs(low) / 10);
  Scale scale{.ticks = nice_ticks(low, high, 5)};
  scale.low = scale.ticks.front();
  scale.high = scale.ticks.back();
  return scale;
}

/// The x axis, from 0 or the first value to the last one.
Scale x_scale(const Chart& chart, const std::vector<double>& xs) {
  if (chart.is_even) return {.ticks = xs};
  Range range;
  for (const double x : xs) range.add(x);
  if (chart.is_log) return log_scale(range);
  Scale scale;
  if (!xs.empty()) {
    scale.low = chart.is_cut ? std::floor(xs.front()) : std::min(xs.front(), 0.0);
    scale.high = xs.back() > scale.low ? xs.back() : scale.low + 1;
  }
  scale.ticks = nice_ticks(scale.low, scale.high, 6);
  std::erase_if(scale.ticks, [&](double tick) { return tick < scale.low || tick > scale.high; });
  return scale;
}

/// A mark of a radius of about 4, smaller if there are many. A disc is larger by a step for each of the discs `above` it.
std::string mark_at(Mark mark, double x, double y, bool is_small = false, const std::string& note = "", int above = 0) {
  const double r = (is_small ? 2.5 : 3.5) + (mark == Mark::disc ? 2.5 * above : 0), d = 1.4 * r;
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
    case Mark::square: shape = fmt::format("d=\"M{0:.1f} {1:.1f}h{2:g}v{2:g}h-{2:g}z\"", x - r, y - r, 2 * r); break;
    case Mark::diamond: shape = fmt::format("d=\"M{0:.1f} {1:.1f}l{2:g} {2:g}l-{2:g} {2:g}l-{2:g} -{2:g}z\"", x, y - d, d); break;
  }
  if (note.empty()) return fmt::format("<{} {}/>", tag, shape);
  return fmt::format("<{0} {1}><title>{2}</title></{0}>", tag, shape, escape(note));
}

std::string in_colour(const char* of, const std::string& marks) {
  return fmt::format("<g color=\"{0}\" stroke=\"{0}\" stroke-width=\"1.5\" fill=\"none\">{1}</g>\n", of, marks);
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

/// A chart on its page.
class Page {
 public:
  explicit Page(const Chart& chart) : chart_(chart) {
    has_right_ = std::any_of(chart.series.begin(), chart.series.end(), [](const Series& series) { return series.is_right; });
    left_ = 64;
    right_ = chart.width - (has_right_ ? 64 : 24);
    double x = left_, y = 46;  // of the next name in the legend
    for (const Series& series : chart.series) {
      const bool is_empty =
          chart.is_stacked && std::none_of(series.points.begin(), series.points.end(), [](const Point& point) { return point.y > 0; });
      const double room = is_empty ? 0 : 48 + 6.4 * static_cast<double>(series.name.size());
      if (x > left_ && x + room > right_) x = left_, y += 20;
      legend_.push_back({x, y, 0, 0, is_empty ? "" : series.name});
      x += room;
    }
    top_ = y + 24;
    bottom_ = top_ + chart.height;
    std::set<double> values;
    for (const Series& series : chart.series)
      for (const Point& point : series.points)
        if (is_shown(chart, point)) values.insert(point.x);
    for (const Chart::Box& box : chart.boxes) values.insert(box.from), values.insert(box.to);
    xs_.assign(values.begin(), values.end());
    x_scale_ = x_scale(chart, xs_);
    y_scales_[0] = y_scale(chart, false);
    y_scales_[1] = y_scale(chart, true);
  }

  std::string svg() {
    const double band = chart_.spans.empty() ? 0 : 20, height = bottom_ + 52 + band, room = chart_.width - left_ - 16;
    // Letters of 15, or smaller where the title does not fit.
    const double size = std::clamp(room / (0.52 * static_cast<double>(chart_.title.size() + 1)), 9.0, 15.0);
    std::string body = text_at(left_, 24, chart_.title, "start", fmt::format(" font-size=\"{:.3g}\"", size));
    body += y_axis(chart_.left, false, 18);
    if (has_right_) body += y_axis(chart_.right, true, chart_.width - 14);
    for (const double tick : x_scale_.ticks) {
      body += fmt::format("<path d=\"M{:.1f} {:g}v5\" stroke=\"{}\"/>\n", x(tick), bottom_, grey);
      body += text_at(x(tick), bottom_ + 19 + band, tick_text(tick));
    }
    body += text_at((left_ + right_) / 2, height - 12, chart_.x_label);
    for (std::size_t i = 0; i < chart_.series.size(); ++i) {
      if (!legend_[i].note.empty()) body += legend_entry(i);
      body += chart_.is_stacked ? area(i) : line(i);
    }
    for (const Chart::Box& box : chart_.boxes)
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" fill-opacity=\"0.6\" "
          "stroke=\"{}\" stroke-width=\"0.5\"><title>{}</title></rect>\n",
          x(box.from), y(box.high), x(box.to) - x(box.from), y(box.low) - y(box.high), colour(box.colour), grey, escape(box.note));
    for (const Chart::Span& span : chart_.spans) {
      const double from = x(span.from), width = x(span.to) - from;
      body += fmt::format("<rect x=\"{:.1f}\" y=\"{:g}\" width=\"{:.1f}\" height=\"16\" fill=\"{}\" fill-opacity=\"0.45\"/>\n", from,
                          bottom_ + 6, width, colour(span.colour));
      if (width > 7 * static_cast<double>(span.name.size())) body += text_at(from + width / 2, bottom_ + 18, span.name);
    }
    if (chart_.level) {
      const double at = y(chart_.level->y);
      body += fmt::format("<path d=\"M{:g} {:.1f}H{:g}\" stroke=\"{}\" stroke-dasharray=\"4 4\"/>\n", left_, at, right_, grey);
      body += text_at(right_, at - 5, chart_.level->name, "end");
    }
    return document(chart_.width, height, chart_.title, body);
  }

 private:
  double x(double value) const {
    if (!chart_.is_even) return left_ + x_scale_.place(value) * (right_ - left_);
    return left_ + gap() * (static_cast<double>(std::lower_bound(xs_.begin(), xs_.end(), value) - xs_.begin()) + 0.5);
  }
  double y(double value, bool is_right = false) const { return bottom_ - y_scales_[is_right].place(value) * (bottom_ - top_); }
  double gap() const { return (right_ - left_) / static_cast<double>(std::max<std::size_t>(xs_.size(), 1)); }
  const char* colour_of(std::size_t i) const { return colour(chart_.series[i].colour.value_or(i)); }

  /// The left axis, with a grid line at each tick, or the right one.
  std::string y_axis(const Axis& axis, bool is_right, double label_x) const {
    std::string body;
    for (const double tick : y_scales_[is_right].ticks) {
      const double at = y(tick, is_right);
      if (is_right) body += fmt::format("<path d=\"M{:g} {:.1f}h5\" stroke=\"{}\"/>\n", right_, at, grey);
      else
        body += fmt::format("<path d=\"M{:g} {:.1f}H{:g}\" stroke=\"{}\" stroke-opacity=\"{}\"/>\n", left_, at, right_, grey,
                            tick == y_scales_[0].low ? "1" : "0.25");
      body += text_at(is_right ? right_ + 8 : left_ - 8, at + 4, tick_text(tick, axis.is_percent), is_right ? "start" : "end");
    }
    const double middle = (top_ + bottom_) / 2;
    return body + text_at(label_x, middle, axis.label, "middle", rotated(-90, label_x, middle));
  }

  std::string legend_entry(std::size_t i) const {
    const Series& series = chart_.series[i];
    const Point& at = legend_[i];
    const std::string name = text_at(at.x + 28, at.y + 4, series.name, "start");
    if (chart_.is_stacked)
      return fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"22\" height=\"11\" fill=\"{}\"/>\n", at.x, at.y - 6, colour_of(i)) + name;
    if (series.has_line)
      return fmt::format("<path d=\"M{:g} {:g}h22\" stroke=\"{}\" stroke-width=\"3\"/>\n", at.x, at.y, colour_of(i)) + name;
    return in_colour(colour_of(i), mark_at(series.mark, at.x + 15, at.y)) + name;
  }

  /// A line with error bars and marks.
  std::string line(std::size_t i) const {
    const Series& series = chart_.series[i];
    // Series are shifted slightly against each other, so that error bars at the same x do not overlap.
    const double middle = static_cast<double>(chart_.series.size() - 1) / 2;
    const double shift = chart_.is_even ? 7 * (static_cast<double>(i) - middle) : 0;
    std::vector<Point> points;
    for (const Point& point : series.points)
      if (is_shown(chart_, point)) points.push_back(point);
    if (points.empty()) return "";
    // A single point has no line.
    const Mark mark = series.mark == Mark::none && points.size() == 1 ? Mark::disc : series.mark;
    std::string line, marks, body;
    for (const Point& point : points) {
      const double at_x = x(point.x) + shift, at_y = y(point.y, series.is_right);
      line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", at_x, at_y);
      marks += mark_at(mark, at_x, at_y, points.size() > 20, point.note, discs_above(chart_, i, point));
      if (point.low < point.high)
        marks += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}h8M{3:.1f} {2:.1f}h8\"/>", at_x,
                             y(point.low, series.is_right), y(point.high, series.is_right), at_x - 4);
    }
    if (series.has_line)
      body += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"{}/>\n", line,
                          colour_of(i), mark == Mark::none ? "1.5" : "2", mark == Mark::none ? "" : " stroke-opacity=\"0.6\"");
    return marks.empty() ? body : body + in_colour(colour_of(i), marks);
  }

  /// The area of a series in a stacked chart, on top of the one before.
  std::string area(std::size_t i) {
    const std::vector<Point>& points = chart_.series[i].points;
    std::string upper, lower;
    floor_.resize(std::max(floor_.size(), points.size()), 0);
    for (std::size_t at = 0; at < points.size(); ++at) {
      const Point& point = points[at];
      const double from = x(point.x), to = x(points[std::min(at + 1, points.size() - 1)].x);
      upper += fmt::format("{}{:.1f} {:.1f}H{:.1f}", at == 0 ? "M" : "L", from, y(floor_[at] + point.y), to);
      lower = fmt::format("L{:.1f} {:.1f}H{:.1f}", to, y(floor_[at]), from) + lower;
      floor_[at] += point.y;
    }
    if (legend_[i].note.empty()) return "";
    return fmt::format("<path d=\"{}{}Z\" fill=\"{}\" fill-opacity=\"0.85\"/>\n", upper, lower, colour_of(i));
  }

  const Chart& chart_;
  bool has_right_ = false;
  double left_ = 0, right_ = 0, top_ = 0, bottom_ = 0;  ///< edges of the plot area
  std::vector<Point> legend_;                           ///< where each series' name is; "" for one that is not shown
  std::vector<double> xs_;                              ///< the x that occur
  Scale x_scale_, y_scales_[2];
  std::vector<double> floor_;  ///< of the next area
};

constexpr float hidden = -std::numeric_limits<float>::infinity();
constexpr double name_room = 12;  ///< width that a name of a heat map needs

/// Reduces a matrix to at most 120 cells a side, as more are not visible and enlarge the file, by means of squares. A square of hidden
/// cells is hidden.
HeatMap shrunk(const HeatMap& map) {
  const std::int64_t piece = ceil_div(std::max(map.rows, map.columns), 120);
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
std::pair<float, float> range_of(const HeatMap& map) {
  float least = 0, greatest = 0;
  for (const float value : map.values) {
    if (value == hidden) continue;
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  return {least, greatest};
}

/// The colour of a value: eight shades of blue for positive and of red for negative ones; "" for about 0, the background.
std::string shade(float value, float largest) {
  if (value == hidden || largest == 0) return "";
  const int level = static_cast<int>(std::lround(8 * std::sqrt(std::min(std::abs(value) / largest, 1.f))));
  if (level == 0) return "";
  const int faint = 235 - level * 23, strong = level < 8 ? 246 : 216;
  return value > 0 ? fmt::format("#{:02x}{:02x}{:02x}", faint, faint + 10, strong)
                   : fmt::format("#{:02x}{:02x}{:02x}", strong, faint + 10, faint);
}

/// The cells. Adjacent cells of a row with one colour are one rectangle, and cells about 0, the majority, are none.
std::string cells(const HeatMap& map, float largest) {
  std::string result;
  for (std::int64_t row = 0; row < map.rows; ++row)
    for (std::int64_t column = 0; column < map.columns;) {
      const auto at = [&](std::int64_t j) { return shade(map.values[static_cast<std::size_t>(row * map.columns + j)], largest); };
      const std::string fill = at(column);
      std::int64_t end = column + 1;
      while (end < map.columns && at(end) == fill) ++end;
      if (!fill.empty())
        result += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"1\" fill=\"{}\"/>", column, row, end - column, fill);
      column = end;
    }
  return result;
}

/// The length of a map's longest side on the page, which grows so that up to 64 names fit.
double side_of(const HeatMap& map) {
  const auto longest = static_cast<double>(std::max(map.rows, map.columns));
  return (!map.row_names.empty() || !map.column_names.empty()) && longest <= 64 ? std::max(300.0, name_room * longest) : 300;
}

/// The space for the longest name, of about six units a letter; 0 for names of up to three letters.
double reach(const std::vector<std::string>& names) {
  std::size_t longest = 0;
  for (const std::string& name : names) longest = std::max(longest, name.size());
  return longest > 3 ? 6 * static_cast<double>(longest) : 0;
}

/// The names of rows and columns if the cells have room, and lines between blocks of columns with the blocks' names.
std::string labels(const HeatMap& map, double left, double top, double cell) {
  const double bottom = top + cell * static_cast<double>(map.rows), middle = cell / 2 + 4;
  std::string result;
  const auto write = [&](double x, double y, const std::string& name, const char* anchor, const std::string& more = "") {
    result += text_at(x, y, name, anchor, " font-size=\"10\"" + more);
  };
  if (cell >= name_room) {
    for (std::size_t i = 0; i < map.row_names.size(); ++i)
      write(left - 5, top + cell * static_cast<double>(i) + middle, map.row_names[i], "end");
    const bool is_slanted = reach(map.column_names) > 0;
    for (std::size_t i = 0; i < map.column_names.size(); ++i) {
      const double x = left + cell * (static_cast<double>(i) + 0.5), y = bottom + 14;
      write(x, y, map.column_names[i], is_slanted ? "end" : "middle", is_slanted ? rotated(-50, x, y) : "");
    }
  }
  if (map.is_percent && cell >= 2 * name_room)
    for (std::size_t i = 0; i < map.values.size(); ++i) {
      if (map.values[i] == hidden) continue;
      const std::size_t row = i / static_cast<std::size_t>(map.columns), column = i % static_cast<std::size_t>(map.columns);
      write(left + cell * (static_cast<double>(column) + 0.5), top + cell * static_cast<double>(row) + middle,
            fmt::format("{:.0f}", 100 * map.values[i]), "middle", map.values[i] > 0.3f ? " fill=\"#ffffff\"" : "");
    }
  double named = left - name_room;  // where the last block's name is: one beside it keeps a distance, however narrow the blocks
  for (std::size_t i = 0; i < map.blocks.size(); ++i) {
    const std::int64_t first = map.blocks[i].first, end = i + 1 < map.blocks.size() ? map.blocks[i + 1].first : map.columns;
    if (first > 0)
      result += fmt::format("<path d=\"M{:g} {:g}V{:g}\" stroke=\"{}\"/>\n", left + cell * static_cast<double>(first), top, bottom, grey);
    named = std::max(left + cell * static_cast<double>(first + end) / 2, named + name_room);
    write(named, bottom + 14, map.blocks[i].name, "middle");
  }
  return result;
}

bool is_xml(char32_t c) { return c == '\t' || c == '\n' || c == '\r' || (c >= 0x20 && c <= 0xFFFD) || c >= 0x10000; }

}  // namespace

std::string escape(std::string_view words) {
  std::string result;
  while (!words.empty()) {
    const text::Utf8Step step = text::decode_utf8(words);
    const char32_t c = step.code_point;
    if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '&') result += "&amp;";
    else if (c == '"') result += "&quot;";
    else text::append_utf8(result, step.valid && is_xml(c) ? c : text::replacement_character);
    words.remove_prefix(step.size);
  }
  return result;
}

std::vector<double> nice_ticks(double low, double high, int count) {
  const double rough = (high - low) / count, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= rough * (1 - 1e-9)) step = factor * power;
  // Multiples of the step, as sums would accumulate rounding errors.
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double multiple = first; multiple <= last; ++multiple) ticks.push_back(multiple * step);
  return ticks;
}

std::string to_svg(const Chart& chart) { return Page(chart).svg(); }

std::string to_svg(const std::string& title, const std::vector<HeatMap>& maps) {
  constexpr double gap = 36, top = 84, below = 18;
  std::string body = text_at(gap, 26, title, "start", " font-size=\"15\"");
  double left = gap, lowest = top;
  for (const HeatMap& whole : maps) {
    const auto [least, greatest] = range_of(whole);
    const HeatMap map = shrunk(whole);
    const auto [low, high] = range_of(map);
    const auto longest = [](const HeatMap& of) { return static_cast<double>(std::max(of.rows, of.columns)); };
    const double side = side_of(whole), cell = side / longest(map), whole_cell = side / longest(whole);
    const double width = cell * static_cast<double>(map.columns), height = cell * static_cast<double>(map.rows);
    const bool is_named = whole_cell >= name_room;
    if (is_named) left += reach(whole.row_names);
    body += text_at(left, top - 26, whole.title, "start", " font-size=\"13\"");
    if (!whole.is_percent)
      body += text_at(left, top - 10, fmt::format("{} x {}, from {:.3g} to {:.3g}", whole.rows, whole.columns, least, greatest), "start",
                      " font-size=\"11\"");
    body += fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" fill=\"#ffffff\" stroke=\"{}\"/>\n", left, top, width,
                        height, grey);
    body += fmt::format("<g transform=\"translate({:g} {:g}) scale({:g})\" shape-rendering=\"crispEdges\">{}</g>\n", left, top, cell,
                        cells(map, whole.is_percent ? 1 : std::max(-low, high)));
    body += labels(whole, left, top, whole_cell);
    left += std::max(width, 170.0) + gap;
    lowest = std::max(lowest, top + height + below + (is_named ? reach(whole.column_names) : 0));
  }
  const double title_width = 8 * static_cast<double>(title.size());  // of letters of that size, or more
  return document(std::max(left, gap + title_width + gap), lowest + gap, title, body);
}

}  // namespace tern::io::svg
