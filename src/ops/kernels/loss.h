#pragma once
#include <vector>

#include "tensor/kernel.h"

namespace tern::kernels {

/// Targets, weights and options of the losses of N rows of logits.
struct TokenTargets {
  In targets;  ///< (N), i64
  In weights;  ///< (N) of the losses' dtype: factor of each row's loss; without data all 1
  std::int64_t ignore_index = -100;
  double smoothing = 0;
};

/// losses (N) = weight_n * ((1 - smoothing) * (lse_n - x[n, t_n]) + smoothing * (lse_n - mean_v x[n, v])) for logits x (N, V), and lse (N)
/// = logsumexp of each row. Both are 0 for rows whose target is ignored, regardless of their logits. Floats of one dtype (lse, losses: f32
/// for 16-bit logits). All contiguous, except that x's rows may have any stride (last stride 1). Each row is read once. On the CPU a target
/// outside the range throws; on a GPU, which cannot report it without a wait, it gives the row a loss of NaN.
struct CrossEntropy {
  In x;
  TokenTargets tokens;
  Out lse, losses;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// value () = the sum of losses (N), and total () = 1; or, for a mean, total = the sum of weight_n over the rows that are not ignored, and
/// value is divided by it. Deterministic.
struct ReduceLosses {
  In losses;
  TokenTargets tokens;
  bool mean;
  Out value, total;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Gradient with respect to the losses: g (N) of any stride (0 for one gradient of all rows), divided by total (), both of the losses'
/// dtype. Either may be without data, for 1. If the total is 0, a mean over nothing, the gradient is 0.
struct LossGradient {
  In g, total;
};

/// dx[n, v] = g_n / total * weight_n * (exp(x[n, v] - lse_n) - (1 - smoothing) [v = t_n] - smoothing / V); rows that are ignored: 0.
/// dx, whose rows are contiguous, may be x.
struct CrossEntropyGrad {
  In x, lse;
  TokenTargets tokens;
  LossGradient of_loss;
  Out dx;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// The losses (N) of logits x (N, V); x is overwritten by its gradient as above.
struct CrossEntropyWithGrad {
  InOut x;
  TokenTargets tokens;
  LossGradient of_loss;
  Out losses;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y = g / total * x, or that added to y: contiguous floats of one dtype.
struct Scaling {
  In x;
  InOut y;
  Write write = Write::overwrite;
};
/// Several scalings, of one dtype, by one gradient g (); on a GPU four per kernel.
struct Scale {
  std::vector<Scaling> all;
  LossGradient of_loss;
  void run(Cpu) const;
  void run(Cuda) const;
};

}  // namespace tern::kernels
