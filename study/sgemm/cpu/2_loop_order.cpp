// Rung 2: the same loops as i, k, j.
//
// The innermost loop now walks along rows of b and c: whole cache lines, and sums that do not depend on each other, which the compiler
// makes vectors of. A step still loads and stores c for one multiplication each, and all of b passes through the cache for each row of c.
#include <algorithm>

#include "ladder.h"

namespace study::cpu {

void loop_order(const Product& p) {
  std::fill_n(p.c, p.m * p.n, 0.0f);
  for (long i = 0; i < p.m; ++i)
    for (long k = 0; k < p.k; ++k) {
      const float left = p.a[i * p.k + k];
      const float* const right = p.b + k * p.n;
      float* const sums = p.c + i * p.n;
#pragma omp simd
      for (long j = 0; j < p.n; ++j) sums[j] += left * right[j];
    }
}

}  // namespace study::cpu
