// Rung 1: each element of c from the formula, i, j, k.
//
// The innermost loop walks down a column of b: every step reads another cache line, of which it uses 4 of 64 bytes. It also adds to one
// sum, so that each addition waits for the one before it, and may not be reordered into vectors.
#include "ladder.h"

namespace study::cpu {

void naive(const Product& p) {
  for (long i = 0; i < p.m; ++i)
    for (long j = 0; j < p.n; ++j) {
      float sum = 0;
      for (long k = 0; k < p.k; ++k) sum += p.a[i * p.k + k] * p.b[k * p.n + j];
      p.c[i * p.n + j] = sum;
    }
}

}  // namespace study::cpu
