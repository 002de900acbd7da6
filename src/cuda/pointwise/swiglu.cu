#include "cuda/pointwise/pointwise.cuh"

// SwiGLU: silu(gate) x and both of its gradients, in one pass over memory each way.
namespace tern::kernels {

using namespace gpu;

namespace {

struct Gated {
  template <class C>
  __device__ C operator()(C gate, C x) const {
    return functors::Silu{}(gate)*x;
  }
};

/// `width` elements per thread: a vector of 16 bytes, or one element.
template <class T, int width>
__global__ void __launch_bounds__(block_size) gate_gradients(const T* __restrict__ g, const T* __restrict__ gate, const T* __restrict__ x,
                                                             T* __restrict__ dgate, T* __restrict__ dx, std::int64_t count) {
  const std::int64_t first = (std::int64_t(blockIdx.x) * block_size + threadIdx.x) * width;
  const auto differentiate = [](float of_y, float a, float b, float& da, float& db) {
    da = of_y * b * functors::Silu{}.grad(a, 0.0f);
    db = of_y * functors::Silu{}(a);
  };
  if (first + width > count) {
    for (std::int64_t i = first; i < count; ++i) {
      float da, db;
      differentiate(convert<float>(g[i]), convert<float>(gate[i]), convert<float>(x[i]), da, db);
      dgate[i] = convert<T>(da);
      dx[i] = convert<T>(db);
    }
    return;
  }
  const auto g_words = read_packed<width>(g + first), gate_words = read_packed<width>(gate + first),
             x_words = read_packed<width>(x + first);
  float of_y[width], a[width], b[width], da[width], db[width];
  unpack<T, float, width>(g_words, of_y);
  unpack<T, float, width>(gate_words, a);
  unpack<T, float, width>(x_words, b);
#pragma unroll
  for (int k = 0; k < width; ++k) differentiate(of_y[k], a[k], b[k], da[k], db[k]);
  write_packed<width, T>(dgate + first, pack<T>(da));
  write_packed<width, T>(dx + first, pack<T>(db));
}

template <class F>
void dispatch(DType dtype, F&& f) {
  if (!dispatch_short_floats(dtype, f)) fail("swiglu", std::string("expected f32, f16 or bf16 but got ") + name(dtype));
}

}  // namespace

void Swiglu::run(Cuda) const {
  dispatch(y.dtype, [&]<class T>() { pointwise<T, T, T>(Gated{}, y, {view_source(gate), view_source(x)}); });
}

void SwigluGrad::run(Cuda) const {
  const std::int64_t count = g.numel();
  if (count == 0) return;
  const auto with = [&]<class T, int width>() {
    launch(gate_gradients<T, width>, blocks_for(count, block_size * width), block_size, 0, g.stream, g.as<const T>(), gate.as<const T>(),
           x.as<const T>(), dgate.as<T>(), dx.as<T>(), count);
  };
  bool has_vectors = true;
  for (const View* view : std::initializer_list<const View*>{&g, &gate, &x, &dgate, &dx})
    has_vectors = has_vectors && is_aligned(view->data, 16);
  dispatch(g.dtype, [&]<class T>() { has_vectors ? with.template operator()<T, vec16_width<T>>() : with.template operator()<T, 1>(); });
}

}  // namespace tern::kernels
