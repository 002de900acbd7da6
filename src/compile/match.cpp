#include "compile/match.h"

#include <algorithm>
#include <numeric>

#include "compile/trace.h"

namespace tern::compiler {

namespace {

/// Notes that `from` stands for `to`; false if it stands for something else.
template <class T>
bool stands_for(std::map<T, T>& map, T from, T to) {
  return map.try_emplace(from, to).first->second == to;
}

}  // namespace

std::vector<std::vector<std::size_t>> uses_of(const std::vector<Call>& calls, std::size_t blocks) {
  std::vector<std::vector<std::size_t>> uses(blocks);
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (const Call::Place& place : calls[i].places)
      if (place.block != Call::Place::none && (uses[place.block].empty() || uses[place.block].back() != i)) uses[place.block].push_back(i);
  return uses;
}

Match::Part Match::part(std::size_t block, const Shape& sizes_of_pattern) const {
  const Binding& binding = bindings[block];
  Part result{binding.of_program, {binding.block, binding.offset}};
  result.view.shape = {};
  result.view.strides = {};
  for (const std::int64_t size : sizes_of_pattern)
    for (int d = 0; d < binding.of_pattern.dims(); ++d)
      if (binding.of_pattern.shape[d] == size) {
        result.view.shape.push_back(binding.of_program.shape[d]);
        result.view.strides.push_back(binding.of_program.strides[d]);
      }
  return result;
}

Pattern::Pattern(const std::function<Tensors(const Tensors&)>& f, const Tensors& arguments, std::vector<double> free)
    : free_(std::move(free)) {
  const Generator before = context().generator;
  Trace trace(arguments, arguments[0].device(), Grouping::none);
  program_ = trace.finish(f(trace.inputs()));
  context().generator = before;
  const auto block_of = [&](const Tensor& x) {
    const auto& blocks = program_.blocks();
    return static_cast<std::size_t>(
        std::find_if(blocks.begin(), blocks.end(), [&](const Block& block) { return block.memory == x.impl().storage; }) - blocks.begin());
  };
  for (const Tensor& x : program_.inputs()) arguments_.push_back(block_of(x));
  for (const Tensor& x : program_.results()) results_.push_back(block_of(x));
  order_calls();
}

void Pattern::order_calls() {
  std::vector<bool> is_known(program_.blocks().size());
  std::vector<std::size_t> rest(size());
  std::iota(rest.begin(), rest.end(), std::size_t{0});
  const auto is_joined = [&](std::size_t call) {
    return std::ranges::any_of(calls()[call].places,
                               [&](const Call::Place& place) { return place.block != Call::Place::none && is_known[place.block]; });
  };
  while (!rest.empty()) {
    const auto joined = std::ranges::find_if(rest, is_joined), next = joined == rest.end() ? rest.begin() : joined;
    for (const Call::Place& place : calls()[*next].places)
      if (place.block != Call::Place::none) is_known[place.block] = true;
    order_.push_back(*next);
    rest.erase(next);
  }
}

std::size_t Pattern::writer(std::size_t block) const {
  const std::vector<Call>& calls = program_.calls();
  return static_cast<std::size_t>(std::ranges::find_if(calls, [&](const Call& call) { return writes(call, block); }) - calls.begin());
}

bool Pattern::is_argument(std::size_t block) const { return std::ranges::find(arguments_, block) != arguments_.end(); }
bool Pattern::is_inside(std::size_t block) const { return !is_argument(block) && std::ranges::find(results_, block) == results_.end(); }

struct Pattern::Search {
  const Pattern& pattern;
  const std::vector<Call>& calls;
  const std::vector<std::vector<std::size_t>>& uses;
  Match match;
  bool has_draws = false;

  /// The rest of the pattern, from a call of its order on.
  bool finds(std::size_t at) {
    if (at == pattern.size()) return true;
    const Call& call = pattern.calls()[pattern.order_[at]];
    for (const Call::Place& place : call.places) {
      if (place.block == Call::Place::none || match.bindings[place.block].block == Call::Place::none) continue;
      for (const std::size_t candidate : uses[match.bindings[place.block].block])
        if (tries(at, candidate)) return true;
      return false;
    }
    return false;
  }

  /// With a call of the program in the place of one of the pattern; as before if that does not fit.
  bool tries(std::size_t at, std::size_t candidate) {
    if (std::find(match.calls.begin(), match.calls.end(), candidate) != match.calls.end()) return false;
    const Match before = match;
    const bool had_draws = has_draws;
    match.calls[pattern.order_[at]] = candidate;
    if (fits(pattern.calls()[pattern.order_[at]], calls[candidate]) && finds(at + 1)) return true;
    match = before;
    has_draws = had_draws;
    return false;
  }

  bool fits(const Call& a, const Call& b) {
    if (a.kernel->type() != b.kernel->type()) return false;
    const Arguments of_pattern(*a.kernel), of_program(*b.kernel);
    if (of_pattern.views.size() != of_program.views.size() || of_pattern.numbers.size() != of_program.numbers.size() ||
        of_pattern.states.size() != of_program.states.size())
      return false;
    for (std::size_t i = 0; i < of_pattern.numbers.size(); ++i) {
      const auto &x = of_pattern.numbers[i], &y = of_program.numbers[i];
      const double* const number = std::get_if<double>(&x);
      const bool is_free = number && std::ranges::find(pattern.free_, *number) != pattern.free_.end();
      if (x.index() != y.index() || (is_free ? !stands_for(match.numbers, *number, std::get<double>(y)) : x != y)) return false;
    }
    for (const PhiloxState* const state : of_program.states) {
      if (!std::exchange(has_draws, true)) match.draws = *state;
      if (state->seed != match.draws.seed || state->offset != match.draws.offset || state->base != match.draws.base) return false;
    }
    for (std::size_t i = 0; i < of_pattern.views.size(); ++i)
      if (!fits(of_pattern.views[i], a.places[i], of_program.views[i], b.places[i])) return false;
    return true;
  }

  bool fits(const View& a, const Call::Place& at, const View& b, const Call::Place& place) {
    if ((at.block == Call::Place::none) != (place.block == Call::Place::none)) return false;
    if (at.block == Call::Place::none) return true;
    if (a.dtype != b.dtype || a.dims() != b.dims() || at.offset != 0) return false;
    Match::Binding& binding = match.bindings[at.block];
    const bool is_new = binding.block == Call::Place::none;
    if (is_new) binding = {place.block, place.offset, a, b, {}};
    if (binding.block != place.block || binding.offset != place.offset) return false;
    for (int d = 0; d < a.dims(); ++d) {
      if (a.shape[d] == 1 ? b.shape[d] != 1 : !stands_for(match.sizes, a.shape[d], b.shape[d])) return false;
      if (b.shape[d] == 1) continue;
      if (!stands_for(binding.strides, a.strides[d], b.strides[d])) return false;
    }
    return true;
  }
};

std::optional<Match> Pattern::match(const std::vector<Call>& calls, const std::vector<std::vector<std::size_t>>& uses,
                                    std::size_t first) const {
  Search search{*this, calls, uses, {}, false};
  search.match.bindings.resize(program_.blocks().size());
  search.match.calls.resize(size(), calls.size());
  if (!search.tries(0, first)) return std::nullopt;
  return std::move(search.match);
}

}  // namespace tern::compiler
