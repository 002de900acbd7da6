#include "compile/history.h"

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/node.h"
#include "backend/error.h"

namespace tern::compiler {

History history_of(const Tensors& results, const Tensors& arguments, std::uint64_t begin) {
  History history;
  std::unordered_set<const Node*> seen;
  std::unordered_map<const Node*, std::size_t> ends;
  std::vector<Ref<Node>> roots;  // a leaf that only results are has no node otherwise
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (const Ref<Node>& node = roots.emplace_back(edge_of(arguments[i]).node)) ends.emplace(node.get(), i);
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::vector<const Node*> path, sources;
    std::unordered_set<const Node*> new_ones;
    bool is_free = false;
    const auto visit = [&](const Ref<Node>& node) {
      if (node && !seen.contains(node.get()) && new_ones.insert(node.get()).second) path.push_back(node.get());
    };
    const Ref<Node> root = roots.emplace_back(edge_of(results[i]).node);
    visit(root);
    while (!path.empty()) {
      const Node* const node = path.back();
      path.pop_back();
      is_free |= node->released;
      if (ends.contains(node) || node->leaf()) {
        sources.push_back(node);
        continue;
      }
      if (node->sequence < begin)
        fail("compile", std::string("expected results of arguments and leaves but got a history from outside, of ") + node->op +
                            ": pass its tensor as an argument");
      for (const Edge& edge : node->next) visit(edge.node);
    }
    if (!root || is_free) continue;
    seen.merge(new_ones);
    history.results.push_back(i);
    for (const Node* const node : sources) {
      const auto argument = ends.find(node);
      history.sources.push_back(argument != ends.end() ? Source{argument->second, {}} : Source{0, *node->leaf()});
    }
  }
  return history;
}

}  // namespace tern::compiler
