#include "trees.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace study::loops {

namespace {

constexpr double rate = 0.2;         // of a tree's leaves that is taken
constexpr std::size_t min_rows = 4;  // of a leaf

/// Rows of a node, and the sum of what is left of their targets.
struct Part {
  double sum = 0;
  std::size_t rows = 0;
  double gain() const { return rows == 0 ? 0 : sum * sum / static_cast<double>(rows); }
};

}  // namespace

std::size_t Trees::leaf_of(const Tree& tree, std::span<const double> row, int levels) {
  std::size_t node = 0;
  for (int level = 0; level < levels; ++level) node = 2 * node + (row[tree.feature[node]] <= tree.limit[node] ? 1 : 2);
  return node;
}

Trees::Trees(const std::vector<std::vector<double>>& rows, const std::vector<double>& targets) {
  if (rows.empty()) return;
  const std::size_t features = rows[0].size();
  mean_ = std::accumulate(targets.begin(), targets.end(), 0.0) / static_cast<double>(rows.size());
  std::vector<std::vector<std::size_t>> order(features, std::vector<std::size_t>(rows.size()));
  for (std::size_t f = 0; f < features; ++f) {
    std::iota(order[f].begin(), order[f].end(), std::size_t{0});
    std::stable_sort(order[f].begin(), order[f].end(), [&](std::size_t a, std::size_t b) { return rows[a][f] < rows[b][f]; });
  }
  std::vector<double> left(targets);
  for (double& x : left) x -= mean_;
  for (int t = 0; t < count; ++t) {
    Tree tree;
    tree.limit.fill(std::numeric_limits<double>::infinity());  // without a split all rows go one way
    std::vector<std::size_t> node(rows.size());
    for (int level = 0; level <= depth; ++level) {
      for (std::size_t i = 0; i < rows.size(); ++i) node[i] = leaf_of(tree, rows[i], level);
      std::array<Part, 2 * nodes + 1> all;
      for (std::size_t i = 0; i < rows.size(); ++i) all[node[i]].sum += left[i], ++all[node[i]].rows;
      if (level == depth) {
        for (std::size_t i = 0; i <= nodes; ++i)
          tree.leaf[i] = rate * all[nodes + i].sum / static_cast<double>(std::max<std::size_t>(all[nodes + i].rows, 1));
        break;
      }
      std::array<double, nodes> best{};
      for (std::size_t f = 0; f < features; ++f) {
        std::array<Part, nodes> below;
        std::array<double, nodes> last{};
        for (const std::size_t i : order[f]) {
          const std::size_t n = node[i];
          const double x = rows[i][f];
          const Part& low = below[n];
          const Part high{all[n].sum - low.sum, all[n].rows - low.rows};
          if (low.rows >= min_rows && high.rows >= min_rows && x > last[n])
            if (const double gain = low.gain() + high.gain() - all[n].gain(); gain > best[n] + 1e-12) {
              best[n] = gain;
              tree.feature[n] = f;
              tree.limit[n] = (x + last[n]) / 2;
            }
          below[n].sum += left[i], ++below[n].rows;
          last[n] = x;
        }
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) left[i] -= tree.leaf[node[i] - nodes];
    trees_.push_back(tree);
  }
}

double Trees::predict(std::span<const double> row) const {
  double sum = mean_;
  for (const Tree& tree : trees_) sum += tree.leaf[leaf_of(tree, row, depth) - nodes];
  return sum;
}

}  // namespace study::loops
