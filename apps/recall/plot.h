#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tern::recall {

/// A mark at (x, y), with a bar from low to high where they differ.
struct Point {
  double x = 0, y = 0, low = 0, high = 0;
};

struct Series {
  std::string name;
  std::vector<Point> points;
};

/// Lines with marks and error bars. The x axis shows the values that occur, evenly spaced: layers, widths. The y axis goes from
/// 0 to 100%.
struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;
};

/// A picture for light and dark pages.
std::string to_svg(const Chart& chart);

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
};

/// Heat maps side by side, each in colours of its own range: blue above 0, red below, the darker the larger the value's root, so that
/// small ones still show. A matrix of more than 120 rows or columns is shown by the means of square pieces.
std::string to_svg(const std::string& title, const std::vector<HeatMap>& maps);

}  // namespace tern::recall
