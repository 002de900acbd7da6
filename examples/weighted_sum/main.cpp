// An op of one's own with kernels of one's own: the weighted sum of rows, on the CPU and on a GPU, as a Function that autograd
// differentiates.
#include <tern/tern.h>

#include <cstdio>
#include <stdexcept>

#include "weighted_sum.h"

using namespace tern;

struct WeightedSum : Function<WeightedSum> {
  // Its backward is kernels, which cannot be differentiated again.
  static constexpr bool once_differentiable = true;

  // x (..., D) and w (D) -> (...)
  static Tensor forward(Tensors& saved, const Tensor& x_, const Tensor& w_) {
    if (x_.dims() < 1 || w_.dims() != 1 || x_.size(-1) != w_.size(0) || x_.dtype() != DType::f32 || w_.dtype() != DType::f32)
      throw std::invalid_argument("weighted_sum: expected x (..., D) and w (D) of f32");
    const Tensor x = contiguous(x_), w = contiguous(w_);
    saved = {x, w};
    const Tensor y = empty(Shape(x.shape().begin(), x.shape().end() - 1), DType::f32, x.device());
    if (x.device() == cpu) on_cpu::weighted_sum(size_of(x), x.data<float>(), w.data<float>(), y.data<float>());
#ifdef WEIGHTED_SUM_CUDA
    else on_gpu::weighted_sum(size_of(x), x.data<float>(), w.data<float>(), y.data<float>(), y.view().stream.handle);
#endif
    return y;
  }

  static Tensors backward(const Backward& call) {
    const Tensor x = call.saved(0), w = call.saved(1), g = contiguous(call.grad()), dx = empty_like(x);
    const Tensor dw = empty({tiles_of(size_of(x).rows), w.size(0)}, DType::f32, x.device());
    const float *from_x = x.data<float>(), *from_w = w.data<float>(), *from_g = g.data<float>();
    if (x.device() == cpu) on_cpu::weighted_sum_grad(size_of(x), from_x, from_w, from_g, dx.data<float>(), dw.data<float>());
#ifdef WEIGHTED_SUM_CUDA
    else on_gpu::weighted_sum_grad(size_of(x), from_x, from_w, from_g, dx.data<float>(), dw.data<float>(), dx.view().stream.handle);
#endif
    return {dx, sum(dw, {0})};
  }

 private:
  static Matrix size_of(const Tensor& x) { return {x.size(-1) == 0 ? 0 : x.numel() / x.size(-1), x.size(-1)}; }
};

/// The largest difference of result and gradients from those of a composition of ops.
static float error_of(const Shape& shape, Device device) {
  const auto run = [&](auto f) {
    manual_seed(0);
    const Tensor x = randn(shape, 0, 1, DType::f32, device).set_requires_grad(),
                 w = randn({shape.back()}, 0, 1, DType::f32, device).set_requires_grad();
    const Tensor y = f(x, w);
    sum(y * y).backward();
    return Tensors{y, x.grad(), w.grad()};
  };
  const Tensors own = run([](const Tensor& x, const Tensor& w) { return WeightedSum::apply(x, w); });
  const Tensors composed = run([](const Tensor& x, const Tensor& w) { return sum(x * w, {-1}); });
  float worst = 0;
  for (std::size_t i = 0; i < own.size(); ++i)
    worst = std::max(worst, (max(abs(own[i] - composed[i])) / (1 + max(abs(composed[i])))).item<float>());
  return worst;
}

int main() {
  std::vector<Device> devices = {cpu};
#ifdef WEIGHTED_SUM_CUDA
  if (cuda_device_count() > 0) devices.push_back(cuda());
#endif
  float worst = 0;
  for (const Device device : devices)
    for (const Shape& shape : {Shape{128, 64}, Shape{1, 1}, Shape{3, 37, 100}, Shape{17, 1025}}) {  // with and without rests of tiles
      const float error = error_of(shape, device);
      std::printf("%s %s: off by %.1e\n", to_string(device).c_str(), to_string(shape).c_str(), static_cast<double>(error));
      worst = std::max(worst, error);
    }
  return worst < 1e-5f ? 0 : 1;
}
