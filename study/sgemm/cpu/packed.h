#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

// What rungs 5 and 6 share: panels, in the order in which the innermost loop reads them, and that loop. Goto & van de Geijn, "Anatomy of
// high-performance matrix multiplication", TOMS 2008.
namespace study::cpu {

#if defined(__AVX512F__)
inline constexpr int bytes = 64, R = 14;  // 28 of 32 registers
#elif defined(__AVX__)
inline constexpr int bytes = 32, R = 6;  // 12 of 16
#else
inline constexpr int bytes = 16, R = 6;
#endif
inline constexpr int lanes = bytes / 4, V = 2;
inline constexpr long wide = V * lanes;
/// A panel of b, deep x wide, stays in the first-level cache; high x deep of a in the second; deep x broad of b in the third.
inline constexpr long deep = 256, high = 20 * R, broad = 2048;
typedef float Vector __attribute__((vector_size(bytes)));

/// Panels of R rows of a (rows, depth), each by step of k, zeros below the last row.
inline void pack_rows(const float* a, long stride, long rows, long depth, float* to) {
  for (long i = 0; i < rows; i += R)
    for (long k = 0; k < depth; ++k)
      for (int r = 0; r < R; ++r) *to++ = i + r < rows ? a[(i + r) * stride + k] : 0;
}

/// Panels of `wide` columns of b (depth, columns), each by step of k, zeros beyond the last column.
inline void pack_columns(const float* b, long stride, long depth, long columns, float* to) {
  for (long j = 0; j < columns; j += wide)
    for (long k = 0; k < depth; ++k, to += wide) {
      const long n = std::min(wide, columns - j);
      std::copy_n(b + k * stride + j, n, to);
      std::fill(to + n, to + wide, 0.0f);
    }
}

/// c (rows <= R, columns <= wide) = or += a panel of a times a panel of b. Every tile is computed whole; what lies outside of c is left
/// out.
inline void tile(const float* a, const float* b, long depth, float* c, long stride, long rows, long columns, bool add) {
  Vector sum[R][V] = {};
  for (long k = 0; k < depth; ++k, a += R, b += wide) {
    Vector right[V];
    std::memcpy(right, b, sizeof right);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[r][v] += a[r] * right[v];
  }
  if (rows == R && columns == wide) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        Vector old{};
        if (add) std::memcpy(&old, c + r * stride + v * lanes, sizeof old);
        old += sum[r][v];
        std::memcpy(c + r * stride + v * lanes, &old, sizeof old);
      }
    return;
  }
  float all[R * wide];
  std::memcpy(all, sum, sizeof all);
  for (long r = 0; r < rows; ++r)
    for (long j = 0; j < columns; ++j) c[r * stride + j] = all[r * wide + j] + (add ? c[r * stride + j] : 0);
}

/// A block of packed rows times a block of packed columns, into c.
inline void block(const float* a, const float* b, long depth, float* c, long stride, long rows, long columns, bool add) {
  for (long j = 0; j < columns; j += wide)
    for (long i = 0; i < rows; i += R)
      tile(a + i * depth, b + j * depth, depth, c + i * stride + j, stride, std::min<long>(R, rows - i), std::min(wide, columns - j), add);
}

}  // namespace study::cpu
