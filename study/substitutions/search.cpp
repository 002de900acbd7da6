#include "substitutions/search.h"

#include <algorithm>
#include <chrono>

#include "backend/threads.h"
#include "substitutions/enumerate.h"
#include "substitutions/fingerprint.h"

namespace tern::substitutions {

namespace {

constexpr std::size_t most_tried = 4;

}  // namespace

std::size_t Funnel::count(Verdict verdict) const {
  return static_cast<std::size_t>(
      std::count_if(pairs.begin(), pairs.end(), [&](const Pair& pair) { return pair.judgement.verdict == verdict; }));
}

Funnel search(Terms& terms, int ops, int inputs) {
  Funnel funnel;
  const auto start = std::chrono::steady_clock::now();
  double before = 0;
  const auto lap = [&](double& seconds) {
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    seconds = now - std::exchange(before, now);
  };
  const Enumeration graphs = enumerate(terms, ops, inputs);
  funnel.graphs = graphs.graphs, funnel.terms = terms.size();
  lap(funnel.enumerate);

  const std::vector<std::uint64_t> prints = fingerprints(terms, graphs.begin[static_cast<std::size_t>(ops)]);
  std::vector<float> costs(terms.size());
  std::vector<Id> order(terms.size());
  for (Id id = 0; id < terms.size(); ++id) order[id] = id, costs[id] = static_cast<float>(terms.cost(id));
  const auto key = [&](Id id) { return std::tuple(prints[id], costs[id], id); };
  std::sort(order.begin(), order.end(), [&](Id x, Id y) { return key(x) < key(y); });
  lap(funnel.fingerprint);

  const Judge judge;
  // Terms that no right side and no part of a left one needs to be: one that a rule replaces, and 0, 1 or NaN as x - x and x / x.
  std::vector<bool> is_needless(terms.size());
  for (Id id = 0; id < terms.size(); ++id)
    is_needless[id] = (terms[id].op == Op::sub || terms[id].op == Op::div) && terms[id].x == terms[id].y;
  const auto has_needless = [&](Id id, bool is_left) {
    for (const Id part : terms.parts(id))
      if (is_needless[graphs.first[part]] && !(is_left && part == id)) return true;
    return false;
  };
  const auto first_of = [&](Id left) {
    return std::lower_bound(order.begin(), order.end(), std::tuple(prints[left], 0.0f, Id{0}),
                            [&](Id id, const auto& wanted) { return key(id) < wanted; });
  };
  const auto is_cheaper = [&](Id id, Id left) { return prints[id] == prints[left] && costs[id] < costs[left]; };
  for (std::size_t level = 1; level + 1 < graphs.begin.size(); ++level)
    for (const Id end_of_rights : {graphs.begin[level], graphs.begin.back()}) {  // first those of fewer ops, to know what is needless
      std::vector<Id> lefts;
      for (Id id = graphs.begin[level]; id < graphs.begin[level + 1]; ++id) {
        if (graphs.first[id] != id || !is_cheaper(*first_of(id), id)) continue;
        funnel.equal += end_of_rights == graphs.begin[level];
        if (!is_needless[id] && !has_needless(id, true)) lefts.push_back(id);
      }
      std::vector<std::vector<Pair>> tried(lefts.size());
      constexpr std::size_t block = 64;
      backend::run_parts(
          static_cast<int>((lefts.size() + block - 1) / block),
          [&](int part) {
            const std::size_t begin = static_cast<std::size_t>(part) * block;
            for (std::size_t i = begin; i < std::min(begin + block, lefts.size()); ++i) {
              const Id left = lefts[i];
              for (auto at = first_of(left); at != order.end() && is_cheaper(*at, left) && tried[i].size() < most_tried; ++at) {
                const bool was_tried = end_of_rights != graphs.begin[level] && *at < graphs.begin[level];
                if (*at >= end_of_rights || was_tried || (terms.inputs(*at) & ~terms.inputs(left)) != 0 || has_needless(*at, false))
                  continue;
                tried[i].push_back({left, *at, judge(terms, left, *at)});
                if (tried[i].back().judgement.verdict != Verdict::rejected) break;
              }
            }
          },
          true);
      for (std::vector<Pair>& pairs : tried)
        for (Pair& pair : pairs) {
          if (pair.judgement.verdict != Verdict::rejected) is_needless[pair.left] = true;
          funnel.pairs.push_back(std::move(pair));
        }
    }
  lap(funnel.judge);
  funnel.kept = prune(terms, funnel.pairs);
  for (Rule& rule : funnel.kept) rule.fingerprint = prints[rule.left];
  lap(funnel.prune);
  return funnel;
}

}  // namespace tern::substitutions
