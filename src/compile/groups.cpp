#include "compile/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <queue>
#include <string>

#include "tensor/overlap.h"

namespace tern::compiler {

namespace {

constexpr std::size_t max_same = 64;

/// Calls f(block, is_write, window) for the views of a call.
template <class F>
void each_touch(const Call& call, F f) {
  each_view(call, [&](const View& view, kernels::Access access, const Call::Place& place) {
    if (place.block == Call::Place::none || numel(view.shape) == 0) return;
    f(place.block, access != kernels::Access::read, window_of(view, place));
  });
}

/// Forms groups: see Note [Groups].
class Former {
 public:
  Former(const std::vector<Call>& calls, const std::vector<Block>& blocks, bool is_gpu)
      : calls_(calls),
        blocks_(blocks),
        is_gpu_(is_gpu),
        last_group_(blocks.size()),
        group_of_(calls.size()),
        before_(dependences(calls, blocks)) {}

  std::vector<Group> formed() {
    for (std::size_t i = 0; i < calls_.size(); ++i) place(i);
    if (is_gpu_) join_same();
    return ordered();
  }

 private:
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
    std::vector<std::size_t> before;  // groups
    for (const std::size_t other : before_[index]) before.push_back(current(group_of_[other]));
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());

    const std::size_t own = groups_.size();
    groups_.push_back(alone(index, call, is_gpu_));
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
    each_touch(call, [&](std::size_t block, bool, const View&) { last_group_[block] = own; });
  }
  /// Joins the new group to all of those that it depends on which have the highest level: they do not depend on each other.
  void join_level(std::size_t own, const std::vector<std::size_t>& before) {
    std::optional<Group> all = groups_[own];
    all->level -= 1;
    std::vector<std::size_t> parts;
    for (const std::size_t group : before)
      if (groups_[group].level + 1 == groups_[own].level) {
        parts.push_back(group);
        if (all) all = merged(*all, groups_[group], calls_, blocks_);
      }
    if (!all || parts.empty()) return;
    for (const std::size_t group : parts) replace(own, group, *all);
  }
  /// Joins the new group, if it is still alone, to one that shares an operand with it, and does not depend on it.
  void join_sharing(std::size_t own, const Call& call) {
    each_touch(call, [&](std::size_t block, bool, const View&) {
      if (groups_[own].calls.size() > 1 || !last_group_[block]) return;
      const std::size_t other = current(*last_group_[block]);
      if (other == own || groups_[other].level < groups_[own].level) return;
      Group raised = groups_[own];
      raised.level = groups_[other].level;
      if (std::optional<Group> both = merged(raised, groups_[other], calls_, blocks_)) replace(own, other, std::move(*both));
    });
  }
  /// Takes in the groups of which nothing but the new call depends: they may as well run later.
  void take_in(std::size_t own, const std::vector<std::size_t>& before) {
    for (const std::size_t group : before) {
      const std::size_t other = current(group);
      if (other == own || has_dependents_[other]) continue;
      if (std::optional<Group> both = merged(groups_[own], groups_[other], calls_, blocks_)) replace(own, other, std::move(*both));
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
      for (const std::size_t other : before_[i])
        if (const std::size_t first = current(group_of_[other]), then = current(group_of_[i]); first != then)
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
    for (std::size_t& group : group_of_) group = current(group);
    std::vector<Group> result;
    for (const std::size_t group : in_order(before_, group_of_)) result.push_back(std::move(groups_[group]));
    return result;
  }

  const std::vector<Call>& calls_;
  const std::vector<Block>& blocks_;
  bool is_gpu_;
  std::vector<std::optional<std::size_t>> last_group_;  ///< that touched a block, for each
  std::vector<std::size_t> group_of_;                   ///< for each call
  std::vector<std::vector<std::size_t>> before_;        ///< for each call those that it depends on
  std::vector<Group> groups_;
  std::vector<std::size_t> merged_into_;  ///< for each group, the one that it is a part of, or itself
  std::vector<bool> has_dependents_;      ///< for each group: calls of others depend on it
};

}  // namespace

std::vector<std::vector<std::size_t>> dependences(const std::vector<Call>& calls, const std::vector<Block>& blocks) {
  struct Touch {
    View window;  // whose address is an offset in the block
    std::size_t call;
  };
  struct Touches {  // since the block was last written as a whole
    std::vector<Touch> writes, reads;
  };
  std::vector<Touches> touched(blocks.size());
  std::vector<std::vector<std::size_t>> all(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    std::vector<std::size_t>& before = all[i];
    each_touch(calls[i], [&](std::size_t block, bool is_write, const View& window) {
      const auto depend = [&](const std::vector<Touch>& touches) {
        for (const Touch& touch : touches)
          if (overlap(touch.window, window) != Overlap::none) before.push_back(touch.call);
      };
      depend(touched[block].writes);
      if (is_write) depend(touched[block].reads);
    });
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    each_touch(calls[i], [&](std::size_t block, bool is_write, const View& window) {
      Touches& touches = touched[block];
      if (is_write && window.numel() * static_cast<std::int64_t>(size_of(window.dtype)) >= static_cast<std::int64_t>(blocks[block].bytes))
        touches.writes.clear(), touches.reads.clear();
      (is_write ? touches.writes : touches.reads).push_back({window, i});
    });
  }
  return all;
}

std::vector<std::size_t> in_order(const std::vector<std::vector<std::size_t>>& before, const std::vector<std::size_t>& node_of) {
  std::vector<std::vector<std::size_t>> after(node_of.size());
  std::vector<std::size_t> waits_for(node_of.size(), 0), last(node_of.size(), 0);
  std::size_t count = 0;
  for (std::size_t i = 0; i < node_of.size(); ++i) {
    const std::size_t node = node_of[i];
    for (const std::size_t other : before[i])
      if (node_of[other] != node) after[node_of[other]].push_back(node), ++waits_for[node];
    last[node] = i;
  }
  using Ready = std::pair<std::size_t, std::size_t>;  // last call, node
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (std::size_t i = 0; i < node_of.size(); ++i)
    if (const std::size_t node = node_of[i]; last[node] == i && ++count && waits_for[node] == 0) ready.push({i, node});
  std::vector<std::size_t> order;
  while (!ready.empty()) {
    order.push_back(ready.top().second);
    ready.pop();
    for (const std::size_t next : after[order.back()])
      if (--waits_for[next] == 0) ready.push({last[next], next});
  }
  if (order.size() != count) fail("compile", "expected calls that do not depend on each other in a circle: this is a fault of tern");
  return order;
}

std::vector<Group> find_groups(const std::vector<Call>& calls, const std::vector<Block>& blocks, bool is_gpu) {
  return Former(calls, blocks, is_gpu).formed();
}

}  // namespace tern::compiler
