#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "compile/groups.h"

namespace tern::compiler {

/// How a generated kernel lays the elements of a group over its threads. A thread has `items` vectors of `width` adjacent elements; in a
/// group of rows those of one row, which `threads_of_row` threads share.
struct Layout {
  static constexpr unsigned block_threads = 256;        ///< threads of a block without rows
  static constexpr std::int64_t summing_threads = 256;  ///< about those of a block that adds up columns

  /// alignment(place): a power of two that divides its address.
  Layout(const Group& group, const std::vector<Call>& calls, const std::function<std::size_t(const Call::Place&)>& alignment);

  std::int64_t elements() const { return items * width; }
  /// True if the threads of a row have exactly its elements.
  bool fills_row() const { return threads_of_row * elements() == sizes[0]; }

  /// Dimensions that are stepped through at once by all operands, the last one first; strides of the uses beside them. The columns of a row
  /// are one dimension, which is not taken together with others.
  std::vector<std::int64_t> sizes;
  std::vector<std::vector<std::int64_t>> strides;
  std::int64_t width = 1, items = 1;
  std::int64_t threads_of_row = 0, rows_of_block = 0;
};

}  // namespace tern::compiler
