#pragma once
#include <cmath>

#include "tensor/dtype.h"
#include "tensor/kernel.h"

namespace tern::kernels {

// Update of one contiguous range of parameters. Numbers that change from step to step are one-element f32 views in device memory, so that a
// captured step needs no host.
//
// 16-bit parameters have a master copy in f32: the gradient, also of 16 bits, is widened, master and moments are updated in f32, and the
// parameter becomes the rounded master, all in one pass. Micikevicius et al., "Mixed Precision Training", 2018.

/// Scaling of the gradients in an update, as in train::GradientScale.
struct GradientScaleView {
  In factor{};   ///< factor of the gradients: clipping, and division by the loss scale; data is null for 1
  In advance{};  ///< 0: the update is skipped and changes nothing; data is null for 1
};

/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
/// Kingma & Ba, "Adam", ICLR 2015, algorithm 1.
struct Adam {
  InOut parameter;
  In gradient;  ///< of the parameter's shape and dtype
  InOut m, v;   ///< moments: f64 with f64 parameters, else f32
  In lr, step;  ///< `step`: the number of this update, from 1
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  ///< p -= lr * weight_decay * p (AdamW, Loshchilov & Hutter 2019), instead of adding it to the gradient
  InOut master{};          ///< f32, only with 16-bit parameters
  GradientScaleView scale{};
  void run(Cpu) const;
  void run(Cuda) const;
};

/// c = b1 m + (1 - b1) g; p -= lr * (sign(c) + weight_decay * p); m = b2 m + (1 - b2) g. The sign of 0 is 0, and that of NaN is NaN, so
/// that a broken gradient is visible. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2.
struct Lion {
  InOut parameter;
  In gradient;
  InOut m;  ///< f64 with f64 parameters, else f32
  In lr;
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  InOut master{};  ///< f32, only with 16-bit parameters
  GradientScaleView scale{};
  void run(Cpu) const;
  void run(Cuda) const;
};

/// g += weight_decay * p; v = alpha v + (1 - alpha) g^2; m = alpha m + (1 - alpha) g; q = g / (sqrt(max(v - m^2, 0)) + eps); buffer =
/// momentum * buffer + q; p -= lr * buffer. Without m, v alone is under the root; without a buffer, p -= lr * q. The maximum is for equal
/// gradients, whose variance may be rounded to below 0.
struct Rmsprop {
  InOut parameter;
  In gradient;
  InOut v;            ///< mean squared gradient; f64 with f64 parameters, else f32
  InOut m, momentum;  ///< mean gradient and momentum buffer, of the same dtype; data is null for none
  In lr;
  double alpha = 0.99, eps = 1e-8, momentum_factor = 0, weight_decay = 0;
  InOut master{};  ///< f32, only with 16-bit parameters
  GradientScaleView scale{};
  void run(Cpu) const;
  void run(Cuda) const;
};

/// g += weight_decay * p; buffer = momentum * buffer + g; p -= lr * (nesterov ? g + momentum * buffer : buffer).
struct Sgd {
  InOut parameter;
  In gradient;
  InOut momentum;  ///< f64 with f64 parameters, else f32; data is null without momentum
  In lr;
  double momentum_factor = 0, weight_decay = 0;
  bool nesterov = false;
  InOut master{};  ///< f32, only with 16-bit parameters
  GradientScaleView scale{};
  void run(Cpu) const;
  void run(Cuda) const;
};

// The norm of gradients, by which they are clipped, and the loss scale.

/// Number of parts into which square_sums() best divides `count` elements.
std::int64_t square_sum_parts(Cpu, std::int64_t count);
std::int64_t square_sum_parts(Cuda, std::int64_t count);
/// Sums of squares of the parts of x, which is contiguous and floating; `sums` is contiguous, f64, with one element per part. Elements are
/// squared and added in f32 (those of f64, and sums that overflow, in f64), and the sums of a part's threads are added in f64, in a fixed
/// order.
struct SquareSums {
  In x;
  Out sums;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018), all f32 (): `scale` is the factor that the loss was
/// multiplied by, and `clean_steps` counts the steps since it last changed. The scale shrinks to `least` and grows to 2^126: then it and
/// its inverse are normal numbers.
struct LossScale {
  InOut scale{}, clean_steps{};  ///< data is null without loss scaling
  Out advance{};                 ///< f32 (), set to 0 if a gradient is not finite, else 1
  double growth = 2, backoff = 0.5, interval = 2000, least = 1;
};

/// Gradient clipping from the sums of squares of the gradients, `sums` (n), f64: `norm` is the norm without the loss scale, and `factor`
/// divides by the loss scale and clips, min(1, max_norm / (norm + 1e-6)); both f32 (). Then the loss scale is updated.
struct Clip {
  In sums;
  Out norm, factor;
  double max_norm = INFINITY;
  LossScale loss{};
  void run(Cpu) const;
  void run(Cuda) const;
};

/// clip_factor over plain pointers, for one thread of either device.
struct ClipFactor {
  float *norm, *factor, *scale, *clean_steps, *advance;
  double max_norm, growth, backoff, interval, least;

  explicit ClipFactor(const Clip& a)
      : norm(a.norm.as<float>()),
        factor(a.factor.as<float>()),
        scale(a.loss.scale.as<float>()),
        clean_steps(a.loss.clean_steps.as<float>()),
        advance(a.loss.advance.as<float>()),
        max_norm(a.max_norm),
        growth(a.loss.growth),
        backoff(a.loss.backoff),
        interval(a.loss.interval),
        least(a.loss.least) {}

  TERN_HOST_DEVICE void operator()(double sum) const {
    const double loss_scale = scale ? *scale : 1.0, length = std::sqrt(sum) / loss_scale;
    const double bound = max_norm / (length + 1e-6);
    *norm = static_cast<float>(length);
    *factor = static_cast<float>((bound >= 1 ? 1.0 : bound) / loss_scale);  // NaN stays NaN
    if (!scale) return;
    const bool is_finite = sum <= 1.7e308;
    const double clean = is_finite ? *clean_steps + 1.0 : 0.0, grown = loss_scale * growth, shrunk = loss_scale * backoff;
    *advance = is_finite ? 1.0f : 0.0f;
    *clean_steps = static_cast<float>(clean < interval ? clean : 0.0);
    if (!is_finite) *scale = static_cast<float>(shrunk > least ? shrunk : loss_scale < least ? loss_scale : least);
    else if (clean >= interval && grown <= 0x1p126) *scale = static_cast<float>(grown);
  }
};

}  // namespace tern::kernels
