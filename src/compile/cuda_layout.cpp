#include "compile/cuda_layout.h"

#include <algorithm>
#include <bit>

#include "ops/kernels/random.h"

namespace tern::compiler {

namespace {

/// Elements of a row that a thread holds for each operand, where the row has enough.
constexpr std::int64_t elements_of_row = 16;
constexpr std::int64_t max_threads = 1024;

}  // namespace

Layout::Layout(const Group& group, const std::vector<Call>& calls, const std::function<std::size_t(const Call::Place&)>& alignment) {
  const bool is_rows = group.row_dims.has_value();
  strides.resize(group.uses.size());
  const Shape extents = group.extents();
  for (int d = extents.size() - 1; d >= 0; --d) {
    const bool is_column = is_rows && d == extents.size() - 1;
    if (extents[d] == 1 && !is_column) continue;
    bool continues = sizes.size() > (is_rows ? 1 : 0);
    for (std::size_t i = 0; i < group.uses.size() && continues; ++i)
      continues = group.uses[i].strides[d] == strides[i].back() * sizes.back();
    if (continues) {
      sizes.back() *= extents[d];
      continue;
    }
    sizes.push_back(extents[d]);
    for (std::size_t i = 0; i < group.uses.size(); ++i) strides[i].push_back(group.uses[i].strides[d]);
  }
  while (sizes.size() < (is_rows ? 2 : 1)) {
    sizes.push_back(1);
    for (auto& along : strides) along.push_back(0);
  }

  std::size_t largest = 1;
  for (const Use& use : group.uses) largest = std::max(largest, size_of(use.dtype));
  width = 16 / static_cast<std::int64_t>(largest);
  const auto has_vectors = [&](std::size_t i) {
    const Use& use = group.uses[i];
    if (strides[i][0] == 0 || use.is_sum) return true;
    if (strides[i][0] != 1 || alignment({use.block, use.offset}) % (size_of(use.dtype) * static_cast<std::size_t>(width)) != 0)
      return false;
    if (sizes.size() > 1 && sizes[0] % width != 0) return false;
    return std::all_of(strides[i].begin() + 1, strides[i].end(), [&](std::int64_t stride) { return stride % width == 0; });
  };
  while (is_rows && sizes[0] % width != 0) width /= 2;
  for (std::size_t i = 0; i < group.uses.size(); ++i)
    while (width > 1 && !has_vectors(i)) width /= 2;
  const auto is_dropout = [&](std::size_t call) { return calls[call].kernel->as<kernels::Dropout>() != nullptr; };
  if (width == 2 && std::any_of(group.calls.begin(), group.calls.end(), is_dropout)) width = 1;  // it draws for one, or for 4 or more
  if (!is_rows) {
    items = width == 1 ? 4 : 1;
    return;
  }
  const std::int64_t vectors = group.columns() / width, of_thread = std::max<std::int64_t>(1, elements_of_row / width);
  threads_of_row = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>((vectors + of_thread - 1) / of_thread)));
  threads_of_row = std::clamp<std::int64_t>(threads_of_row, 8, max_threads);
  items = (vectors + threads_of_row - 1) / threads_of_row;
  const bool adds_columns = std::any_of(group.uses.begin(), group.uses.end(), [](const Use& use) { return use.is_sum; });
  rows_of_block = std::max<std::int64_t>(1, (adds_columns ? summing_threads : threads_of_row > 32 ? 1 : 128) / threads_of_row);
}

}  // namespace tern::compiler
