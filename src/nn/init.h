#pragma once
#include "tensor/context.h"
#include "tensor/tensor.h"

/// Initializers: each fills a tensor in place from this thread's generator, outside autograd, and returns it. The fans are those of a
/// weight (out, in, ...): fan_in is the product of all sizes but the first.
namespace tern::nn::init {

/// Scope in which this thread's initializers draw no random numbers and leave those weights unset: for a model all of whose weights are
/// then read from a file.
class Unset {
 public:
  Unset() : value_(here(), true) {}
  static bool& here();  ///< true within such a scope of this thread

 private:
  ScopedValue<bool> value_;
};

Tensor constant(const Tensor& x, double value);                  ///< x (...), of any dtype that represents the value
inline Tensor zeros(const Tensor& x) { return constant(x, 0); }  ///< initial biases
inline Tensor ones(const Tensor& x) { return constant(x, 1); }   ///< initial weights of norms
/// Uniform in [low, high), for a contiguous floating tensor.
Tensor uniform(const Tensor& x, double low = 0, double high = 1);
/// Normal with the given mean and standard deviation, for a contiguous floating tensor.
Tensor normal(const Tensor& x, double mean = 0, double deviation = 1);
/// Truncated normal distribution, limited to [low, high]. Throws Error unless low < high.
Tensor trunc_normal(const Tensor& x, double mean = 0, double deviation = 1, double low = -2, double high = 2);

/// Fan-in and fan-out of a weight, by which the variance of a layer's output is preserved: Glorot & Bengio, 2010.
struct Fans {
  std::int64_t in = 1;   ///< product of all sizes but the first
  std::int64_t out = 1;  ///< product of all sizes but the second
};
/// Fans of a weight's shape. Throws Error for fewer than two dimensions.
Fans fans(const Shape& shape);

/// Xavier uniform, with bound gain * sqrt(6 / (fan_in + fan_out)), deviation gain * sqrt(2 / (fan_in + fan_out)). Glorot & Bengio, 2010.
Tensor xavier_uniform(const Tensor& x, double gain = 1);
/// Xavier normal, with the same deviation.
Tensor xavier_normal(const Tensor& x, double gain = 1);
/// Kaiming uniform, with bound gain * sqrt(3 / fan_in), deviation gain / sqrt(fan_in), and gain = sqrt(2 / (1 + a^2)) for a leaky ReLU of
/// slope a. He et al., 2015.
Tensor kaiming_uniform(const Tensor& x, double a = 0);
/// Kaiming normal, with the same deviation.
Tensor kaiming_normal(const Tensor& x, double a = 0);

}  // namespace tern::nn::init

namespace tern::nn::detail {

/// Uninitialized f32 tensor that requires a gradient.
inline Tensor parameter(const Shape& shape, Device device) {
  Tensor x = empty(shape, DType::f32, device);
  return x.set_requires_grad();
}

/// Weight of a linear layer or a convolution, (out, in, ...), and its bias, (out) or undefined: both uniform in +-1 / sqrt(fan_in), as in
/// PyTorch, from this thread's generator.
void make_weight_and_bias(Tensor& weight, Tensor& bias, const Shape& shape, bool with_bias, Device device);

}  // namespace tern::nn::detail
