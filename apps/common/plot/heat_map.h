#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tern::apps {

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

}  // namespace tern::apps
