#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// Batch normalization (ops/normalize.h) on the CPU, over contiguous views of one dtype, f32 or f64: x and y (B, C, L); gamma, beta, mean,
/// variance and rstd = 1 / sqrt(variance + eps) (C); gamma and beta may have no data. Elsewhere it is composed of other ops.
void batch_norm(Cpu, const View& x, const View& gamma, const View& beta, double eps, const View& y, const View& mean, const View& variance,
                const View& rstd);
/// Gradients of x, gamma and beta from g, that of y; each output may have no data.
void batch_norm_grad(Cpu, const View& x, const View& gamma, const View& mean, const View& rstd, const View& g, const View& dx,
                     const View& d_gamma, const View& d_beta);

}  // namespace tern::kernels
