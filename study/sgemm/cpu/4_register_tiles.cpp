// Rung 4: a tile of c stays in vector registers while it is summed.
//
// A step of k reads V = 2 vectors of b and R elements of a, and makes R x V vector multiplications with them: loads and stores of c are
// gone from the loop, and R x V sums that do not depend on each other keep the units busy, whose result comes after 4 cycles. Rows of b
// lie far apart: each step needs another page, and a power of two between them puts them all in few sets of the cache.
#include <algorithm>
#include <cstring>

#include "ladder.h"

namespace study::cpu {

namespace {

#if defined(__AVX512F__)
constexpr int bytes = 64, R = 14;  // 28 of 32 registers
#elif defined(__AVX__)
constexpr int bytes = 32, R = 6;  // 12 of 16
#else
constexpr int bytes = 16, R = 6;
#endif
constexpr int lanes = bytes / 4, V = 2;
typedef float Vector __attribute__((vector_size(bytes)));

Vector load(const float* from) {
  Vector x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

/// A whole tile (R, V lanes) of c += a b over `depth` steps.
void tile(const float* a, long a_stride, const float* b, long b_stride, float* c, long c_stride, long depth) {
  Vector sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[r][v] = load(c + r * c_stride + v * lanes);
  for (long k = 0; k < depth; ++k) {
    const Vector right[V] = {load(b + k * b_stride), load(b + k * b_stride + lanes)};
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[r][v] += a[r * a_stride + k] * right[v];
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) std::memcpy(c + r * c_stride + v * lanes, &sum[r][v], sizeof(Vector));
}

/// A tile at the edge, of fewer rows or columns.
void edge(const float* a, long a_stride, const float* b, long b_stride, float* c, long c_stride, long depth, long rows, long columns) {
  for (long r = 0; r < rows; ++r)
    for (long k = 0; k < depth; ++k)
      for (long j = 0; j < columns; ++j) c[r * c_stride + j] += a[r * a_stride + k] * b[k * b_stride + j];
}

}  // namespace

void register_tiles(const Product& p) {
  constexpr long deep = 256, wide = V * lanes;
  std::fill_n(p.c, p.m * p.n, 0.0f);
  for (long k = 0; k < p.k; k += deep)
    for (long j = 0; j < p.n; j += wide)
      for (long i = 0; i < p.m; i += R) {
        const float *const a = p.a + i * p.k + k, *const b = p.b + k * p.n + j;
        float* const c = p.c + i * p.n + j;
        const long depth = std::min(deep, p.k - k), rows = std::min<long>(R, p.m - i), columns = std::min(wide, p.n - j);
        if (rows == R && columns == wide) tile(a, p.k, b, p.n, c, p.n, depth);
        else edge(a, p.k, b, p.n, c, p.n, depth, rows, columns);
      }
}

}  // namespace study::cpu
