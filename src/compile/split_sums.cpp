#include "compile/rewrite.h"
#include "ops/kernels/reduce.h"

namespace tern::compiler {

namespace {

/// The sum as sums of rows and the sum of those, if rows come last in its elements, and others are added up as well.
std::optional<std::pair<Call, Call>> split(const Call& call, std::vector<Block>& blocks) {
  const auto* const sum = call.kernel->as<kernels::Reduce>();
  if (!sum || sum->f != kernels::ReduceFunction::sum || sum->x.dtype != DType::f32) return std::nullopt;
  constexpr std::int64_t least = 16, most = 16384;  // elements of a row that a group has (Note [Groups])
  const auto is_kept = [&](int d) { return sum->y.shape[d] > 1; };
  int rows = sum->x.dims();  // dimensions that number them
  std::int64_t length = 1;
  for (; rows > 0 && !is_kept(rows - 1); --rows) length *= sum->x.shape[rows - 1];
  bool adds_rows = false;
  for (int d = 0; d < rows; ++d) adds_rows = adds_rows || (!is_kept(d) && sum->x.shape[d] > 1);
  if (!adds_rows || length < least || length > most) return std::nullopt;
  View parts = sum->x;
  for (int d = rows; d < parts.dims(); ++d) parts.shape[d] = 1;
  parts.strides = contiguous_strides(parts.shape);
  const Call::Place at{blocks.size(), 0};
  blocks.push_back({.bytes = static_cast<std::size_t>(parts.numel()) * size_of(parts.dtype)});
  const auto as = [&](kernels::Reduce kernel, Call::Place from, Call::Place to) {
    return Call{std::make_unique<detail::KernelCallOf<kernels::Reduce>>(kernel), {from, to}, call.op, call.module, call.ways};
  };
  return std::pair(as({sum->f, sum->x, parts, 1}, call.places[0], at), as({sum->f, parts, sum->y, sum->scale}, at, call.places[1]));
}

}  // namespace

void split_sums(std::vector<Call>& calls, std::vector<Block>& blocks) {
  std::vector<Call> result;
  for (Call& call : calls) {
    if (auto parts = split(call, blocks)) result.push_back(std::move(parts->first)), result.push_back(std::move(parts->second));
    else result.push_back(std::move(call));
  }
  calls = std::move(result);
}

}  // namespace tern::compiler
