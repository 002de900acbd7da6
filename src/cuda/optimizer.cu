#include "cuda/convert.cuh"
#include "cuda/launch.h"
#include "ops/kernels/optimizer.h"

// Updates of a run of parameters: every number is read once and written once. What changes from step to step is read from device
// memory, so a captured step stays right; what follows from it for all parameters is worked out once a block, and the
// blocks are few enough for that to cost nothing.
namespace tern::kernels {

using namespace gpu;

namespace {

constexpr int blocks_per_multiprocessor = 4;

template <class T>
struct Adam {
  T *parameter, *m, *v;
  const T* gradient;
  const float *lr, *step;
  double beta1, beta2, weight_decay;
  T eps;
  bool decoupled;

  /// What the step number and the learning rate make of the formula.
  struct Factors {
    T b1, b2, c1, c2, rate, root_factor, shrink, decay;
  };
  __device__ Factors factors() const {
    const double rate = *lr, t = *step;
    return {T(beta1), T(beta2), T(1 - beta1), T(1 - beta2), T(rate / (1 - pow(beta1, t))), T(1 / sqrt(1 - pow(beta2, t))),
            decoupled ? T(1 - rate * weight_decay) : T(1), decoupled ? T(0) : T(weight_decay)};
  }

  template <int width>
  __device__ void update(const Factors& f, std::int64_t i) const {
    auto p = read_vector<width>(parameter + i), first = read_vector<width>(m + i), second = read_vector<width>(v + i);
    const auto gradients = read_vector<width>(gradient + i);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const T g = gradients.values[k] + f.decay * p.values[k];
      first.values[k] = f.b1 * first.values[k] + f.c1 * g;
      second.values[k] = f.b2 * second.values[k] + f.c2 * g * g;
      p.values[k] = f.shrink * p.values[k] - f.rate * first.values[k] / (std::sqrt(second.values[k]) * f.root_factor + eps);
    }
    *reinterpret_cast<Vector<T, width>*>(parameter + i) = p;
    *reinterpret_cast<Vector<T, width>*>(m + i) = first;
    *reinterpret_cast<Vector<T, width>*>(v + i) = second;
  }
};

template <class T>
struct Sgd {
  T *parameter, *momentum;  ///< momentum: null without it
  const T* gradient;
  const float* lr;
  T momentum_factor, weight_decay;
  bool nesterov;

  struct Factors {
    T lr;
  };
  __device__ Factors factors() const { return {T(*lr)}; }

  template <int width>
  __device__ void update(const Factors& f, std::int64_t i) const {
    auto p = read_vector<width>(parameter + i);
    const auto gradients = read_vector<width>(gradient + i);
    Vector<T, width> buffer;
    if (momentum) buffer = read_vector<width>(momentum + i);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const T g = gradients.values[k] + weight_decay * p.values[k];
      T direction = g;
      if (momentum) {
        buffer.values[k] = momentum_factor * buffer.values[k] + g;
        direction = nesterov ? g + momentum_factor * buffer.values[k] : buffer.values[k];
      }
      p.values[k] -= f.lr * direction;
    }
    *reinterpret_cast<Vector<T, width>*>(parameter + i) = p;
    if (momentum) *reinterpret_cast<Vector<T, width>*>(momentum + i) = buffer;
  }
};

template <class Rule>
__global__ void __launch_bounds__(block_size, blocks_per_multiprocessor) update_all(__grid_constant__ const Rule rule, std::int64_t count, bool aligned) {
  using T = std::remove_pointer_t<decltype(rule.parameter)>;
  constexpr int width = 16 / sizeof(T);
  __shared__ typename Rule::Factors shared;
  if (threadIdx.x == 0) shared = rule.factors();
  __syncthreads();
  const typename Rule::Factors factors = shared;
  const std::int64_t thread = std::int64_t(blockIdx.x) * block_size + threadIdx.x, threads = std::int64_t(gridDim.x) * block_size;
  const std::int64_t vectors = aligned ? count / width : 0;
  for (std::int64_t i = thread; i < vectors; i += threads) rule.template update<width>(factors, i * width);
  for (std::int64_t i = vectors * width + thread; i < count; i += threads) rule.template update<1>(factors, i);
}

template <class Rule>
void run(const Rule& rule, std::int64_t count, bool aligned, Stream stream) {
  if (count == 0) return;
  // As many blocks as run at once: more would only repeat the preparation, and leave the chip half empty at the end.
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, stream.device.index), "cudaDeviceGetAttribute");
  const unsigned blocks = std::min<unsigned>(blocks_for(count, block_size * 4), static_cast<unsigned>(multiprocessors * blocks_per_multiprocessor));
  launch(update_all<Rule>, blocks, block_size, 0, stream, rule, count, aligned);
}

template <class F>
void dispatch_parameters(DType dtype, const char* where, F&& f) {
  if (dtype == DType::f64) f.template operator()<double>();
  else if (dtype == DType::f32) f.template operator()<float>();
  else fail(where, std::string("expected f32 or f64 parameters but got ") + name(dtype));
}

}  // namespace

void adam(Cuda, const AdamArguments& a) {
  dispatch_parameters(a.parameter.dtype, "adam", [&]<class T>() {
    const Adam<T> rule{a.parameter.as<T>(), a.m.as<T>(), a.v.as<T>(), a.gradient.as<const T>(), a.lr.as<const float>(), a.step.as<const float>(),
                       a.beta1, a.beta2, a.weight_decay, T(a.eps), a.decoupled};
    const bool aligned = is_aligned(rule.parameter, 16) && is_aligned(rule.m, 16) && is_aligned(rule.v, 16) && is_aligned(rule.gradient, 16);
    run(rule, a.parameter.numel(), aligned, a.parameter.stream);
  });
}

void sgd(Cuda, const SgdArguments& a) {
  dispatch_parameters(a.parameter.dtype, "sgd", [&]<class T>() {
    const Sgd<T> rule{a.parameter.as<T>(), a.momentum.as<T>(), a.gradient.as<const T>(), a.lr.as<const float>(),
                      T(a.momentum_factor), T(a.weight_decay), a.nesterov};
    const bool aligned = is_aligned(rule.parameter, 16) && is_aligned(rule.gradient, 16) && is_aligned(rule.momentum, 16);
    run(rule, a.parameter.numel(), aligned, a.parameter.stream);
  });
}

}  // namespace tern::kernels
