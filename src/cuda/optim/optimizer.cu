#include <algorithm>

#include "cuda/device/group.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/optimizer.h"
#include "tensor/dispatch.h"

// Optimizers: updates of a contiguous segment of parameters, in which every number is read once and written once. The learning rate, the
// step number and the gradients' factor are read from device memory, so a captured step stays valid; factors derived from them are computed
// once per block, hidden by other blocks' loads.
namespace tern::kernels {

using namespace gpu;

namespace {

/// Vectors per thread: many blocks with short ranges keep the memory busier than as many as run at once, each with a long range.
constexpr int vectors_per_thread = 4;

/// Parameters stored as P, whose values are kept and updated as T: in place, or in a master copy for 16-bit floats.
template <class P>
struct ParameterSegment {
  using T = compute_t<P>;
  static constexpr int width = 16 / sizeof(T);  ///< elements of a thread's vector
  static constexpr bool is_rounded = !std::is_same_v<P, T>;

  T* value;
  P* parameter;
  const P* gradient;
  const float *factor, *advance;  ///< see GradientScaleView

  ParameterSegment(const View& parameters, const View& gradients, const View& master, const GradientScaleView& scale)
      : parameter(parameters.as<P>()),
        gradient(gradients.as<const P>()),
        factor(scale.factor.as<const float>()),
        advance(scale.advance.as<const float>()) {
    if constexpr (is_rounded) value = master.as<T>();
    else value = parameter;
  }
  bool is_aligned() const {
    return gpu::is_aligned(value, width * sizeof(T)) && gpu::is_aligned(parameter, width * sizeof(P)) &&
           gpu::is_aligned(gradient, width * sizeof(P));
  }
  __device__ bool is_skipped() const { return advance && *advance == 0; }
  __device__ T gradient_factor() const { return factor ? T(*factor) : T(1); }

  template <int n>
  __device__ Vector<T, n> gradients(std::int64_t i, T by) const {
    const auto stored = read_vector<n>(gradient + i);
    Vector<T, n> result;
#pragma unroll
    for (int k = 0; k < n; ++k) result.values[k] = by * convert<T>(stored.values[k]);
    return result;
  }
  template <int n>
  __device__ void write(std::int64_t i, const Vector<T, n>& updated) const {
    write_vector(value + i, updated);
    if constexpr (is_rounded) {
      Vector<P, n> rounded;
#pragma unroll
      for (int k = 0; k < n; ++k) rounded.values[k] = convert<P>(updated.values[k]);
      write_vector(parameter + i, rounded);
    }
  }
};

template <class P>
struct AdamSegment : ParameterSegment<P> {
  using typename ParameterSegment<P>::T;
  T *m, *v;
  const float *lr, *step;
  double beta1, beta2, weight_decay;
  T eps;
  bool decoupled;

  explicit AdamSegment(const Adam& a)
      : ParameterSegment<P>(a.parameter, a.gradient, a.master, a.scale),
        m(a.m.as<T>()),
        v(a.v.as<T>()),
        lr(a.lr.as<const float>()),
        step(a.step.as<const float>()),
        beta1(a.beta1),
        beta2(a.beta2),
        weight_decay(a.weight_decay),
        eps(T(a.eps)),
        decoupled(a.decoupled) {}
  bool is_aligned() const { return ParameterSegment<P>::is_aligned() && gpu::is_aligned(m, 16) && gpu::is_aligned(v, 16); }

  /// Factors of the update formula, from the step number, the learning rate and the gradients' factor.
  struct Factors {
    T gradient, b1, b2, c1, c2, rate, root_factor, shrink, decay;
  };
  __device__ Factors factors() const {
    const double rate = *lr, t = *step;
    return {this->gradient_factor(),
            T(beta1),
            T(beta2),
            T(1 - beta1),
            T(1 - beta2),
            T(rate / (1 - pow(beta1, t))),
            T(1 / sqrt(1 - pow(beta2, t))),
            decoupled ? T(1 - rate * weight_decay) : T(1),
            decoupled ? T(0) : T(weight_decay)};
  }

  template <int n>
  __device__ void update(const Factors& f, std::int64_t i) const {
    auto p = read_vector<n>(this->value + i), first = read_vector<n>(m + i), second = read_vector<n>(v + i);
    const auto gradients = this->template gradients<n>(i, f.gradient);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const T g = gradients.values[k] + f.decay * p.values[k];
      first.values[k] = f.b1 * first.values[k] + f.c1 * g;
      second.values[k] = f.b2 * second.values[k] + f.c2 * g * g;
      p.values[k] = f.shrink * p.values[k] - f.rate * first.values[k] / (std::sqrt(second.values[k]) * f.root_factor + eps);
    }
    this->write(i, p);
    write_vector(m + i, first);
    write_vector(v + i, second);
  }
};

template <class P>
struct LionSegment : ParameterSegment<P> {
  using typename ParameterSegment<P>::T;
  T* m;
  const float* lr;
  double weight_decay;
  T b1, b2, c1, c2;

  explicit LionSegment(const Lion& a)
      : ParameterSegment<P>(a.parameter, a.gradient, a.master, a.scale),
        m(a.m.as<T>()),
        lr(a.lr.as<const float>()),
        weight_decay(a.weight_decay),
        b1(T(a.beta1)),
        b2(T(a.beta2)),
        c1(T(1 - a.beta1)),
        c2(T(1 - a.beta2)) {}
  bool is_aligned() const { return ParameterSegment<P>::is_aligned() && gpu::is_aligned(m, 16); }

  struct Factors {
    T gradient, lr, shrink;
  };
  __device__ Factors factors() const { return {this->gradient_factor(), T(*lr), T(1 - double(*lr) * weight_decay)}; }

  template <int n>
  __device__ void update(const Factors& f, std::int64_t i) const {
    auto p = read_vector<n>(this->value + i), moment = read_vector<n>(m + i);
    const auto gradients = this->template gradients<n>(i, f.gradient);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const T g = gradients.values[k], c = b1 * moment.values[k] + c1 * g;
      moment.values[k] = b2 * moment.values[k] + c2 * g;
      p.values[k] = f.shrink * p.values[k] - f.lr * (c > 0 ? T(1) : c < 0 ? T(-1) : c);
    }
    this->write(i, p);
    write_vector(m + i, moment);
  }
};

template <class P>
struct RmspropSegment : ParameterSegment<P> {
  using typename ParameterSegment<P>::T;
  T *v, *m, *momentum;  ///< m and momentum may be null
  const float* lr;
  T keep, add, eps, momentum_factor, weight_decay;

  explicit RmspropSegment(const Rmsprop& a)
      : ParameterSegment<P>(a.parameter, a.gradient, a.master, a.scale),
        v(a.v.as<T>()),
        m(a.m.as<T>()),
        momentum(a.momentum.as<T>()),
        lr(a.lr.as<const float>()),
        keep(T(a.alpha)),
        add(T(1 - a.alpha)),
        eps(T(a.eps)),
        momentum_factor(T(a.momentum_factor)),
        weight_decay(T(a.weight_decay)) {}
  bool is_aligned() const {
    return ParameterSegment<P>::is_aligned() && gpu::is_aligned(v, 16) && gpu::is_aligned(m, 16) && gpu::is_aligned(momentum, 16);
  }

  struct Factors {
    T gradient, lr;
  };
  __device__ Factors factors() const { return {this->gradient_factor(), T(*lr)}; }

  template <int n>
  __device__ void update(const Factors& f, std::int64_t i) const {
    auto p = read_vector<n>(this->value + i), square = read_vector<n>(v + i);
    const auto gradients = this->template gradients<n>(i, f.gradient);
    Vector<T, n> mean, buffer;
    if (m) mean = read_vector<n>(m + i);
    if (momentum) buffer = read_vector<n>(momentum + i);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const T g = gradients.values[k] + weight_decay * p.values[k];
      square.values[k] = keep * square.values[k] + add * g * g;
      T variance = square.values[k];
      if (m) {
        mean.values[k] = keep * mean.values[k] + add * g;
        variance -= mean.values[k] * mean.values[k];
        if (variance < 0) variance = 0;
      }
      T direction = g / (std::sqrt(variance) + eps);
      if (momentum) buffer.values[k] = direction = momentum_factor * buffer.values[k] + direction;
      p.values[k] -= f.lr * direction;
    }
    this->write(i, p);
    write_vector(v + i, square);
    if (m) write_vector(m + i, mean);
    if (momentum) write_vector(momentum + i, buffer);
  }
};

template <class P>
struct SgdSegment : ParameterSegment<P> {
  using typename ParameterSegment<P>::T;
  T* momentum;  ///< null without momentum
  const float* lr;
  T momentum_factor, weight_decay;
  bool nesterov;

  explicit SgdSegment(const Sgd& a)
      : ParameterSegment<P>(a.parameter, a.gradient, a.master, a.scale),
        momentum(a.momentum.as<T>()),
        lr(a.lr.as<const float>()),
        momentum_factor(T(a.momentum_factor)),
        weight_decay(T(a.weight_decay)),
        nesterov(a.nesterov) {}
  bool is_aligned() const { return ParameterSegment<P>::is_aligned() && gpu::is_aligned(momentum, 16); }

  struct Factors {
    T gradient, lr;
  };
  __device__ Factors factors() const { return {this->gradient_factor(), T(*lr)}; }

  template <int n>
  __device__ void update(const Factors& f, std::int64_t i) const {
    auto p = read_vector<n>(this->value + i);
    const auto gradients = this->template gradients<n>(i, f.gradient);
    Vector<T, n> buffer;
    if (momentum) buffer = read_vector<n>(momentum + i);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const T g = gradients.values[k] + weight_decay * p.values[k];
      T direction = g;
      if (momentum) {
        buffer.values[k] = momentum_factor * buffer.values[k] + g;
        direction = nesterov ? g + momentum_factor * buffer.values[k] : buffer.values[k];
      }
      p.values[k] -= f.lr * direction;
    }
    this->write(i, p);
    if (momentum) write_vector(momentum + i, buffer);
  }
};

template <class Rule>
__global__ void __launch_bounds__(block_size, 4) update_all(__grid_constant__ const Rule rule, std::int64_t count, bool aligned) {
  constexpr int width = Rule::width;
  __shared__ typename Rule::Factors shared;
  if (rule.is_skipped()) return;
  if (threadIdx.x == 0) shared = rule.factors();
  __syncthreads();
  const typename Rule::Factors factors = shared;
  const std::int64_t thread = std::int64_t(blockIdx.x) * block_size + threadIdx.x, threads = std::int64_t(gridDim.x) * block_size;
  const std::int64_t vectors = aligned ? count / width : 0;
  for (std::int64_t i = thread; i < vectors; i += threads) rule.template update<width>(factors, i * width);
  for (std::int64_t i = vectors * width + thread; i < count; i += threads) rule.template update<1>(factors, i);
}

template <class Rule>
void run(const Rule& rule, std::int64_t count, Stream stream) {
  if (count == 0) return;
  const unsigned blocks = blocks_for(count, block_size * Rule::width * vectors_per_thread);
  launch(update_all<Rule>, blocks, block_size, 0, stream, rule, count, rule.is_aligned());
}

}  // namespace

static void adam(const Adam& a) {
  dispatch_floats(a.parameter.dtype, "adam", [&]<class P>() { run(AdamSegment<P>(a), a.parameter.numel(), a.parameter.stream); });
}
void Adam::run(Cuda) const { adam(*this); }

static void lion(const Lion& a) {
  dispatch_floats(a.parameter.dtype, "lion", [&]<class P>() { run(LionSegment<P>(a), a.parameter.numel(), a.parameter.stream); });
}
void Lion::run(Cuda) const { lion(*this); }

static void rmsprop(const Rmsprop& a) {
  dispatch_floats(a.parameter.dtype, "rmsprop", [&]<class P>() { run(RmspropSegment<P>(a), a.parameter.numel(), a.parameter.stream); });
}
void Rmsprop::run(Cuda) const { rmsprop(*this); }

static void sgd(const Sgd& a) {
  dispatch_floats(a.parameter.dtype, "sgd", [&]<class P>() { run(SgdSegment<P>(a), a.parameter.numel(), a.parameter.stream); });
}
void Sgd::run(Cuda) const { sgd(*this); }

// Norm of all gradients in two kernels: blocks read the gradients once and leave one sum of squares each; one block adds these and computes
// the clip factor, by which the optimizer multiplies gradients. All sums have a fixed order.

namespace {

/// Block b adds the squares of part b of x.
template <class T>
__global__ void __launch_bounds__(block_size) add_squares(const T* x, std::int64_t count, bool aligned, double* sums) {
  using C = compute_t<T>;
  constexpr int width = 16 / sizeof(T), unroll = 4;
  const std::int64_t vectors = aligned ? count / width : 0;
  const std::int64_t thread = std::int64_t(blockIdx.x) * block_size + threadIdx.x, threads = std::int64_t(gridDim.x) * block_size;
  C sum[unroll] = {};
  std::int64_t i = thread;
  for (; i + (unroll - 1) * threads < vectors; i += unroll * threads) {
    Vector<T, width> values[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) values[u] = read_vector<width>(x + (i + u * threads) * width);
#pragma unroll
    for (int u = 0; u < unroll; ++u)
#pragma unroll
      for (const T value : values[u].values) sum[u] += convert<C>(value) * convert<C>(value);
  }
  for (; i < vectors; i += threads)
    for (const T value : read_vector<width>(x + i * width).values) sum[0] += convert<C>(value) * convert<C>(value);
  for (i = vectors * width + thread; i < count; i += threads) sum[1] += convert<C>(x[i]) * convert<C>(x[i]);
  double own = double(sum[0]) + double(sum[1]) + double(sum[2]) + double(sum[3]);
  if (!(own < INFINITY)) {  // squares overflow float, or a NaN: sum the thread's elements once more, in double
    own = 0;
    for (i = thread; i < vectors; i += threads)
      for (const T value : read_vector<width>(x + i * width).values) own += double(convert<C>(value)) * double(convert<C>(value));
    for (i = vectors * width + thread; i < count; i += threads) own += double(convert<C>(x[i])) * double(convert<C>(x[i]));
  }
  const double total = block_reduce<PlusOp<double>>(own);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void __launch_bounds__(block_size) finish(const double* sums, std::int64_t count, __grid_constant__ const ClipFactor result) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += block_size) sum += sums[i];
  const double total = block_reduce<PlusOp<double>>(sum);
  if (threadIdx.x == 0) result(total);
}

}  // namespace

/// About as many blocks as an H200 runs at once (132 multiprocessors, 8 blocks of 256 threads each); a smaller GPU runs them in waves.
/// Fewer if a block would have little to read.
std::int64_t square_sum_parts(Cuda, std::int64_t count) {
  constexpr std::int64_t max_parts = 1024, elements_per_part = 4096;
  return std::clamp<std::int64_t>(count / elements_per_part, 1, max_parts);
}

void SquareSums::run(Cuda) const {
  if (sums.numel() == 0) return;
  dispatch_floats(x.dtype, "square_sums", [&]<class T>() {
    launch(add_squares<T>, static_cast<unsigned>(sums.numel()), block_size, 0, x.stream, x.as<const T>(), x.numel(), is_aligned(x.data, 16),
           sums.as<double>());
  });
}

static void clip_factor(const Clip& a) {
  launch(finish, 1, block_size, 0, a.norm.stream, a.sums.as<const double>(), a.sums.numel(), ClipFactor(a));
}
void Clip::run(Cuda) const { clip_factor(*this); }

}  // namespace tern::kernels
