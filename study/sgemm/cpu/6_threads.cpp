// Rung 6: rung 5 with the blocks of rows, and the packing of b, shared out among threads.
//
// All threads use the same packed columns and each packs rows of its own. Which thread takes a block changes no sum.
#include <omp.h>

#include "ladder.h"
#include "packed.h"

namespace study::cpu {

void threads(const Product& p) {
  std::vector<float> b(static_cast<std::size_t>((broad + wide) * deep));
  // Where there are few rows, blocks are lower, so that every thread has some.
  const long share = (p.m + omp_get_max_threads() - 1) / omp_get_max_threads(),
             rows_at_once = std::min<long>(high, (share + R - 1) / R * R);
#pragma omp parallel
  {
    std::vector<float> a(static_cast<std::size_t>(high * deep));
    for (long j = 0; j < p.n; j += broad)
      for (long k = 0; k < p.k; k += deep) {
        const long columns = std::min(broad, p.n - j), depth = std::min(deep, p.k - k);
#pragma omp for
        for (long at = 0; at < columns; at += wide)
          pack_columns(p.b + k * p.n + j + at, p.n, depth, std::min(wide, columns - at), b.data() + at * depth);
      // The barrier at the end of a loop: b is packed for all, and then not used any more.
#pragma omp for schedule(dynamic)
        for (long i = 0; i < p.m; i += rows_at_once) {
          const long rows = std::min(rows_at_once, p.m - i);
          pack_rows(p.a + i * p.k + k, p.k, rows, depth, a.data());
          block(a.data(), b.data(), depth, p.c + i * p.n + j, p.n, rows, columns, k > 0);
        }
      }
  }
}

}  // namespace study::cpu
