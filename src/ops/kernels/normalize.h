#pragma once
#include "ops/kernels/reduce.h"
#include "tensor/kernel.h"
#include "tensor/random.h"

namespace tern::kernels {

// Layer norms: rows x (R, N), contiguous, floating; parameters (N) of the same dtype; statistics (R) in the compute type of the dtype, f32,
// or f64 for f64. A view without data is an absent operand.

/// y = (s - mean) rstd gamma + beta with rstd = 1 / sqrt(variance + eps), the variance biased. RMSNorm (`centered` false) has mean 0 and
/// the mean square in place of the variance. s is x, or residual + dropout(x + bias), which is written to `sum` and normalized as rounded
/// there; random numbers are those of Dropout.
struct LayerNorm {
  In x;
  In gamma, beta;  ///< absent: 1 and 0
  double eps = 1e-5;
  bool centered = true;
  In residual, bias;  ///< (R, N) and (N)
  double p = 0;
  PhiloxState draws;  ///< where p > 0
  Out sum;            ///< (R, N): present where there is a residual, a bias or p > 0. It may be x or residual
  Out y;              ///< (R, N)
  Out mean, rstd;     ///< (R). mean is that of s - s[row, 0], see Note [Shifted rows]; absent unless centered
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Note [Shifted rows]: the statistics of a row are those of its differences from its first element. These are exact, or nearly so, where
/// the mean is far greater than the deviation, so nothing cancels. A mean near 1e4 kept in f32 would be off by up to 5e-4, an error in
/// every normalized element of the backward pass; so the mean of the differences is kept instead.

/// dx = rstd (h - [centered] mean(h) - x_hat mean(h x_hat)) + g_sum with x_hat = (s - mean) rstd and h = g gamma: the gradient of s, and of
/// the residual. dbranch, the gradient of forward's x, is dx through the dropout. dgamma is the sum over rows of g x_hat, dbeta that of g,
/// dbias that of dbranch, or of dx without dropout; the order of the sums depends on the shape alone (on the GPU, also on the device).
struct LayerNormGrad {
  In s;  ///< rows that were normalized: x, or the sum
  In gamma;
  In mean, rstd;
  bool centered = true;
  In g;      ///< (R, N), the gradient of y
  In g_sum;  ///< (R, N), the gradient of the sum
  double p = 0;
  PhiloxState draws;
  Out dx;                            ///< (R, N). It may be g or g_sum
  Out dbranch;                       ///< (R, N): present where p > 0
  InOut dgamma, dbeta, dbias;        ///< (N), written where present
  Write write = Write::overwrite;    ///< mode of these three outputs: accumulate adds to what they hold, before anything is rounded
  DeferredSums* deferred = nullptr;  ///< if given, these three may be left there as partial sums
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Batch normalization (ops/normalize.h) on the CPU, over contiguous views of one dtype, f32 or f64: x and y (B, C, L); gamma, beta, mean,
/// variance and rstd = 1 / sqrt(variance + eps) (C); gamma and beta may have no data. Elsewhere it is composed of other ops.
struct BatchNorm {
  In x, gamma, beta;
  double eps;
  Out y, mean, variance, rstd;
  void run(Cpu) const;
};
/// Gradients of x, gamma and beta from g, that of y; each output may have no data.
struct BatchNormGrad {
  In x, gamma, mean, rstd, g;
  Out dx, d_gamma, d_beta;
  void run(Cpu) const;
};

}  // namespace tern::kernels
