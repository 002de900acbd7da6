#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tern::apps {

struct Axis {
  std::string label;
  bool is_percent = false;                    ///< 1 is shown as 100%
  std::optional<double> low = {}, high = {};  ///< ends of the axis; by default those of the data
};

/// The ends and the ticks of an axis.
struct Scale {
  double low = 0, high = 1;
  std::vector<double> ticks;
  bool is_log = false;
  /// The position of a value: 0 at the low end, 1 at the high end.
  double place(double value) const;
};

/// A linear scale from tick to tick, with about `count` steps.
Scale linear_scale(double low, double high, int count);
/// A logarithmic scale between powers of ten; `low` is above 0.
Scale log_scale(double low, double high);

/// Round ticks, with a step of 1, 2 or 5 times a power of ten: from the last one <= `low` to the first one >= `high`, in about `count`
/// steps.
std::vector<double> nice_ticks(double low, double high, int count);

/// The edges of the plot area.
struct Frame {
  double left, right, top, bottom;
  double x(double place) const { return left + place * (right - left); }
  double y(double place) const { return bottom - place * (bottom - top); }
};

/// Draws the left axis, with a grid line at each tick, or the right one, with its label at `label_x`.
std::string draw_y_axis(const Frame& frame, const Scale& scale, const Axis& axis, bool is_right, double label_x);

/// Draws a tick on the lower edge, with its number `below` units lower.
std::string draw_x_tick(const Frame& frame, double x, double value, double below);

/// A position on the page.
struct Spot {
  double x = 0, y = 0;
};

/// Positions of a legend's names, side by side in as many rows as they need between left and right. Empty names take no space.
std::vector<Spot> legend_spots(const std::vector<std::string>& names, double left, double right, double top);

}  // namespace tern::apps
