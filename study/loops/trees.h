#pragma once
#include <array>
#include <span>
#include <vector>

namespace study::loops {

/// Boosted regression trees: each is fitted to what those before it leave of the targets. (Friedman, "Greedy function approximation: a
/// gradient boosting machine", 2001.)
class Trees {
 public:
  static constexpr int count = 64, depth = 3;

  /// Predicts 0.
  Trees() = default;
  /// Least squares of one target a row; all rows have as many numbers.
  Trees(const std::vector<std::vector<double>>& rows, const std::vector<double>& targets);

  double predict(std::span<const double> row) const;

 private:
  static constexpr std::size_t nodes = (1 << depth) - 1;
  /// Node n has the children 2 n + 1, where the feature is at most the limit, and 2 n + 2; the leaves stand behind the nodes.
  struct Tree {
    std::array<std::size_t, nodes> feature{};
    std::array<double, nodes> limit{};
    std::array<double, nodes + 1> leaf{};
  };
  static std::size_t leaf_of(const Tree& tree, std::span<const double> row, int levels);

  double mean_ = 0;
  std::vector<Tree> trees_;
};

}  // namespace study::loops
