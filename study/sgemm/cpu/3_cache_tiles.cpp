// Rung 3: rung 2 within tiles of b that stay in the second-level cache.
//
// A tile of 128 x 512 elements, 256 KiB, is read from memory once and then serves all rows of c: b passes through the cache once, not m
// times. The row of c that is summed, 2 KiB, stays in the first-level cache, but still goes there and back for each k.
#include <algorithm>

#include "ladder.h"

namespace study::cpu {

void cache_tiles(const Product& p) {
  constexpr long depth = 128, width = 512;
  std::fill_n(p.c, p.m * p.n, 0.0f);
  for (long first_j = 0; first_j < p.n; first_j += width)
    for (long first_k = 0; first_k < p.k; first_k += depth) {
      const long n = std::min(width, p.n - first_j), last_k = std::min(first_k + depth, p.k);
      for (long i = 0; i < p.m; ++i) {
        float* const sums = p.c + i * p.n + first_j;
        for (long k = first_k; k < last_k; ++k) {
          const float left = p.a[i * p.k + k];
          const float* const right = p.b + k * p.n + first_j;
#pragma omp simd
          for (long j = 0; j < n; ++j) sums[j] += left * right[j];
        }
      }
    }
}

}  // namespace study::cpu
