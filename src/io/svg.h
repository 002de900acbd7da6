#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Pictures as SVG files with searchable text, in colours that suit white and black pages: lines, areas, points and boxes over axes,
/// heat maps and graphs.
///
/// Note [Pictures]
/// The libraries of Debian 12 need many packages on a bare system and fit worse: PLplot 5.15 (240 packages, with Qt, GTK and wxWidgets) is
/// a C interface to one global stream. Cairo 1.16 (98) has no axes, ticks or legends, so that most of this code would stay, and draws text
/// as outlines, which cannot be searched, selected or read aloud. gnuplot 5.4 (55) is a program that users would have to install.
namespace tern::io::svg {

/// Text as characters of XML, of an element or an attribute: what XML 1.0 has no character for (its production 2, Char) becomes U+FFFD.
std::string escape(std::string_view text);

/// A point of a series at (x, y), with an error bar from low to high if they differ.
struct Point {
  double x = 0, y = 0, low = 0, high = 0;
  std::string note = {};  ///< tooltip of its mark
};

/// The mark of a point.
enum class Mark : std::uint8_t { none, disc, ring, square, diamond };

/// A line or an area with its points.
struct Series {
  std::string name;
  std::vector<Point> points;
  bool is_right = false;  ///< on the right axis
  bool has_line = true;   ///< connect the points in their order
  Mark mark = Mark::disc;
  std::optional<std::size_t> colour = {};  ///< number of a colour; by default the index of the series
};

/// The left or the right axis.
struct Axis {
  std::string label;
  bool is_percent = false;                    ///< 1 is shown as 100%
  std::optional<double> low = {}, high = {};  ///< ends of the axis; by default those of the data
};

/// Lines and points with error bars, or areas.
struct Chart {
  std::string title, x_label;
  Axis left, right = {};
  std::vector<Series> series;
  bool is_even = false;     ///< a categorical x axis: the occurring values (layers, widths), evenly spaced
  bool is_cut = false;      ///< the x axis begins at the last whole number below the first value, not at 0
  bool is_log = false;      ///< logarithmic x and left axes; all values are above 0
  bool is_stacked = false;  ///< stacked areas: all series have the same x, and hold a value until the next x
  double width = 640;
  double height = 258;  ///< of the area between the axes

  /// A rectangle over a part of both axes.
  struct Box {
    double from = 0, to = 0;  ///< on the x axis
    double low = 0, high = 0;
    std::string note = {};   ///< tooltip
    std::size_t colour = 0;  ///< number of a colour
  };
  std::vector<Box> boxes = {};

  /// A part of the x axis, drawn as a band below it.
  struct Span {
    std::string name;
    double from = 0, to = 0;
    std::size_t colour = 0;  ///< number of a colour
  };
  std::vector<Span> spans = {};

  /// A dashed horizontal line with a name.
  struct Level {
    double y = 0;
    std::string name;
  };
  std::optional<Level> level = {};
};

/// The chart as SVG. Values that are not finite are left out.
std::string to_svg(const Chart& chart);

/// A directed graph: nodes as boxes in columns.
struct Graph {
  std::string title;
  std::vector<std::string> columns;  ///< their names, from left to right
  struct Node {
    std::size_t column = 0;
    std::string name;
    std::string note = {};   ///< tooltip
    std::size_t colour = 0;  ///< number of a colour
  };
  std::vector<Node> nodes;                                  ///< those of a column stand below each other
  std::vector<std::pair<std::size_t, std::size_t>> arrows;  ///< indices of nodes, from and to
};

/// The graph as SVG. A name is cut where its box ends.
std::string to_svg(const Graph& graph);

/// Round ticks, with a step of 1, 2 or 5 times a power of ten: from the last one <= `low` to the first one >= `high`, in about `count`
/// steps.
std::vector<double> nice_ticks(double low, double high, int count);

/// A matrix as squares, row 0 on top.
struct HeatMap {
  std::string title;
  std::int64_t rows = 0, columns = 0;
  std::vector<float> values;                                   ///< (rows, columns); -infinity is what a mask hides, and stays empty
  std::vector<std::string> row_names = {}, column_names = {};  ///< none, or one each; written where there is room

  /// Columns that belong together, from `first` to the next block's.
  struct Block {
    std::string name;
    std::int64_t first = 0;
  };
  std::vector<Block> blocks = {};
  bool is_percent = false;  ///< 1 is the darkest colour, and cells with room show their value as percents
};

/// Heat maps side by side, each in colours of its own range: blue above 0, red below, the darker the larger the value's root, so that small
/// ones still show. A matrix of more than 120 rows or columns is shown by the means of square pieces.
std::string to_svg(const std::string& title, const std::vector<HeatMap>& maps);

}  // namespace tern::io::svg
