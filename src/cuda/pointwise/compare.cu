#include "cuda/pointwise/pointwise.cuh"
#include "cuda/runtime/dispatch.h"
#include "tensor/dispatch.h"

// Comparisons, and the choice between two elements by a condition.
namespace tern::kernels {

namespace {

struct Choose {
  template <class T>
  __device__ T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

/// True if the number is not a value of the integer dtype, so that integers are compared with it as doubles.
bool needs_double(const Operand& operand, DType dtype) {
  if (!operand.is_number) return false;
  switch (dtype) {
    case DType::i32: return static_cast<double>(gpu::number_as<std::int32_t>(operand.number)) != operand.number;
    case DType::i64: return static_cast<double>(gpu::number_as<std::int64_t>(operand.number)) != operand.number;
    default: return static_cast<double>(gpu::number_as<std::uint8_t>(operand.number)) != operand.number;
  }
}

/// The operand's elements as bits; a number is converted to y's dtype.
template <class Bits>
gpu::Source bits_source(const Operand& operand, const View& y) {
  if (!operand.is_number) return gpu::view_source(operand.view);
  return gpu::number_source(static_cast<Bits>(gpu::bits_of(operand.number, y.dtype)), y);
}

}  // namespace

void Compare::run(Cuda) const {
  const DType dtype = a.is_number ? b.view.dtype : a.view.dtype;
  dispatch_functor(f, [&](auto function) {
    const auto run = [&]<class T>() {
      using C = gpu::computed_t<T>;
      gpu::pointwise<bool, T, T>(function, y, {gpu::source_of<C>(a, y, dtype), gpu::source_of<C>(b, y, dtype)});
    };
    if (gpu::dispatch_elements(dtype, run)) return;
    if (needs_double(a, dtype) || needs_double(b, dtype)) run.template operator()<gpu::IntegerAsDouble>();
    else run.template operator()<gpu::Any<std::int64_t>>();
  });
}

void Where::run(Cuda) const {
  dispatch_bits(y.dtype, [&]<class Bits>() {
    gpu::pointwise<Bits, bool, Bits, Bits>(Choose{}, y, {gpu::view_source(condition), bits_source<Bits>(a, y), bits_source<Bits>(b, y)});
  });
}

}  // namespace tern::kernels
