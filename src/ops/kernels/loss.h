#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// losses (N) = weight_n * ((1 - smoothing) * (lse_n - x[n, t_n]) + smoothing * (lse_n - mean_v x[n, v])) for logits x (N, V),
/// lse (N) = logsumexp of each row and targets t (N), i64. weight_n is weights[n] (all 1 without weights.data); rows whose target equals
/// ignore_index have loss 0. Everything contiguous but x, whose rows are (last stride 1); floats of one dtype (lse, losses: f32
/// for 16-bit logits).
void cross_entropy(Cpu, const View& x, const View& lse, const View& targets, const View& weights, const View& losses,
                   double smoothing, std::int64_t ignore_index);
void cross_entropy(Cuda, const View& x, const View& lse, const View& targets, const View& weights, const View& losses,
                   double smoothing, std::int64_t ignore_index);

/// dx[n, v] = g_n * weight_n * (exp(x[n, v] - lse_n) - (1 - smoothing) [v = t_n] - smoothing / V); rows that are ignored: 0.
/// g (N) has the dtype of the losses and any stride (0 where one gradient serves all rows).
void cross_entropy_grad(Cpu, const View& x, const View& lse, const View& targets, const View& weights, const View& g, const View& dx,
                        double smoothing, std::int64_t ignore_index);
void cross_entropy_grad(Cuda, const View& x, const View& lse, const View& targets, const View& weights, const View& g, const View& dx,
                        double smoothing, std::int64_t ignore_index);

}  // namespace tern::kernels
