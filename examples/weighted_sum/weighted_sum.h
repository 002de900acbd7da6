#pragma once
#include <cstdint>

// The kernels of a user's own op, y[i] = sum over j of x[i, j] w[j], for each device. Everything is float32 and contiguous.

/// Rows that a thread block takes together, and whose parts of the weights' gradient it adds up.
inline constexpr std::int64_t rows_per_tile = 16;
constexpr std::int64_t tiles_of(std::int64_t rows) { return (rows + rows_per_tile - 1) / rows_per_tile; }

struct Matrix {
  std::int64_t rows, columns;
};

namespace on_cpu {
void weighted_sum(Matrix size, const float* x, const float* w, float* y);
/// dx[i, j] = g[i] w[j]; dw[tile, j] = sum of g[i] x[i, j] over the rows i of a tile.
void weighted_sum_grad(Matrix size, const float* x, const float* w, const float* g, float* dx, float* dw);
}  // namespace on_cpu

/// The same, queued on a cudaStream_t.
namespace on_gpu {
void weighted_sum(Matrix size, const float* x, const float* w, float* y, void* stream);
void weighted_sum_grad(Matrix size, const float* x, const float* w, const float* g, float* dx, float* dw, void* stream);
}  // namespace on_gpu
