#pragma once
#include "ops/kernels/deferred_sums.h"
#include "tensor/random.h"
#include "tensor/view.h"

namespace tern::kernels {

// Rows x (R, N), contiguous, floating; parameters (N) of the same dtype; statistics (R) in the type that the dtype is computed
// in: f32, or f64 for f64. A view without data is an operand that is absent.

/// y = (s - mean) rstd gamma + beta with rstd = 1 / sqrt(variance + eps), the variance biased; RMSNorm (`centered` false) has mean 0
/// and the mean square in place of the variance. s is x, or residual + dropout(x + bias), which is written to `sum` and, as rounded
/// there, is what the row is made of; draws are as kernels::dropout's.
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

/// Note [Shifted rows]: the statistics of a row are taken of its distances from its first element, which are exact, or nearly so,
/// where the mean is far greater than the deviation; so nothing cancels. A mean near 1e4 kept in f32 is off by up to 5e-4, and the
/// backward pass would see that in every normalized element; so the mean of the distances is kept.

/// dx = rstd (h - [centered] mean(h) - x_hat mean(h x_hat)) + g_sum with x_hat = (s - mean) rstd and h = g gamma: the gradient of s, and of
/// the residual. dbranch is dx through the dropout, the gradient of the forward's x. dgamma = sum over rows of g x_hat, dbeta of g, dbias
/// of dbranch, or of dx without dropout; in an order that depends on the shape alone (on the GPU, also on the device).
struct LayerNormGradArguments {
  View s;  ///< the normalized rows' source: x, or the sum
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
  Write write = Write::overwrite;    ///< of these three: accumulate adds to what they hold, before anything is rounded
  DeferredSums* deferred = nullptr;  ///< where these three may be left in parts
};
void layer_norm_grad(Cpu, const LayerNormGradArguments& arguments);
void layer_norm_grad(Cuda, const LayerNormGradArguments& arguments);

}  // namespace tern::kernels
