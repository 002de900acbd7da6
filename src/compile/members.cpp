// The calls that a group can have (Note [Groups]), and two groups as one.
#include <algorithm>
#include <iterator>

#include "compile/groups.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/index.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/pointwise.h"
#include "ops/kernels/random.h"
#include "ops/kernels/reduce.h"
#include "tensor/overlap.h"

namespace tern::compiler {

namespace {

constexpr std::size_t max_calls = 96;
constexpr std::ptrdiff_t max_operands = 24, max_row_operands = 14;  ///< that come from outside of a group, or go there
constexpr std::ptrdiff_t max_column_sums = 4;                       ///< each takes registers as an operand does
/// Columns of a row that a block of threads holds in registers, and so few that a kernel of the library does more of them at a time.
constexpr std::int64_t max_columns = 16384, min_columns = 16;

/// The step from element to element of some dimensions taken as one; nothing if there is no one step.
std::optional<std::int64_t> step_of(const Shape& shape, const Strides& strides, int begin, int end) {
  std::int64_t step = 0, next = 0;
  bool is_first = true;
  for (int d = end - 1; d >= begin; --d) {
    if (shape[d] == 1) continue;
    if (is_first) step = strides[d];
    else if (strides[d] != next) return std::nullopt;
    is_first = false;
    next = strides[d] * shape[d];
  }
  return step;
}

/// Strides along the first `to_dims` dimensions of `to` of a view's first `dims`, which have as many elements; nothing if there are none.
std::optional<Strides> strides_along(const Shape& to, int to_dims, const View& view, int dims) {
  Strides strides = Strides::filled(to_dims, 0);
  int d = dims - 1, e = to_dims - 1;
  for (; d >= 0 && e >= 0; --d, --e) {
    while (d >= 0 && view.shape[d] == 1) --d;
    while (e >= 0 && to[e] == 1) --e;
    if (d < 0 || e < 0 || view.shape[d] != to[e]) break;
    strides[e] = view.strides[d];
  }
  const auto is_one = [](std::int64_t size) { return size == 1; };
  if ((d < 0 || std::all_of(view.shape.begin(), view.shape.begin() + d + 1, is_one)) &&
      (e < 0 || std::all_of(to.begin(), to.begin() + e + 1, is_one)))
    return strides;
  const auto step = step_of(view.shape, view.strides, 0, dims);
  if (!step) return std::nullopt;
  std::int64_t next = *step;
  for (e = to_dims - 1; e >= 0; --e) {
    strides[e] = to[e] == 1 ? 0 : next;
    next *= to[e];
  }
  return strides;
}

/// The number of first dimensions before those that a reduction reduces; its uses tell whether it keeps them all.
std::optional<int> row_dims_of(const kernels::Reduce& reduce) {
  using enum kernels::ReduceFunction;
  if (reduce.f != sum && reduce.f != max && reduce.f != min && reduce.f != logsumexp) return std::nullopt;
  int dims = reduce.x.shape.size();
  while (dims > 0 && reduce.y.shape[dims - 1] == 1) --dims;
  std::int64_t columns = 1;
  for (int d = dims; d < reduce.x.shape.size(); ++d) columns *= reduce.x.shape[d];
  if (columns < min_columns || columns > max_columns) return std::nullopt;
  return dims;
}

/// The number of first dimensions of a call that reads, or adds to, one element of each row, whose column an index tells.
std::optional<int> indexed_dims_of(const Call& call) {
  const auto dims_of = [](const View& x, const View& index, int dim) -> std::optional<int> {
    const int last = x.dims() - 1;
    if (dim != last || index.shape[last] != 1 || x.shape[last] < min_columns || x.shape[last] > max_columns) return std::nullopt;
    return last;
  };
  if (const auto* gather = call.kernel->as<kernels::Gather>()) return dims_of(gather->x, gather->index, gather->dim);
  if (const auto* scatter = call.kernel->as<kernels::ScatterAdd>()) return dims_of(scatter->y, scatter->index, scatter->dim);
  return std::nullopt;
}

/// The number of first dimensions over which a call adds up columns.
std::optional<int> summed_dims_of(const Call& call) {
  const auto fits = [](const View& x, int dims) {
    std::int64_t columns = 1;
    for (int d = dims; d < x.shape.size(); ++d) columns *= x.shape[d];
    return columns >= min_columns && columns <= max_columns && x.numel() > columns && x.dtype != DType::f64 && is_floating(x.dtype);
  };
  if (const auto* sums = call.kernel->as<kernels::ColumnSums>()) return fits(sums->g, 1) ? std::optional(1) : std::nullopt;
  const auto* const reduce = call.kernel->as<kernels::Reduce>();
  if (!reduce || reduce->f != kernels::ReduceFunction::sum) return std::nullopt;
  int dims = 0;
  while (dims < reduce->x.shape.size() && reduce->y.shape[dims] == 1) ++dims;
  for (int d = dims; d < reduce->x.shape.size(); ++d)
    if (reduce->y.shape[d] != reduce->x.shape[d]) return std::nullopt;
  return fits(reduce->x, dims) ? std::optional(dims) : std::nullopt;
}

/// True for a number whose conversion has the bits that the host gives it: a NaN of 16 bits has others.
bool is_exact(double x, DType dtype) { return x == x || size_of(dtype) > 2; }
/// True for a copy along another dimension than that of the original, which a kernel of cuda/pointwise does by tiles.
bool is_transpose(const kernels::Copy& copy) {
  for (int d = copy.x.shape.size() - 1; d >= 0; --d)
    if (copy.x.shape[d] != 1) return copy.x.strides[d] != 0 && copy.x.strides[d] != 1;
  return false;
}

/// True for a call that the generated code of a GPU has: on floats, and conditions and conversions of others.
bool has_code(const Call& call, bool is_reduction) {
  bool has = true;
  const bool is_copy = call.kernel->as<kernels::Copy>() != nullptr;
  each_view(call, [&](const View& view, kernels::Access access, const Call::Place& place) {
    if (place.block == Call::Place::none) return;
    if (is_floating(view.dtype)) has = has && (!is_reduction || view.dtype != DType::f64);
    else if (view.dtype == DType::boolean)
      has = has && (is_copy || call.kernel->as<kernels::Compare>() || call.kernel->as<kernels::Where>());
    else if (indexed_dims_of(call)) has = has && view.dtype == DType::i64 && access == kernels::Access::read;
    else has = has && is_copy && access == kernels::Access::read && view.dtype != DType::u8;
  });
  if (const auto* copy = call.kernel->as<kernels::Copy>()) has = has && copy->y.dtype != DType::boolean && !is_transpose(*copy);
  if (const auto* compare = call.kernel->as<kernels::Compare>())
    has = has && is_floating(compare->a.is_number ? compare->b.view.dtype : compare->a.view.dtype);
  if (const auto* where = call.kernel->as<kernels::Where>())
    has = has && is_floating(where->y.dtype) && is_exact(where->a.number, where->y.dtype) && is_exact(where->b.number, where->y.dtype);
  if (const auto* fill = call.kernel->as<kernels::Fill>()) has = has && is_exact(fill->value, fill->y.dtype);
  return has && numel(shape_of(call)) < std::int64_t{1} << 31;
}

/// The uses of a call as a member; nothing if it cannot be one.
std::optional<std::vector<Use>> uses_in(const Group& group, const Call& call) {
  std::vector<Use> uses;
  bool fits = true;
  const std::optional<int> summed = summed_dims_of(call);
  if (summed && (!group.row_dims || group.columns() * group.rows() != numel(shape_of(call)))) return std::nullopt;
  const bool is_dropout = call.kernel->as<kernels::Dropout>() != nullptr;  // which counts elements
  each_view(call, [&](const View& view, kernels::Access access, const Call::Place& place) {
    if (place.block == Call::Place::none || !fits) return;
    if (is_dropout && numel(view.shape) != numel(group.shape)) fits = false;
    std::optional<Use> use;
    if (summed && access != kernels::Access::read) {
      const auto step = step_of(view.shape, view.strides, 0, view.dims());
      if (step) use = {place.block, place.offset, Strides::filled(*group.row_dims, 0), view.dtype, true, true};
      if (step) use->strides.push_back(*step);
      fits = fits && numel(view.shape) == group.columns();
    } else use = use_of(group, view, access, place);
    if (use) uses.push_back(*use);
    else fits = false;
  });
  if (!fits) return std::nullopt;
  return uses;
}

/// True if two windows of a block, of the elements of one group, have no element in common.
bool are_apart(const Shape& extents, const Use& a, const Use& b) {
  if (a.dtype != b.dtype || a.is_sum || b.is_sum) return false;
  const auto view = [&](const Use& use) { return window_of({nullptr, extents, use.strides, use.dtype, {}}, {use.block, use.offset}); };
  return overlap(view(a), view(b)) == Overlap::none;
}

bool add_uses(const Group& group, std::vector<Use>& all, const std::vector<Use>& more) {
  for (const Use& use : more) {
    Use* same = nullptr;
    for (Use& other : all) {
      if (other.block != use.block) continue;
      if (other.is_sum || use.is_sum) return false;
      if (other.is_of(use)) same = &other;
      else if ((other.is_written || use.is_written) && !are_apart(group.extents(), other, use)) return false;
    }
    if (same) same->is_written = same->is_written || use.is_written;
    else all.push_back(use);
  }
  return true;
}

/// The number of first dimensions after which a shape has so many elements; nothing if there is none.
std::optional<int> dims_before(const Shape& shape, std::int64_t columns) {
  int dims = shape.size();
  std::int64_t count = 1;
  while (dims > 0 && count < columns) count *= shape[--dims];
  return count == columns ? std::optional(dims) : std::nullopt;
}

/// Both as a group of these elements.
std::optional<Group> merged_in(const Shape& shape, const std::optional<int>& row_dims, const Group& a, const Group& b,
                               const std::vector<Call>& calls, const std::vector<Block>& blocks) {
  Group both{.calls = {}, .is_open = true, .shape = shape, .row_dims = row_dims, .uses = {}, .level = a.level};
  std::merge(a.calls.begin(), a.calls.end(), b.calls.begin(), b.calls.end(), std::back_inserter(both.calls));
  for (const Group* const one : {&a, &b}) {
    if (one->shape == shape && one->row_dims == row_dims) {
      if (!add_uses(both, both.uses, one->uses)) return std::nullopt;
      continue;
    }
    const auto of_shape = group_of(one->calls, shape, row_dims, calls);
    if (!of_shape || !add_uses(both, both.uses, of_shape->uses)) return std::nullopt;
  }
  const auto operands = std::count_if(both.uses.begin(), both.uses.end(),
                                      [&](const Use& use) { return !use.is_written || blocks[use.block].kind != Block::Kind::inner; });
  if (operands > (both.row_dims ? max_row_operands : max_operands)) return std::nullopt;
  if (std::count_if(both.uses.begin(), both.uses.end(), [](const Use& use) { return use.is_sum; }) > max_column_sums) return std::nullopt;
  return both;
}

}  // namespace

std::vector<std::size_t> Group::all_calls() const {
  std::vector<std::size_t> all = calls;
  for (const Group& other : same) all.insert(all.end(), other.calls.begin(), other.calls.end());
  return all;
}

std::int64_t Group::rows() const {
  std::int64_t rows = 1;
  for (int d = 0; d < row_dims.value_or(shape.size()); ++d) rows *= shape[d];
  return rows;
}

Shape Group::extents() const {
  if (!row_dims) return shape;
  Shape extents(shape.begin(), shape.begin() + *row_dims);
  extents.push_back(columns());
  return extents;
}

Shape shape_of(const Call& call) {
  std::optional<Shape> shape;
  each_view(call, [&](const View& view, kernels::Access, const Call::Place& place) {
    if (place.block != Call::Place::none && (!shape || numel(view.shape) > numel(*shape))) shape = view.shape;
  });
  return shape.value_or(Shape{0});
}

View window_of(View view, const Call::Place& place) {
  view.data = reinterpret_cast<void*>(place.offset);
  return view;
}

std::int64_t bytes_of(const View& view) {
  auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
  for (int d = 0; d < view.dims(); ++d)
    if (view.strides[d] != 0 || view.shape[d] == 0) bytes *= view.shape[d];
  return bytes;
}

std::optional<Use> use_of(const Group& group, const View& view, kernels::Access access, const Call::Place& place) {
  Use use{place.block, place.offset, {}, view.dtype, access != kernels::Access::read};
  if (!group.row_dims) {
    if (view.shape != group.shape) return std::nullopt;
    use.strides = view.strides;
    for (int d = 0; d < view.shape.size(); ++d)
      if (view.shape[d] == 1) use.strides[d] = 0;
    return use;
  }
  const std::int64_t count = numel(view.shape);
  if (count != group.rows() && count != group.rows() * group.columns()) return std::nullopt;
  const std::optional<int> dims = count == group.rows() ? view.shape.size() : dims_before(view.shape, group.columns());
  if (!dims) return std::nullopt;
  const auto along_rows = strides_along(group.shape, *group.row_dims, view, *dims);
  const auto along_columns = step_of(view.shape, view.strides, *dims, view.shape.size());
  if (!along_rows || !along_columns || (*along_columns != 0 && *along_columns != 1)) return std::nullopt;
  use.strides = *along_rows;
  use.strides.push_back(*along_columns);
  return use;
}

Group alone(std::size_t index, const Call& call, bool is_gpu) {
  Group group{.calls = {index}, .is_open = false, .shape = shape_of(call), .row_dims = {}, .uses = {}, .level = 0};
  if (numel(group.shape) == 0) return group;
  bool is_member = false;
  for (const std::type_info* type : {&typeid(kernels::Unary), &typeid(kernels::UnaryGrad), &typeid(kernels::Binary),
                                     &typeid(kernels::Compare), &typeid(kernels::Where), &typeid(kernels::Copy), &typeid(kernels::Fill)})
    is_member = is_member || call.kernel->type() == *type;
  if (is_gpu) {
    is_member = is_member || call.kernel->as<kernels::Dropout>();
    const auto* const reduce = call.kernel->as<kernels::Reduce>();
    if (reduce) group.row_dims = row_dims_of(*reduce);
    if (!group.row_dims) group.row_dims = summed_dims_of(call);
    if (!group.row_dims) group.row_dims = indexed_dims_of(call);
    is_member = (is_member || group.row_dims) && has_code(call, group.row_dims.has_value());
  }
  if (const auto uses = is_member ? uses_in(group, call) : std::nullopt; uses && add_uses(group, group.uses, *uses)) group.is_open = true;
  return group;
}

std::optional<Group> group_of(const std::vector<std::size_t>& indices, const Shape& shape, const std::optional<int>& row_dims,
                              const std::vector<Call>& calls) {
  Group group{.calls = indices, .is_open = true, .shape = shape, .row_dims = row_dims, .uses = {}, .level = 0};
  for (const std::size_t call : indices) {
    const auto uses = uses_in(group, calls[call]);
    if (!uses || !add_uses(group, group.uses, *uses)) return std::nullopt;
  }
  return group;
}

std::optional<Group> merged(const Group& a, const Group& b, const std::vector<Call>& calls, const std::vector<Block>& blocks) {
  if (!a.is_open || !b.is_open || a.calls.size() + b.calls.size() > max_calls) return std::nullopt;
  if (a.shape == b.shape && a.row_dims == b.row_dims) return merged_in(a.shape, a.row_dims, a, b, calls, blocks);
  if (!a.row_dims && !b.row_dims) return std::nullopt;
  if (a.row_dims && b.row_dims) {
    if (a.rows() != b.rows() || a.columns() != b.columns()) return std::nullopt;
    const Group& finer = *b.row_dims > *a.row_dims ? b : a;
    return merged_in(finer.shape, finer.row_dims, a, b, calls, blocks);
  }
  const Group &of_rows = a.row_dims ? a : b, &of_elements = a.row_dims ? b : a;
  if (auto both = merged_in(of_rows.shape, of_rows.row_dims, a, b, calls, blocks)) return both;
  const std::optional<int> dims = dims_before(of_elements.shape, of_rows.columns());
  if (!dims || numel(of_elements.shape) != of_rows.rows() * of_rows.columns()) return std::nullopt;
  return merged_in(of_elements.shape, dims, a, b, calls, blocks);
}

}  // namespace tern::compiler
