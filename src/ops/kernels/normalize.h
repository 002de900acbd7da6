#pragma once
#include "ops/kernels/reduce.h"
#include "tensor/random.h"
#include "tensor/view.h"

namespace tern::kernels {

// Layer norms: rows x (R, N), contiguous, floating; parameters (N) of the same dtype; statistics (R) in the compute type of the dtype, f32,
// or f64 for f64. A view without data is an absent operand.

/// y = (s - mean) rstd gamma + beta with rstd = 1 / sqrt(variance + eps), the variance biased. RMSNorm (`centered` false) has mean 0 and
/// the mean square in place of the variance. s is x, or residual + dropout(x + bias), which is written to `sum` and normalized as rounded
/// there; random numbers are those of kernels::dropout.
struct LayerNormArguments {
  View x;
  View gamma, beta;  ///< absent: 1 and 0
  double eps = 1e-5;
  bool centered = true;
  View residual, bias;  ///< (R, N) and (N)
  double p = 0;
  PhiloxState draws;  ///< where p > 0
  View sum;           ///< (R, N), written: present where there is a residual, a bias or p > 0. It may be x or residual
  View y;             ///< (R, N), written
  View mean, rstd;    ///< (R), written. mean is that of s - s[row, 0], see Note [Shifted rows]; absent unless centered
};
void layer_norm(Cpu, const LayerNormArguments& arguments);
void layer_norm(Cuda, const LayerNormArguments& arguments);

/// Note [Shifted rows]: the statistics of a row are those of its differences from its first element. These are exact, or nearly so, where
/// the mean is far greater than the deviation, so nothing cancels. A mean near 1e4 kept in f32 would be off by up to 5e-4, an error in
/// every normalized element of the backward pass; so the mean of the differences is kept instead.

/// dx = rstd (h - [centered] mean(h) - x_hat mean(h x_hat)) + g_sum with x_hat = (s - mean) rstd and h = g gamma: the gradient of s, and of
/// the residual. dbranch, the gradient of forward's x, is dx through the dropout. dgamma is the sum over rows of g x_hat, dbeta that of g,
/// dbias that of dbranch, or of dx without dropout; the order of the sums depends on the shape alone (on the GPU, also on the device).
struct LayerNormGradArguments {
  View s;  ///< rows that were normalized: x, or the sum
  View gamma;
  View mean, rstd;
  bool centered = true;
  View g;      ///< (R, N), the gradient of y
  View g_sum;  ///< (R, N), the gradient of the sum
  double p = 0;
  PhiloxState draws;
  View dx;                           ///< (R, N), written. It may be g or g_sum
  View dbranch;                      ///< (R, N), written: present where p > 0
  View dgamma, dbeta, dbias;         ///< (N), written where present
  Write write = Write::overwrite;    ///< mode of these three outputs: accumulate adds to what they hold, before anything is rounded
  DeferredSums* deferred = nullptr;  ///< if given, these three may be left there as partial sums
};
void layer_norm_grad(Cpu, const LayerNormGradArguments& arguments);
void layer_norm_grad(Cuda, const LayerNormGradArguments& arguments);

/// Batch normalization (ops/normalize.h) on the CPU, over contiguous views of one dtype, f32 or f64: x and y (B, C, L); gamma, beta, mean,
/// variance and rstd = 1 / sqrt(variance + eps) (C); gamma and beta may have no data. Elsewhere it is composed of other ops.
void batch_norm(Cpu, const View& x, const View& gamma, const View& beta, double eps, const View& y, const View& mean, const View& variance,
                const View& rstd);
/// Gradients of x, gamma and beta from g, that of y; each output may have no data.
void batch_norm_grad(Cpu, const View& x, const View& gamma, const View& mean, const View& rstd, const View& g, const View& dx,
                     const View& d_gamma, const View& d_beta);

}  // namespace tern::kernels
