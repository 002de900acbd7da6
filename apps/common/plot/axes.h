#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tern::apps {

struct Axis {
  std::string label;
  bool is_percent = false;                    ///< 1 is shown as 100%
  std::optional<double> low = {}, high = {};  ///< where it begins and ends; else as the points ask for
};

/// An axis' ends and the numbers that are written on it.
struct Scale {
  double low = 0, high = 1;
  std::vector<double> ticks;
  bool is_log = false;
  /// 0 at the low end, 1 at the high one.
  double place(double value) const;
};

/// From one of its ticks to another, about `count` steps.
Scale linear_scale(double low, double high, int count);
/// From one power of ten to another; `low` is above 0.
Scale log_scale(double low, double high);

/// Round numbers (1, 2 or 5 times a power of ten apart) from the last one at or below `low` to the first one at or above `high`, about
/// `count` steps.
std::vector<double> nice_ticks(double low, double high, int count);

/// The edges of the area that a picture's points lie in.
struct Frame {
  double left, right, top, bottom;
  double x(double place) const { return left + place * (right - left); }
  double y(double place) const { return bottom - place * (bottom - top); }
};

/// The axis on the left, with a line across the frame at each tick, or the one on the right, with its label at `label_x`.
std::string draw_y_axis(const Frame& frame, const Scale& scale, const Axis& axis, bool is_right, double label_x);

/// A tick on the frame's lower edge, its number `below` that.
std::string draw_x_tick(const Frame& frame, double x, double value, double below);

/// A place on the page.
struct Spot {
  double x = 0, y = 0;
};

/// Positions of a legend's names: side by side, in as many rows as they need between left and right. A name that is empty takes no
/// room.
std::vector<Spot> legend_spots(const std::vector<std::string>& names, double left, double right, double top);

}  // namespace tern::apps
