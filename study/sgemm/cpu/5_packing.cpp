// Rung 5: both operands are copied into panels before they are used, in the order in which they are used (packed.h).
//
// The innermost loop then reads two streams without gaps: no page and no set of the cache more than it needs, and edges are padded with
// zeros. A copy costs 1 / n and 1 / m of the multiplications. Three levels of tiles suit the three caches.
#include "ladder.h"
#include "packed.h"

namespace study::cpu {

void packing(const Product& p) {
  std::vector<float> a(static_cast<std::size_t>(high * deep)), b(static_cast<std::size_t>((broad + wide) * deep));
  for (long j = 0; j < p.n; j += broad)
    for (long k = 0; k < p.k; k += deep) {
      const long columns = std::min(broad, p.n - j), depth = std::min(deep, p.k - k);
      pack_columns(p.b + k * p.n + j, p.n, depth, columns, b.data());
      for (long i = 0; i < p.m; i += high) {
        const long rows = std::min(high, p.m - i);
        pack_rows(p.a + i * p.k + k, p.k, rows, depth, a.data());
        block(a.data(), b.data(), depth, p.c + i * p.n + j, p.n, rows, columns, k > 0);
      }
    }
}

}  // namespace study::cpu
