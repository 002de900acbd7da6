#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plot/axes.h"

namespace tern::apps {

// Note [Pictures]
// Programs write pictures as SVG files with searchable text, in colours that suit white and black pages. This directory draws all of them,
// lines, areas and points over axes, and heat maps, in some 600 lines. The libraries of Debian 12 need many packages on a bare system and
// fit worse: PLplot 5.15 (libplplot-dev: 240 packages, with Qt, GTK and wxWidgets) is a C interface to one global stream. Cairo 1.16
// (libcairo2-dev: 98) has no axes, ticks or legends, so that most of these lines would stay, and draws text as outlines, which cannot be
// searched, selected or read aloud. gnuplot 5.4 (gnuplot-nox: 55) is a program that users would have to install.

/// A point of a series at (x, y), with an error bar from low to high if they differ.
struct Point {
  double x = 0, y = 0, low = 0, high = 0;
  std::string note = {};  ///< tooltip of its mark
};

enum class Mark : std::uint8_t { none, disc, ring, square, diamond };

struct Series {
  std::string name;
  std::vector<Point> points;
  bool is_right = false;  ///< on the right axis
  bool has_line = true;   ///< connect the points in their order
  Mark mark = Mark::disc;
  std::optional<std::size_t> colour = {};  ///< index in svg::colours; by default the index of the series
};

/// Lines and points with error bars, or areas.
struct Chart {
  std::string title, x_label;
  Axis left, right = {};
  std::vector<Series> series;
  bool is_even = false;     ///< a categorical x axis: the occurring values (layers, widths), evenly spaced
  bool is_log = false;      ///< logarithmic x and left axes; all values are above 0
  bool is_stacked = false;  ///< stacked areas: all series have the same x, and hold a value until the next x
  double width = 640;

  /// A part of the x axis, drawn as a strip below it.
  struct Span {
    std::string name;
    double from = 0, to = 0;
    std::size_t colour = 0;  ///< index in svg::colours
  };
  std::vector<Span> spans = {};

  /// A dashed horizontal line with a name.
  struct Level {
    double y = 0;
    std::string name;
  };
  std::optional<Level> level = {};
};

/// The chart as SVG, for light and dark pages. Values that are not finite are left out.
std::string to_svg(const Chart& chart);

}  // namespace tern::apps
