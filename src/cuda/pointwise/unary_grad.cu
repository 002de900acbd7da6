#include "cuda/pointwise/pointwise.cuh"

// Derivatives of unary functions.
namespace tern::kernels {

namespace {

/// dx = g f'(x), given y = f(x).
template <class F>
struct Gradient {
  F f;
  template <class T>
  __device__ T operator()(T g, T x, T y) const {
    return functors::gradient(f, g, x, y);
  }
};

}  // namespace

void unary_grad(Cuda, const Unary& f, const View& g, const View& x, const View& y, const View& dx) {
  dispatch_functor(f, [&](auto function) {
    const gpu::Source sources[] = {gpu::view_source(g), gpu::view_source(x), gpu::view_source(y)};
    const auto run = [&]<class T>() { gpu::pointwise<T, T, T, T>(Gradient<decltype(function)>{function}, dx, sources); };
    if (!gpu::dispatch_elements(dx.dtype, run)) fail("unary_grad", std::string("expected a floating dtype but got ") + name(dx.dtype));
  });
}

}  // namespace tern::kernels
