#pragma once
#include "tensor/view.h"

namespace tern::kernels {

// Update of one contiguous range of parameters. Numbers that change from step to step are one-element f32 views in device memory, so that a
// captured step needs no host.
//
// 16-bit parameters have a master copy in f32: the gradient, also of 16 bits, is widened, master and moments are updated in f32, and the
// parameter becomes the rounded master, all in one pass. Micikevicius et al., "Mixed Precision Training", 2018.

/// Scaling of the gradients in an update, as in train::GradientScale.
struct GradientScaleView {
  View factor{};   ///< factor of the gradients: clipping, and division by the loss scale; data is null for 1
  View advance{};  ///< 0: the update is skipped and changes nothing; data is null for 1
};

struct AdamArguments {
  View parameter, gradient;  ///< one shape, contiguous, one floating dtype
  View m, v;                 ///< moments: f64 with f64 parameters, else f32
  View lr, step;             ///< `step`: the number of this update, from 1
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  ///< p -= lr * weight_decay * p (AdamW, Loshchilov & Hutter 2019), instead of adding it to the gradient
  View master{};           ///< f32, only with 16-bit parameters
  GradientScaleView scale{};
};
/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
/// Kingma & Ba, "Adam", ICLR 2015, algorithm 1.
void adam(Cpu, const AdamArguments& arguments);
void adam(Cuda, const AdamArguments& arguments);

struct LionArguments {
  View parameter, gradient;  ///< one shape, contiguous, one floating dtype
  View m;                    ///< f64 with f64 parameters, else f32
  View lr;
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  View master{};  ///< f32, only with 16-bit parameters
  GradientScaleView scale{};
};
/// c = b1 m + (1 - b1) g; p -= lr * (sign(c) + weight_decay * p); m = b2 m + (1 - b2) g. The sign of 0 is 0, and that of NaN is NaN, so
/// that a broken gradient is visible. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2.
void lion(Cpu, const LionArguments& arguments);
void lion(Cuda, const LionArguments& arguments);

struct RmspropArguments {
  View parameter, gradient;  ///< one shape, contiguous, one floating dtype
  View v;                    ///< mean squared gradient; f64 with f64 parameters, else f32
  View m, momentum;          ///< mean gradient and momentum buffer, of the same dtype; data is null for none
  View lr;
  double alpha = 0.99, eps = 1e-8, momentum_factor = 0, weight_decay = 0;
  View master{};  ///< f32, only with 16-bit parameters
  GradientScaleView scale{};
};
/// g += weight_decay * p; v = alpha v + (1 - alpha) g^2; m = alpha m + (1 - alpha) g; q = g / (sqrt(max(v - m^2, 0)) + eps); buffer =
/// momentum * buffer + q; p -= lr * buffer. Without m, v alone is under the root; without a buffer, p -= lr * q. The maximum is for equal
/// gradients, whose variance may be rounded to below 0.
void rmsprop(Cpu, const RmspropArguments& arguments);
void rmsprop(Cuda, const RmspropArguments& arguments);

struct SgdArguments {
  View parameter, gradient;  ///< one shape, contiguous, one floating dtype
  View momentum;             ///< f64 with f64 parameters, else f32; data is null without momentum
  View lr;
  double momentum_factor = 0, weight_decay = 0;
  bool nesterov = false;
  View master{};  ///< f32, only with 16-bit parameters
  GradientScaleView scale{};
};
/// g += weight_decay * p; buffer = momentum * buffer + g; p -= lr * (nesterov ? g + momentum * buffer : buffer).
void sgd(Cpu, const SgdArguments& arguments);
void sgd(Cuda, const SgdArguments& arguments);

}  // namespace tern::kernels
