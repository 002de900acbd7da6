#pragma once
#include <cmath>

#include "tensor/dtype.h"
#include "tensor/view.h"

namespace tern::kernels {

/// Number of parts into which square_sums() best divides `count` elements.
std::int64_t square_sum_parts(Cpu, std::int64_t count);
std::int64_t square_sum_parts(Cuda, std::int64_t count);
/// Sums of squares of the parts of x, which is contiguous and floating; `sums` is contiguous, f64, with one element per part. Elements are
/// squared and added in f32 (those of f64, and sums that overflow, in f64), and the sums of a part's threads are added in f64, in a fixed
/// order.
void square_sums(Cpu, const View& x, const View& sums);
void square_sums(Cuda, const View& x, const View& sums);

/// Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018), all f32 (): `scale` is the factor that the loss was
/// multiplied by, and `clean_steps` counts the steps since it last changed. The scale shrinks to `least` and grows to 2^126: then it and
/// its inverse are normal numbers.
struct LossScale {
  View scale{}, clean_steps{};  ///< data is null without loss scaling
  View advance{};               ///< f32 (), set to 0 if a gradient is not finite, else 1
  double growth = 2, backoff = 0.5, interval = 2000, least = 1;
};

/// Gradient clipping from the sums of squares of the gradients, `sums` (n), f64: `norm` is the norm without the loss scale, and `factor`
/// divides by the loss scale and clips, min(1, max_norm / (norm + 1e-6)); both f32 (). Then the loss scale is updated.
struct ClipArguments {
  View sums, norm, factor;
  double max_norm = INFINITY;
  LossScale loss{};
};
void clip_factor(Cpu, const ClipArguments& arguments);
void clip_factor(Cuda, const ClipArguments& arguments);

/// clip_factor over plain pointers, for one thread of either device.
struct ClipFactor {
  float *norm, *factor, *scale, *clean_steps, *advance;
  double max_norm, growth, backoff, interval, least;

  explicit ClipFactor(const ClipArguments& a)
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
