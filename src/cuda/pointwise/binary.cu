#include "cuda/pointwise/pointwise.cuh"

// Functions of two elements.
namespace tern::kernels {

void binary(Cuda, const Binary& f, const Operand& a, const Operand& b, const View& y) {
  // x^2 is by far the most frequent power.
  if (std::holds_alternative<functors::Pow>(f) && b.is_number && b.number == 2) return binary(Cuda{}, functors::Mul{}, a, a, y);
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
