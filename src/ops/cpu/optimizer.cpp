#include "ops/kernels/optimizer.h"

#include <cmath>
#include <string>

#include "ops/cpu/loops.h"

namespace tern::kernels {

using namespace loops;

namespace {

template <class F>
void dispatch_parameters(DType dtype, const char* where, F&& f) {
  if (dtype == DType::f64) f.template operator()<double>();
  else if (dtype == DType::f32) f.template operator()<float>();
  else fail(where, std::string("expected f32 or f64 parameters but got ") + name(dtype));
}

}  // namespace

void adam(Cpu, const AdamArguments& a) {
  dispatch_parameters(a.parameter.dtype, "adam", [&]<class T>() {
    const double lr = *a.lr.as<const float>(), step = *a.step.as<const float>();
    const T b1 = T(a.beta1), b2 = T(a.beta2), c1 = T(1 - a.beta1), c2 = T(1 - a.beta2), eps = T(a.eps);
    const T rate = T(lr / (1 - std::pow(a.beta1, step))), root_factor = T(1 / std::sqrt(1 - std::pow(a.beta2, step)));
    // One of the two places of the weight decay is idle; multiplying by 1 or adding 0 costs nothing beside the memory.
    const T shrink = a.decoupled ? T(1 - lr * a.weight_decay) : T(1), decay = a.decoupled ? T(0) : T(a.weight_decay);
    T *const parameter = a.parameter.as<T>(), *const m = a.m.as<T>(), *const v = a.v.as<T>();
    const T* const gradient = a.gradient.as<const T>();
    parallel(a.parameter.numel(), stream_grain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const T p = parameter[i], g = gradient[i] + decay * p;
        const T first = b1 * m[i] + c1 * g, second = b2 * v[i] + c2 * g * g;
        m[i] = first;
        v[i] = second;
        parameter[i] = shrink * p - rate * first / (std::sqrt(second) * root_factor + eps);
      }
    });
  });
}

void sgd(Cpu, const SgdArguments& a) {
  dispatch_parameters(a.parameter.dtype, "sgd", [&]<class T>() {
    const T lr = T(*a.lr.as<const float>()), decay = T(a.weight_decay), factor = T(a.momentum_factor);
    T *const parameter = a.parameter.as<T>(), *const buffer = a.momentum.as<T>();
    const T* const gradient = a.gradient.as<const T>();
    const bool nesterov = a.nesterov;
    parallel(a.parameter.numel(), stream_grain, [=](std::int64_t begin, std::int64_t end) {
      if (!buffer) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) parameter[i] -= lr * (gradient[i] + decay * parameter[i]);
        return;
      }
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const T g = gradient[i] + decay * parameter[i], velocity = factor * buffer[i] + g;
        buffer[i] = velocity;
        parameter[i] -= lr * (nesterov ? g + factor * velocity : velocity);
      }
    });
  });
}

}  // namespace tern::kernels
