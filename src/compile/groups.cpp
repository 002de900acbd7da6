#include "compile/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <queue>
#include <string>

#include "ops/kernels/copy.h"
#include "ops/kernels/pointwise.h"
#include "ops/kernels/random.h"
#include "ops/kernels/reduce.h"

namespace tern::compiler {

namespace {

constexpr std::size_t max_calls = 64, max_same = 64;
constexpr std::ptrdiff_t max_operands = 24, max_row_operands = 14;  ///< that come from outside of a group, or go there
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

/// First and one past the last byte of a view in its block.
std::pair<std::int64_t, std::int64_t> bytes_of(const View& view, const Call::Place& place) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  std::int64_t first = place.offset, last = place.offset + size;
  for (int d = 0; d < view.shape.size(); ++d) {
    const std::int64_t reach = (view.shape[d] - 1) * view.strides[d] * size;
    (reach < 0 ? first : last) += reach;
  }
  return {first, last};
}

/// Shape of a call's elements, of which there are none if it uses no memory.
Shape shape_of(const Call& call) {
  std::optional<Shape> shape;
  each_view(call, [&](const View& view, kernels::Access, const Call::Place& place) {
    if (place.block != Call::Place::none && (!shape || numel(view.shape) > numel(*shape))) shape = view.shape;
  });
  return shape.value_or(Shape{0});
}

enum class Kind : std::uint8_t { other, elements, reduction };

/// Forms groups: see Note [Groups].
class Former {
 public:
  Former(const std::vector<Call>& calls, const std::vector<Block>& blocks, bool is_gpu)
      : calls_(calls), blocks_(blocks), is_gpu_(is_gpu), touched_(blocks.size()), group_of_(calls.size()), before_(calls.size()) {}

  std::vector<Group> formed() {
    for (std::size_t i = 0; i < calls_.size(); ++i) place(i);
    if (is_gpu_) join_same();
    return ordered();
  }

 private:
  struct Touch {
    std::int64_t first, last;
    std::size_t call;
  };
  /// Uses of a block since it was last written as a whole.
  struct Touched {
    std::vector<Touch> writes, reads;
    std::optional<std::size_t> group;  ///< the last one
  };

  /// True for a call that the generated code of a GPU has: on floats, and conditions and conversions of others.
  static bool has_code(const Call& call, Kind kind) {
    bool has = true;
    const bool is_copy = call.kernel->as<kernels::Copy>() != nullptr;
    each_view(call, [&](const View& view, kernels::Access access, const Call::Place& place) {
      if (place.block == Call::Place::none) return;
      if (is_floating(view.dtype)) has = has && (kind != Kind::reduction || view.dtype != DType::f64);
      else if (view.dtype == DType::boolean)
        has = has && (is_copy || call.kernel->as<kernels::Compare>() || call.kernel->as<kernels::Where>());
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

  /// True for a number whose conversion has the bits that the host gives it: a NaN of 16 bits has others.
  static bool is_exact(double x, DType dtype) { return x == x || size_of(dtype) > 2; }
  /// True for a copy along another dimension than that of the original, which a kernel of cuda/pointwise does by tiles.
  static bool is_transpose(const kernels::Copy& copy) {
    for (int d = copy.x.shape.size() - 1; d >= 0; --d)
      if (copy.x.shape[d] != 1) return copy.x.strides[d] != 0 && copy.x.strides[d] != 1;
    return false;
  }

  Kind kind_of(const Call& call) const {
    Kind kind = Kind::other;
    for (const std::type_info* type : {&typeid(kernels::Unary), &typeid(kernels::UnaryGrad), &typeid(kernels::Binary),
                                       &typeid(kernels::Compare), &typeid(kernels::Where), &typeid(kernels::Copy), &typeid(kernels::Fill)})
      if (call.kernel->type() == *type) kind = Kind::elements;
    if (is_gpu_ && call.kernel->as<kernels::Dropout>()) kind = Kind::elements;
    if (const auto* reduce = call.kernel->as<kernels::Reduce>(); is_gpu_ && reduce && row_dims_of(*reduce)) kind = Kind::reduction;
    if (kind != Kind::other && numel(shape_of(call)) == 0) kind = Kind::other;
    return kind == Kind::other || !is_gpu_ || has_code(call, kind) ? kind : Kind::other;
  }

  /// The number of first dimensions before those that a reduction reduces; its uses tell whether it keeps them all.
  static std::optional<int> row_dims_of(const kernels::Reduce& reduce) {
    using enum kernels::ReduceFunction;
    if (reduce.f != sum && reduce.f != max && reduce.f != min) return std::nullopt;
    int dims = reduce.x.shape.size();
    while (dims > 0 && reduce.y.shape[dims - 1] == 1) --dims;
    std::int64_t columns = 1;
    for (int d = dims; d < reduce.x.shape.size(); ++d) columns *= reduce.x.shape[d];
    if (columns < min_columns || columns > max_columns) return std::nullopt;
    return dims;
  }

  /// The uses of a call as a member; nothing if it cannot be one.
  std::optional<std::vector<Use>> uses_in(const Group& group, const Call& call) const {
    std::vector<Use> uses;
    bool fits = true;
    const bool is_dropout = call.kernel->as<kernels::Dropout>() != nullptr;  // which counts elements
    each_view(call, [&](const View& view, kernels::Access access, const Call::Place& place) {
      if (place.block == Call::Place::none || !fits) return;
      if (is_dropout && view.shape != group.shape) fits = false;
      const std::optional<Use> use = use_of(group, view, access, place);
      if (use) uses.push_back(*use);
      else fits = false;
    });
    if (!fits) return std::nullopt;
    return uses;
  }
  static bool add_uses(std::vector<Use>& all, const std::vector<Use>& more) {
    for (const Use& use : more) {
      Use* same = nullptr;
      for (Use& other : all) {
        if (other.block != use.block) continue;
        if (other.is_of(use)) same = &other;
        else if (other.is_written || use.is_written) return false;
      }
      if (same) same->is_written = same->is_written || use.is_written;
      else all.push_back(use);
    }
    return true;
  }

  Group alone(std::size_t index, Kind kind) const {
    Group group{.calls = {index}, .is_open = false, .shape = shape_of(calls_[index]), .row_dims = {}, .uses = {}, .level = 0};
    if (kind == Kind::other) return group;
    if (const auto* reduce = calls_[index].kernel->as<kernels::Reduce>()) group.row_dims = row_dims_of(*reduce);
    if (const auto uses = uses_in(group, calls_[index]); uses && add_uses(group.uses, *uses)) group.is_open = true;
    return group;
  }

  /// Both as one group, whose level is the first one's; nothing if they cannot be one.
  std::optional<Group> merged(const Group& a, const Group& b) const {
    if (!a.is_open || !b.is_open || a.calls.size() + b.calls.size() > max_calls) return std::nullopt;
    const bool has_same = a.shape == b.shape;
    if (a.row_dims && b.row_dims ? !has_same || a.row_dims != b.row_dims : !has_same && !a.row_dims && !b.row_dims) return std::nullopt;
    const Group& larger = a.row_dims || !b.row_dims ? a : b;
    Group both{.calls = {}, .is_open = true, .shape = larger.shape, .row_dims = larger.row_dims, .uses = larger.uses, .level = a.level};
    std::merge(a.calls.begin(), a.calls.end(), b.calls.begin(), b.calls.end(), std::back_inserter(both.calls));
    for (const std::size_t call : (&larger == &a ? b : a).calls) {
      const auto uses = uses_in(both, calls_[call]);
      if (!uses || !add_uses(both.uses, *uses)) return std::nullopt;
    }
    const auto operands = std::count_if(both.uses.begin(), both.uses.end(),
                                        [&](const Use& use) { return !use.is_written || blocks_[use.block].kind != Block::Kind::inner; });
    if (operands > (both.row_dims ? max_row_operands : max_operands)) return std::nullopt;
    return both;
  }

  /// Calls f(touched, is_write, first, last) for the views of a call.
  template <class F>
  void each_touch(const Call& call, F f) {
    each_view(call, [&](const View& view, kernels::Access access, const Call::Place& place) {
      if (place.block == Call::Place::none || numel(view.shape) == 0) return;
      const auto [first, last] = bytes_of(view, place);
      f(place.block, access != kernels::Access::read, first, last);
    });
  }

  std::size_t current(std::size_t group) {
    while (merged_into_[group] != group) group = merged_into_[group] = merged_into_[merged_into_[group]];
    return group;
  }
  /// Replaces a group by one of which it is a part, as `other` is.
  void replace(std::size_t group, std::size_t other, Group both) {
    merged_into_[other] = group;
    has_dependents_[group] = has_dependents_[group] || has_dependents_[other];
    groups_[other] = {};
    groups_[group] = std::move(both);
  }

  void place(std::size_t index) {
    const Call& call = calls_[index];
    const Kind kind = kind_of(call);
    std::vector<std::size_t>& before = before_[index];
    each_touch(call, [&](std::size_t block, bool is_write, std::int64_t first, std::int64_t last) {
      const auto depend = [&](const std::vector<Touch>& touches) {
        for (const Touch& touch : touches)
          if (touch.first < last && first < touch.last) before.push_back(current(group_of_[touch.call]));
      };
      depend(touched_[block].writes);
      if (is_write) depend(touched_[block].reads);
    });
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());

    const std::size_t own = groups_.size();
    groups_.push_back(alone(index, kind));
    merged_into_.push_back(own);
    has_dependents_.push_back(false);
    for (const std::size_t group : before) groups_[own].level = std::max(groups_[own].level, groups_[group].level + 1);
    if (groups_[own].is_open) {
      join_level(own, before);
      join_sharing(own, call);
      take_in(own, before);
    }
    group_of_[index] = own;
    for (const std::size_t group : before)
      if (current(group) != current(own)) has_dependents_[current(group)] = true;
    each_touch(call, [&](std::size_t block, bool is_write, std::int64_t first, std::int64_t end) {
      Touched& touched = touched_[block];
      touched.group = own;
      const bool is_whole = is_write && first <= 0 && end >= static_cast<std::int64_t>(blocks_[block].bytes);
      if (is_whole) touched.writes.clear(), touched.reads.clear();
      (is_write ? touched.writes : touched.reads).push_back({first, end, index});
    });
  }
  /// Joins the new group to all of those that it depends on which have the highest level: they do not depend on each other.
  void join_level(std::size_t own, const std::vector<std::size_t>& before) {
    std::optional<Group> all = groups_[own];
    all->level -= 1;
    std::vector<std::size_t> parts;
    for (const std::size_t group : before)
      if (groups_[group].level + 1 == groups_[own].level) {
        parts.push_back(group);
        if (all) all = merged(*all, groups_[group]);
      }
    if (!all || parts.empty()) return;
    for (const std::size_t group : parts) replace(own, group, *all);
  }
  /// Joins the new group, if it is still alone, to one that shares an operand with it, and does not depend on it.
  void join_sharing(std::size_t own, const Call& call) {
    each_touch(call, [&](std::size_t block, bool, std::int64_t, std::int64_t) {
      if (groups_[own].calls.size() > 1 || !touched_[block].group) return;
      const std::size_t other = current(*touched_[block].group);
      if (other == own || groups_[other].level < groups_[own].level) return;
      Group raised = groups_[own];
      raised.level = groups_[other].level;
      if (std::optional<Group> both = merged(raised, groups_[other])) replace(own, other, std::move(*both));
    });
  }
  /// Takes in the groups of which nothing but the new call depends: they may as well run later.
  void take_in(std::size_t own, const std::vector<std::size_t>& before) {
    for (const std::size_t group : before) {
      const std::size_t other = current(group);
      if (other == own || has_dependents_[other]) continue;
      if (std::optional<Group> both = merged(groups_[own], groups_[other])) replace(own, other, std::move(*both));
    }
  }

  /// Work of a group, but for the tensors: equal where two may have one text.
  std::string work_of(const Group& group) const {
    struct Visit : KernelCall::Visitor {
      std::string text;
      std::vector<std::pair<std::size_t, std::int64_t>> known;
      void number(double x) override { text += fmt::format(" {}", x); }
      void number(std::int64_t x) override { text += fmt::format(" {}", x); }
    } visitor;
    for (const std::size_t call : group.calls) {
      visitor.text += calls_[call].kernel->type().name();
      calls_[call].kernel->visit(visitor);
      for (const Call::Place& place : calls_[call].places) {
        const std::pair key(place.block, place.offset);
        const auto at = std::find(visitor.known.begin(), visitor.known.end(), key);
        visitor.text += fmt::format(" {}", at - visitor.known.begin());
        if (at == visitor.known.end()) visitor.known.push_back(key);
      }
    }
    return visitor.text;
  }
  /// The highest level that each group can have below those that depend on it.
  std::vector<std::size_t> last_levels() {
    std::size_t last = 0;
    for (const Group& group : groups_) last = std::max(last, group.level);
    std::vector<std::size_t> levels(groups_.size(), last);
    for (std::size_t i = 0; i < calls_.size(); ++i)
      for (const std::size_t group : before_[i])
        if (const std::size_t first = current(group), then = current(group_of_[i]); first != then)
          levels[first] = std::min(levels[first], groups_[then].level - 1);
    return levels;
  }
  /// Makes groups that do the same to other tensors one kernel, if they can have one level: an optimizer's for all parameters.
  void join_same() {
    struct Levels {
      std::size_t last, first, group;
      auto operator<=>(const Levels&) const = default;
    };
    const std::vector<std::size_t> last = last_levels();
    std::map<std::string, std::vector<Levels>> kinds;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      if (current(g) != g || !group.is_open || group.row_dims) continue;
      const bool is_flat =
          std::all_of(group.uses.begin(), group.uses.end(), [&](const Use& use) { return is_contiguous(group.shape, use.strides); });
      if (is_flat) kinds[work_of(group)].push_back({last[g], group.level, g});
    }
    for (auto& [work, kind] : kinds) {
      std::sort(kind.begin(), kind.end());
      std::optional<Levels> into;  // all that follow and begin at its last level, or before, can have that
      for (const Levels& next : kind) {
        if (!into || next.first > into->last || groups_[into->group].same.size() + 1 == max_same) {
          into = next;
          continue;
        }
        merged_into_[next.group] = into->group;
        groups_[into->group].same.push_back(std::move(groups_[next.group]));
      }
    }
  }

  /// The groups in the order of their last calls, as far as they do not depend on each other.
  std::vector<Group> ordered() {
    std::vector<std::vector<std::size_t>> after(groups_.size());
    std::vector<std::size_t> waits_for(groups_.size(), 0);
    for (std::size_t i = 0; i < calls_.size(); ++i)
      for (const std::size_t group : before_[i])
        if (const std::size_t first = current(group), then = current(group_of_[i]); first != then)
          after[first].push_back(then), ++waits_for[then];
    using Ready = std::pair<std::size_t, std::size_t>;  // last call, group
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    const auto make_ready = [&](std::size_t group) { ready.push({groups_[group].all_calls().back(), group}); };
    for (std::size_t group = 0; group < groups_.size(); ++group)
      if (waits_for[group] == 0 && current(group) == group) make_ready(group);
    std::vector<Group> result;
    while (!ready.empty()) {
      const std::size_t group = ready.top().second;
      ready.pop();
      for (const std::size_t next : after[group])
        if (--waits_for[next] == 0) make_ready(next);
      result.push_back(std::move(groups_[group]));
    }
    std::size_t placed = 0;
    for (const Group& group : result) placed += group.all_calls().size();
    if (placed != calls_.size()) fail("compile", "expected groups that do not depend on each other in a circle: this is a fault of tern");
    return result;
  }

  const std::vector<Call>& calls_;
  const std::vector<Block>& blocks_;
  bool is_gpu_;
  std::vector<Touched> touched_;                  ///< for each block
  std::vector<std::size_t> group_of_;             ///< for each call
  std::vector<std::vector<std::size_t>> before_;  ///< for each call, the groups that it depends on
  std::vector<Group> groups_;
  std::vector<std::size_t> merged_into_;  ///< for each group, the one that it is a part of, or itself
  std::vector<bool> has_dependents_;      ///< for each group: calls of others depend on it
};

}  // namespace

std::vector<std::size_t> Group::all_calls() const {
  std::vector<std::size_t> all = calls;
  for (const Group& other : same) all.insert(all.end(), other.calls.begin(), other.calls.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::int64_t Group::rows() const {
  std::int64_t rows = 1;
  for (int d = 0; d < row_dims.value_or(shape.size()); ++d) rows *= shape[d];
  return rows;
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
  const bool is_row = view.shape != group.shape;
  if (is_row && numel(view.shape) != group.rows()) return std::nullopt;
  const int dims = is_row ? view.shape.size() : *group.row_dims;
  const auto along_rows = step_of(view.shape, view.strides, 0, dims),
             along_columns = step_of(view.shape, view.strides, dims, view.shape.size());
  if (!along_rows || !along_columns) return std::nullopt;
  if (*along_columns != 0 && *along_columns != 1) return std::nullopt;
  use.strides = {*along_rows, *along_columns};
  return use;
}

std::vector<Group> find_groups(const std::vector<Call>& calls, const std::vector<Block>& blocks, bool is_gpu) {
  return Former(calls, blocks, is_gpu).formed();
}

}  // namespace tern::compiler
