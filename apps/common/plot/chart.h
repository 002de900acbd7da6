#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plot/axes.h"

namespace tern::apps {

// Note [Pictures]
// A program writes a picture once, at its end, and a browser shows it: SVG whose words are text, in tones that stand out from white and
// from black alike. All pictures of programs come from this directory: lines, areas and points over axes, and heat maps, in some 600 lines.
// The libraries of Debian 12 give less for more, counted in packages that a bare system then gets. PLplot 5.15 (libplplot-dev: 240, with
// Qt, GTK and wxWidgets) has C functions over one global stream. Cairo 1.16 (libcairo2-dev: 98) has no axis, tick or legend, so that most
// of those lines would stay, and writes words as outlines of letters, which cannot be searched, selected or read aloud. gnuplot 5.4
// (gnuplot-nox: 55) is a program that a training would have to start, and its users to install.

/// A point of a line at (x, y), with a bar from low to high where they differ.
struct Point {
  double x = 0, y = 0, low = 0, high = 0;
  std::string note = {};  ///< shown where the mouse rests on its mark
};

enum class Mark : std::uint8_t { none, disc, ring, square, diamond };

struct Series {
  std::string name;
  std::vector<Point> points;
  bool is_right = false;  ///< measured by the axis on the right
  bool has_line = true;   ///< through the points, in their order
  Mark mark = Mark::disc;
  std::optional<std::size_t> colour = {};  ///< of svg::colours; else that of the series' place
};

/// Lines and points with error bars, or areas.
struct Chart {
  std::string title, x_label;
  Axis left, right = {};
  std::vector<Series> series;
  bool is_even = false;     ///< the x axis shows the values that occur, evenly spaced (layers, widths), and no scale
  bool is_log = false;      ///< x and left axis are logarithmic, from one power of ten to another; values are above 0
  bool is_stacked = false;  ///< areas, each on top of the one before: all series have the same x, and hold a value until the next x
  double width = 640;

  /// A part of the x axis, drawn as a strip below it.
  struct Span {
    std::string name;
    double from = 0, to = 0;
    std::size_t colour = 0;  ///< of svg::colours
  };
  std::vector<Span> spans = {};

  /// A broken line across, with its name.
  struct Level {
    double y = 0;
    std::string name;
  };
  std::optional<Level> level = {};
};

/// A picture for light and dark pages. Values that are not finite are left out.
std::string to_svg(const Chart& chart);

}  // namespace tern::apps
