#include "common/plot/axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/plot/svg.h"

namespace tern::apps {

namespace {

/// The text of a tick: "0.25", "12.5k", "40%".
std::string tick_text(double value, bool is_percent = false) {
  if (is_percent) return fmt::format("{:g}%", 100 * value);
  if (std::abs(value) >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (std::abs(value) >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

}  // namespace

double Scale::place(double value) const { return is_log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low); }

Scale linear_scale(double low, double high, int count) {
  Scale scale{.ticks = nice_ticks(low, high, count)};
  scale.low = scale.ticks.front();
  scale.high = scale.ticks.back();
  return scale;
}

Scale log_scale(double low, double high) {
  Scale scale{.is_log = true};
  const int last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
  for (int power = std::min(static_cast<int>(std::floor(std::log10(low) + 1e-9)), last - 1); power <= last; ++power)
    scale.ticks.push_back(std::pow(10, power));
  scale.low = scale.ticks.front();
  scale.high = scale.ticks.back();
  return scale;
}

std::vector<double> nice_ticks(double low, double high, int count) {
  const double rough = (high - low) / count, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  // Multiples of the step, as sums would accumulate rounding errors.
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double multiple = first; multiple <= last; ++multiple) ticks.push_back(multiple * step);
  return ticks;
}

std::string draw_y_axis(const Frame& frame, const Scale& scale, const Axis& axis, bool is_right, double label_x) {
  std::string body;
  for (const double tick : scale.ticks) {
    const double y = frame.y(scale.place(tick));
    if (is_right) body += fmt::format("<path d=\"M{:g} {:.1f}h5\" stroke=\"{}\"/>\n", frame.right, y, svg::grey);
    else
      body += fmt::format("<path d=\"M{:g} {:.1f}H{:g}\" stroke=\"{}\" stroke-opacity=\"{}\"/>\n", frame.left, y, frame.right, svg::grey,
                          tick == scale.low ? "1" : "0.25");
    body += svg::text(is_right ? frame.right + 8 : frame.left - 8, y + 4, tick_text(tick, axis.is_percent), is_right ? "start" : "end");
  }
  const double middle = (frame.top + frame.bottom) / 2;
  return body + svg::text(label_x, middle, axis.label, "middle", fmt::format(" transform=\"rotate(-90 {:g} {:g})\"", label_x, middle));
}

std::string draw_x_tick(const Frame& frame, double x, double value, double below) {
  return fmt::format("<path d=\"M{:.1f} {:g}v5\" stroke=\"{}\"/>\n", x, frame.bottom, svg::grey) +
         svg::text(x, frame.bottom + below, tick_text(value));
}

std::vector<Spot> legend_spots(const std::vector<std::string>& names, double left, double right, double top) {
  std::vector<Spot> result;
  Spot next{left, top};
  for (const std::string& name : names) {
    const double room = name.empty() ? 0 : 48 + 6.4 * static_cast<double>(name.size());
    if (next.x > left && next.x + room > right) next = {left, next.y + 20};
    result.push_back(next);
    next.x += room;
  }
  return result;
}

}  // namespace tern::apps
