// oneDNN's product of float32, in builds with oneDNN, against a sum in float64.
#include "ops/cpu/onednn.h"

#include "kernel_array.h"
#include "skip.h"

using namespace tern;
using namespace tern::test;

TEST_CASE("oneDNN's product of float32 is that of float64, rounded") {
  const std::int64_t m = 37, n = 53, k = 129;
  for (const bool a_columns : {false, true})
    for (const bool b_columns : {false, true})
      for (const bool add : {false, true}) {
        Array a({m, k + 2}), b({k, n + 5}), c({m, n + 3});
        a.random(-1, 1), b.random(-1, 1, 2), c.random(-1, 1, 3);
        // A transposed operand is the same memory, (k, m) and (n, k), with contiguous columns.
        const gemm::Matrix<const float> left{a.view.as<const float>(), a_columns ? 1 : k + 2, a_columns ? m : 1};
        const gemm::Matrix<const float> right{b.view.as<const float>(), b_columns ? 1 : n + 5, b_columns ? k : 1};
        Array y = c;
        if (!onednn::multiply({m, n, k}, 0.5f, left, right, y.view.as<float>(), n + 3, add)) return skip("this build has no oneDNN");
        CAPTURE(a_columns, b_columns, add);
        check(
            y,
            [&](std::int64_t at) {
              const std::int64_t i = at / (n + 3), j = at % (n + 3);
              if (j >= n) return c[at];
              double sum = 0;
              for (std::int64_t d = 0; d < k; ++d) sum += double(*left.at(i, d).data) * *right.at(d, j).data;
              return 0.5 * sum + (add ? c[at] : 0);
            },
            8);
      }
}
