#include "cuda/pointwise/pointwise.cuh"

// Unary functions (Note [Functors]); their derivatives are in unary_grad.cu.
namespace tern::kernels {

void unary(Cuda, const Unary& f, const View& x, const View& y) {
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

}  // namespace tern::kernels
