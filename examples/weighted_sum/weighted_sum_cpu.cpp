#include <algorithm>

#include "weighted_sum.h"

void on_cpu::weighted_sum(Matrix size, const float* x, const float* w, float* y) {
  for (std::int64_t i = 0; i < size.rows; ++i) {
    float sum = 0;
    for (std::int64_t j = 0; j < size.columns; ++j) sum += x[i * size.columns + j] * w[j];
    y[i] = sum;
  }
}

void on_cpu::weighted_sum_grad(Matrix size, const float* x, const float* w, const float* g, float* dx, float* dw) {
  std::fill_n(dw, tiles_of(size.rows) * size.columns, 0.0f);
  for (std::int64_t i = 0; i < size.rows; ++i)
    for (std::int64_t j = 0; j < size.columns; ++j) {
      dx[i * size.columns + j] = g[i] * w[j];
      dw[i / rows_per_tile * size.columns + j] += g[i] * x[i * size.columns + j];
    }
}
