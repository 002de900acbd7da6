// A row's first element, from which its sums are counted, may lie far from all the others: their difference must not take their digits.
#include <algorithm>
#include <cmath>
#include <vector>

#include "catch.h"
#include "ops/factory.h"
#include "ops/normalize.h"

using namespace tern;

TEST_CASE("A first element far from the others takes no digits from them") {
  for (const std::int64_t count : {33, 1000, 4096}) {
    std::vector<float> row;
    for (std::int64_t i = 0; i < count; ++i) row.push_back(i == 0 ? 3e4f : static_cast<float>(std::sin(0.1 * static_cast<double>(i))));
    double mean = 0, variance = 0;
    for (float x : row) mean += x / static_cast<double>(count);
    for (float x : row) variance += (x - mean) * (x - mean) / static_cast<double>(count);
    const Tensor y = fused_layer_norm(Tensor::from(row, {1, count}), ones({count}), zeros({count}));
    const std::vector<float> found = y.to_vector<float>();
    double largest = 0;  // relative to the elements after the first
    for (std::size_t i = 1; i < row.size(); ++i) {
      const double wanted = (row[i] - mean) / std::sqrt(variance + 1e-5);
      largest = std::max(largest, std::abs(found[i] - wanted) / std::abs(wanted));
    }
    INFO(count << " elements");
    CHECK(largest < 2e-6);
  }
}
