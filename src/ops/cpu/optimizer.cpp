#include "ops/kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ops/cpu/loops.h"

namespace tern::kernels {

using namespace loops;

namespace {

/// Operands of the update of one chunk: the gradients, widened and scaled, and the values that are kept exactly.
template <class T>
struct UpdateChunk {
  T* value;
  const T* gradient;
  std::int64_t first, count;
};

/// Calls f with every chunk of the parameters. Gradients of 16 bits, or with a factor, go through a buffer in the L1 cache, and 16-bit
/// parameters are rounded from their masters while these are there too.
template <class F>
void for_update_chunks(const View& parameter, const View& gradient, const View& master, const GradientScaleView& scale, const char* where,
                       F&& f) {
  if (scale.advance.data && *scale.advance.as<const float>() == 0) return;
  dispatch_floats(parameter.dtype, where, [&]<class P>() {
    using T = compute_t<P>;
    const P* const gradients = gradient.as<const P>();
    P* const parameters = parameter.as<P>();
    T* values;
    if constexpr (std::is_same_v<P, T>) values = parameters;
    else values = master.as<T>();
    const T factor = scale.factor.data ? T(*scale.factor.as<const float>()) : T(1);
    const bool in_place = std::is_same_v<P, T> && !scale.factor.data;
    parallel(parameter.numel(), stream_grain, [=](std::int64_t begin, std::int64_t end) {
      if constexpr (std::is_same_v<P, T>)
        if (in_place) return f(UpdateChunk<T>{values + begin, gradients + begin, begin, end - begin});
      alignas(64) T scaled[chunk];
      for (std::int64_t first = begin; first < end; first += chunk) {
        const std::int64_t count = std::min(chunk, end - first);
        convert_run(gradients + first, scaled, count);
        for (std::int64_t i = 0; i < count; ++i) scaled[i] *= factor;
        f(UpdateChunk<T>{values + first, scaled, first, count});
        if constexpr (!std::is_same_v<P, T>) convert_run(values + first, parameters + first, count);
      }
    });
  });
}

}  // namespace

static void adam(const Adam& a) {
  const double lr = *a.lr.as<const float>(), step = *a.step.as<const float>();
  const double corrected_lr = lr / (1 - std::pow(a.beta1, step)), corrected_root = 1 / std::sqrt(1 - std::pow(a.beta2, step));
  for_update_chunks(a.parameter, a.gradient, a.master, a.scale, "adam", [&]<class T>(const UpdateChunk<T>& s) {
    const T b1 = T(a.beta1), b2 = T(a.beta2), c1 = T(1 - a.beta1), c2 = T(1 - a.beta2), eps = T(a.eps);
    const T rate = T(corrected_lr), root_factor = T(corrected_root);
    // One of the two forms of weight decay is unused; multiplying by 1 or adding 0 costs nothing beside the memory traffic.
    const T shrink = a.decoupled ? T(1 - lr * a.weight_decay) : T(1), decay = a.decoupled ? T(0) : T(a.weight_decay);
    T *const value = s.value, *const m = a.m.as<T>() + s.first, *const v = a.v.as<T>() + s.first;
    const T* const gradient = s.gradient;
#pragma omp simd
    for (std::int64_t i = 0; i < s.count; ++i) {
      const T p = value[i], g = gradient[i] + decay * p;
      const T first = b1 * m[i] + c1 * g, second = b2 * v[i] + c2 * g * g;
      m[i] = first;
      v[i] = second;
      value[i] = shrink * p - rate * first / (std::sqrt(second) * root_factor + eps);
    }
  });
}
void Adam::run(Cpu) const { adam(*this); }

static void lion(const Lion& a) {
  const double lr = *a.lr.as<const float>();
  for_update_chunks(a.parameter, a.gradient, a.master, a.scale, "lion", [&]<class T>(const UpdateChunk<T>& s) {
    const T b1 = T(a.beta1), b2 = T(a.beta2), c1 = T(1 - a.beta1), c2 = T(1 - a.beta2), rate = T(lr), shrink = T(1 - a.weight_decay * lr);
    T *const value = s.value, *const m = a.m.as<T>() + s.first;
    const T* const gradient = s.gradient;
#pragma omp simd
    for (std::int64_t i = 0; i < s.count; ++i) {
      const T g = gradient[i], c = b1 * m[i] + c1 * g;
      m[i] = b2 * m[i] + c2 * g;
      value[i] = shrink * value[i] - rate * (c > 0 ? T(1) : c < 0 ? T(-1) : c);
    }
  });
}
void Lion::run(Cpu) const { lion(*this); }

static void rmsprop(const Rmsprop& a) {
  for_update_chunks(a.parameter, a.gradient, a.master, a.scale, "rmsprop", [&]<class T>(const UpdateChunk<T>& s) {
    const T lr = T(*a.lr.as<const float>()), keep = T(a.alpha), add = T(1 - a.alpha), eps = T(a.eps);
    const T decay = T(a.weight_decay), factor = T(a.momentum_factor);
    T *const value = s.value, *const v = a.v.as<T>() + s.first;
    T *const m = a.m.data ? a.m.as<T>() + s.first : nullptr, *const buffer = a.momentum.data ? a.momentum.as<T>() + s.first : nullptr;
    const T* const gradient = s.gradient;
    // Which moments there are is the same for all elements: a constant of each of the four loops.
    const auto update = [&]<bool is_centered, bool has_buffer>() {
#pragma omp simd
      for (std::int64_t i = 0; i < s.count; ++i) {
        const T g = gradient[i] + decay * value[i], square = keep * v[i] + add * g * g;
        v[i] = square;
        T variance = square;
        if constexpr (is_centered) {
          const T mean = keep * m[i] + add * g, difference = square - mean * mean;
          m[i] = mean;
          variance = difference < 0 ? T(0) : difference;
        }
        T direction = g / (std::sqrt(variance) + eps);
        if constexpr (has_buffer) buffer[i] = direction = factor * buffer[i] + direction;
        value[i] -= lr * direction;
      }
    };
    if (m && buffer) update.template operator()<true, true>();
    else if (m) update.template operator()<true, false>();
    else if (buffer) update.template operator()<false, true>();
    else update.template operator()<false, false>();
  });
}
void Rmsprop::run(Cpu) const { rmsprop(*this); }

static void sgd(const Sgd& a) {
  for_update_chunks(a.parameter, a.gradient, a.master, a.scale, "sgd", [&]<class T>(const UpdateChunk<T>& s) {
    const T lr = T(*a.lr.as<const float>()), decay = T(a.weight_decay), factor = T(a.momentum_factor);
    T* const value = s.value;
    const T* const gradient = s.gradient;
    if (!a.momentum.data) {
#pragma omp simd
      for (std::int64_t i = 0; i < s.count; ++i) value[i] -= lr * (gradient[i] + decay * value[i]);
      return;
    }
    T* const buffer = a.momentum.as<T>() + s.first;
    const bool nesterov = a.nesterov;
#pragma omp simd
    for (std::int64_t i = 0; i < s.count; ++i) {
      const T g = gradient[i] + decay * value[i], velocity = factor * buffer[i] + g;
      buffer[i] = velocity;
      value[i] -= lr * (nesterov ? g + factor * velocity : velocity);
    }
  });
}
void Sgd::run(Cpu) const { sgd(*this); }

// Norm of all gradients: sums of squares of parts, which are added in order.

/// More parts than there are threads, each with enough elements that its fixed cost is negligible.
std::int64_t square_sum_parts(Cpu, std::int64_t count) { return std::clamp<std::int64_t>(count / 4096, 1, 1024); }

void SquareSums::run(Cpu) const {
  const std::int64_t count = x.numel(), parts = sums.numel();
  double* const result = sums.as<double>();
  dispatch_floats(x.dtype, "square_sums", [&]<class T>() {
    using C = compute_t<T>;
    const T* const from = x.as<const T>();
    parallel_units(parts, count / std::max<std::int64_t>(parts, 1), stream_grain, [=](std::int64_t begin, std::int64_t end) {
      alignas(64) C buffer[chunk];
      for (std::int64_t part = begin; part < end; ++part) {
        const std::int64_t last = count * (part + 1) / parts;
        double total = 0;
        for (std::int64_t first = count * part / parts; first < last; first += chunk) {
          const std::int64_t n = std::min(chunk, last - first);
          const C* const values = load(from + first, 1, n, buffer);
          C sum = 0;
#pragma omp simd reduction(+ : sum)
          for (std::int64_t i = 0; i < n; ++i) sum += values[i] * values[i];
          if (std::isfinite(sum)) total += double(sum);
          else
            for (std::int64_t i = 0; i < n; ++i) total += double(values[i]) * double(values[i]);  // squares beyond float's range
        }
        result[part] = total;
      }
    });
  });
}

static void clip_factor(const Clip& a) {
  const double* const sums = a.sums.as<const double>();
  double total = 0;
  for (std::int64_t i = 0; i < a.sums.numel(); ++i) total += sums[i];
  ClipFactor{a}(total);
}
void Clip::run(Cpu) const { clip_factor(*this); }

}  // namespace tern::kernels
