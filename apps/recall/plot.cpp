#include "recall/plot.h"

#include <algorithm>
#include <set>

#include "recall/svg.h"

namespace tern::recall {

namespace {

/// The position of a series' name.
struct Spot {
  double x = 0, y = 0;
};

/// Names side by side, in as many rows as they need between left and right.
std::vector<Spot> legend(const Chart& chart, double left, double right, double top) {
  std::vector<Spot> result;
  Spot next{left, top};
  for (const Series& series : chart.series) {
    const double width = 48 + 6.4 * static_cast<double>(series.name.size());
    if (next.x > left && next.x + width > right) next = {left, next.y + 20};
    result.push_back(next);
    next.x += width;
  }
  return result;
}

}  // namespace

std::string to_svg(const Chart& chart) {
  constexpr double width = 640, left = 64, right = width - 24;
  const std::vector<Spot> names = legend(chart, left, right, 46);
  const double top = (names.empty() ? 46 : names.back().y) + 24, bottom = top + 258, height = bottom + 52;
  std::set<double> xs;
  for (const Series& series : chart.series)
    for (const Point& point : series.points) xs.insert(point.x);
  const std::vector<double> x_ticks(xs.begin(), xs.end());
  const double gap = (right - left) / static_cast<double>(std::max<std::size_t>(x_ticks.size(), 1));
  const auto x_of = [&](double x) {
    const auto place = std::lower_bound(x_ticks.begin(), x_ticks.end(), x) - x_ticks.begin();
    return left + gap * (static_cast<double>(place) + 0.5);
  };
  const auto y_of = [&](double y) { return bottom - y * (bottom - top); };

  std::string body = svg::text(left, 24, chart.title, "start", " font-size=\"15\"");
  for (int percent = 0; percent <= 100; percent += 20) {
    const double y = y_of(percent / 100.0);
    body += fmt::format("<path d=\"M{:g} {:.1f}H{:g}\" stroke=\"{}\" stroke-opacity=\"{}\"/>\n", left, y, right, svg::grey,
                        percent == 0 ? "1" : "0.25");
    body += svg::text(left - 8, y + 4, fmt::format("{}%", percent), "end");
  }
  for (double x : x_ticks) {
    body += fmt::format("<path d=\"M{:.1f} {:g}v5\" stroke=\"{}\"/>\n", x_of(x), bottom, svg::grey);
    body += svg::text(x_of(x), bottom + 19, fmt::format("{:g}", x));
  }
  body += svg::text((left + right) / 2, height - 12, chart.x_label);
  const double middle = (top + bottom) / 2;
  body += svg::text(18, middle, chart.y_label, "middle", fmt::format(" transform=\"rotate(-90 18 {:g})\"", middle));

  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    const char* colour = svg::colours[i % std::size(svg::colours)];
    // Series stand a little apart, so that their bars can be told apart too.
    const double shift = 7 * (static_cast<double>(i) - static_cast<double>(chart.series.size() - 1) / 2);
    std::string line, marks;
    for (const Point& point : series.points) {
      const double x = x_of(point.x) + shift;
      line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", x, y_of(point.y));
      marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\" stroke=\"none\"/>", x, y_of(point.y), colour);
      marks += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}h8M{3:.1f} {2:.1f}h8\"/>", x, y_of(point.low),
                           y_of(point.high), x - 4);
    }
    body += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-opacity=\"0.6\"/>\n", line, colour);
    body += fmt::format("<g stroke=\"{}\" stroke-width=\"1.5\" fill=\"none\">{}</g>\n", colour, marks);
    if (series.name.empty()) continue;
    body += fmt::format("<path d=\"M{:g} {:g}h22\" stroke=\"{}\" stroke-width=\"3\"/>\n", names[i].x, names[i].y, colour);
    body += svg::text(names[i].x + 28, names[i].y + 4, series.name, "start");
  }
  return svg::document(width, height, chart.title, body);
}

}  // namespace tern::recall
