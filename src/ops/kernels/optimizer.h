#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// One update of a contiguous run of parameters. Numbers that change from step to step are one-element f32 views in device memory, so
/// that a captured step needs no host: `lr`, and `step` (the number of this update, from 1).
struct AdamArguments {
  View parameter, gradient, m, v;  ///< one shape, contiguous; parameter and gradient f32 or f64, m and v alike
  View lr, step;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  ///< AdamW (Loshchilov & Hutter 2019): p -= lr * weight_decay * p, instead of adding weight_decay * p to the gradient
};
/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
/// Kingma & Ba, "Adam", ICLR 2015, algorithm 1.
void adam(Cpu, const AdamArguments& arguments);
void adam(Cuda, const AdamArguments& arguments);

struct SgdArguments {
  View parameter, gradient, momentum;  ///< contiguous; momentum.data is null without momentum
  View lr;
  double momentum_factor = 0, weight_decay = 0;
  bool nesterov = false;
};
/// g += weight_decay * p; buffer = momentum * buffer + g; p -= lr * (nesterov ? g + momentum * buffer : buffer).
void sgd(Cpu, const SgdArguments& arguments);
void sgd(Cuda, const SgdArguments& arguments);

}  // namespace tern::kernels
