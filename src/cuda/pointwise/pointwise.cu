#include "cuda/pointwise/pointwise.cuh"

// Functions of one element, with their derivatives, and of two (Note [Functors]).
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

void Unary::run(Cuda) const {
  dispatch_functor(f, [&](auto function) {
    const gpu::Source source = gpu::view_source(x);
    const auto run = [&]<class T>() { gpu::pointwise<T, T>(function, y, {source}); };
    if (gpu::dispatch_elements(y.dtype, run)) return;
    if constexpr (function.integral) {
      if (y.dtype != DType::boolean) return run.template operator()<gpu::Any<std::int64_t>>();
    }
    fail("unary", std::string("expected a dtype that the function takes but got ") + name(y.dtype));
  });
}

void UnaryGrad::run(Cuda) const {
  dispatch_functor(f, [&](auto function) {
    const gpu::Source sources[] = {gpu::view_source(g), gpu::view_source(x), gpu::view_source(y)};
    const auto run = [&]<class T>() { gpu::pointwise<T, T, T, T>(Gradient<decltype(function)>{function}, dx, sources); };
    if (!gpu::dispatch_elements(dx.dtype, run)) fail("unary_grad", std::string("expected a floating dtype but got ") + name(dx.dtype));
  });
}

void Binary::run(Cuda) const {
  // x^2 is by far the most frequent power.
  if (std::holds_alternative<functors::Pow>(f) && b.is_number && b.number == 2) return Binary{functors::Mul{}, a, a, y}.run(Cuda{});
  dispatch_functor(f, [&](auto function) {
    const auto run = [&]<class T>() {
      using C = gpu::computed_t<T>;
      gpu::pointwise<T, T, T>(function, y, {gpu::source_of<C>(a, y, y.dtype), gpu::source_of<C>(b, y, y.dtype)});
    };
    if (y.dtype == DType::boolean) fail("binary", "expected a numeric dtype but got bool");
    if constexpr (is_integral_only<decltype(function)>) run.template operator()<gpu::Any<std::int64_t>>();
    else if (!gpu::dispatch_elements(y.dtype, run)) run.template operator()<gpu::Any<std::int64_t>>();
  });
}

}  // namespace tern::kernels
