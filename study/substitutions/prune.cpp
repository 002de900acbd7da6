#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_map>

#include "substitutions/search.h"

namespace tern::substitutions {

namespace {

using Binding = std::array<std::optional<Id>, input_count>;

/// Rewriting of terms by rules, wherever they fit.
class Rewriter {
 public:
  explicit Rewriter(Terms& terms) : terms_(terms) {}

  void add(const Rule& rule) {
    rules_[static_cast<std::size_t>(terms_[rule.left].op)].push_back(rule);
    normal_.clear();
  }

  /// The term after all rules that make it cheaper.
  Id normal(Id id) {
    if (is_input(terms_[id].op)) return id;
    // Until the end it is its own: a part that costs less may cost more within the whole, of which others are parts as well.
    if (const auto [at, is_new] = normal_.try_emplace(id, id); !is_new) return at->second;
    Node node = terms_[id];
    node.x = normal(node.x);
    if (is_binary(node.op)) node.y = normal(node.y);
    Id result = terms_.add(node);
    for (const Rule& rule : rules_[static_cast<std::size_t>(node.op)])
      if (const auto other = applied(rule, result)) {
        result = normal(*other);
        break;
      }
    return normal_[id] = result;
  }

 private:
  std::optional<Type> type(Id id) const { return terms_.type(id, square(8)); }

  /// The right side in the place of a term that is the left one.
  std::optional<Id> applied(const Rule& rule, Id id) {
    Binding binding;
    if (!fits(rule.left, id, binding)) return std::nullopt;
    const Id result = instance(rule.right, binding);
    return type(result) == type(id) && terms_.cost(result) < terms_.cost(id) ? std::optional(result) : std::nullopt;
  }
  bool fits(Id pattern, Id id, Binding& binding) const {
    const Node &p = terms_[pattern], &node = terms_[id];
    if (is_input(p.op)) {
      if (!binding[pattern]) {
        const Type of = type(id).value();
        if (of.is_wide || (p.op == Op::v && of.columns != 1) || (p.op == Op::w && of.rows != 1)) return false;
        binding[pattern] = id;
      }
      return binding[pattern] == id;
    }
    if (p.op != node.op || std::bit_cast<std::uint64_t>(p.number) != std::bit_cast<std::uint64_t>(node.number)) return false;
    if (!is_binary(p.op)) return fits(p.x, node.x, binding);
    const Binding before = binding;
    if (fits(p.x, node.x, binding) && fits(p.y, node.y, binding)) return true;
    binding = before;
    return commutes(p.op) && fits(p.x, node.y, binding) && fits(p.y, node.x, binding);
  }
  Id instance(Id pattern, const Binding& binding) {
    if (is_input(terms_[pattern].op)) return *binding[pattern];
    Node node = terms_[pattern];
    node.x = instance(node.x, binding);
    if (is_binary(node.op)) node.y = instance(node.y, binding);
    return terms_.add(node);
  }

  Terms& terms_;
  std::array<std::vector<Rule>, op_count> rules_;  ///< by the ops of their left sides
  std::unordered_map<Id, Id> normal_;              ///< what normal() has found
};

}  // namespace

std::vector<Rule> prune(Terms& terms, const std::vector<Pair>& pairs) {
  std::vector<const Pair*> order;
  for (const Pair& pair : pairs)
    if (pair.judgement.verdict != Verdict::rejected) order.push_back(&pair);
  const auto key = [&](const Pair* pair) {
    return std::tuple(terms.ops(pair->left), std::popcount(terms.inputs(pair->left) >> 3), terms.cost(pair->left), pair->left);
  };
  std::sort(order.begin(), order.end(), [&](const Pair* x, const Pair* y) { return key(x) < key(y); });
  Rewriter rewriter(terms);
  std::vector<Rule> kept;
  for (const Pair* pair : order) {
    const auto& [verdict, error, reason] = pair->judgement;
    const Id left = rewriter.normal(pair->left);
    if (left == rewriter.normal(pair->right) || terms.cost(left) <= terms.cost(pair->right)) continue;
    kept.push_back({pair->left, pair->right, verdict, 0, error, 0});
    rewriter.add(kept.back());
  }
  return kept;
}

}  // namespace tern::substitutions
