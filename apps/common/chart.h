#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tern::apps {

/// A point of a line at (x, y), with a bar from low to high where they differ.
struct Point {
  double x = 0, y = 0, low = 0, high = 0;
};

struct Series {
  std::string name;
  std::vector<Point> points;
  bool is_right = false;  ///< measured by the axis on the right
  bool has_marks = true;  ///< at each point
};

struct Axis {
  std::string label;
  bool is_percent = false;                    ///< 1 is shown as 100%
  std::optional<double> low = {}, high = {};  ///< where it begins and ends; else as the points ask for
};

/// Lines with marks and error bars.
struct Chart {
  std::string title, x_label;
  Axis left, right = {};
  std::vector<Series> series;
  bool is_even = false;  ///< the x axis shows the values that occur, evenly spaced (layers, widths), and no scale
  bool is_log = false;   ///< x and left axis are logarithmic, from one power of ten to another; values are above 0
};

/// A picture for light and dark pages. Values that are not finite are left out.
std::string to_svg(const Chart& chart);

/// Round numbers (1, 2 or 5 times a power of ten apart) from the last one at or below `low` to the first one at or above `high`, about
/// `count` steps.
std::vector<double> nice_ticks(double low, double high, int count);

}  // namespace tern::apps
