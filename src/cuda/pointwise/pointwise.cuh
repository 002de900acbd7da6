#pragma once
#include <cstring>

#include "cuda/device/indexer.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/pointwise.h"
#include "tensor/layout.h"

// The two kernels of all pointwise functions. Both are bound by memory: the number of bytes in flight matters.
//   - pointwise_vectors: 16 bytes per thread and operand, if innermost elements are adjacent in every operand (or one element
//     is broadcast to all of them, as in (5120, 256) * (5120, 1)) and addresses are aligned.
//   - pointwise_elements: any strides, and dtypes known only at run time, so that one instance serves many cases.
namespace tern::gpu {

/// A kernel's access to adjacent elements of an operand.
enum class Access : std::uint8_t {
  vector,     ///< contiguous elements
  broadcast,  ///< one element for all of them
  number,     ///< a number passed by the call
};

struct Input {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Access access = Access::vector;
  alignas(8) unsigned char number[8] = {};  ///< a computed_t of the input's tag

  template <class C>
  __device__ __forceinline__ C as() const {
    return *reinterpret_cast<const C*>(number);
  }
};

/// An input and how to iterate over it.
struct Source {
  Input input;
  Strides strides;
};

template <class C>
Source number_source(C value, const View& y) {
  Source source;
  source.input.access = Access::number;
  std::memcpy(source.input.number, &value, sizeof(C));
  source.strides = Strides::filled(y.dims(), 0);
  return source;
}
inline Source view_source(const View& view) {
  Source source;
  source.input.data = view.data;
  source.input.dtype = view.dtype;
  source.strides = view.strides;
  return source;
}
/// Operand of views of a dtype that are computed in C. For integers a number is clamped to the dtype's bounds.
template <class C>
Source source_of(const kernels::Operand& operand, const View& y, DType dtype) {
  if (!operand.is_number) return view_source(operand.view);
  if constexpr (std::is_same_v<C, std::int64_t>) {
    switch (dtype) {
      case DType::i32: return number_source<C>(number_as<std::int32_t>(operand.number), y);
      case DType::u8: return number_source<C>(number_as<std::uint8_t>(operand.number), y);
      default: return number_source<C>(number_as<std::int64_t>(operand.number), y);
    }
  } else {
    return number_source(static_cast<C>(operand.number), y);
  }
}

namespace detail {

template <int n>
struct Inputs {
  Input at[n];
};

template <class Out, int width, class F, class... C>
__device__ __forceinline__ auto evaluate(const F& f, const Vector<C, width>&... values) {
  using Result = std::conditional_t<is_tag<Out>, decltype(f(values.values[0]...)), Out>;
  Vector<Result, width> result;
#pragma unroll
  for (int k = 0; k < width; ++k) result.values[k] = convert<Result>(f(values.values[k]...));
  return result;
}

// All operands are read before any is converted: a conversion waits for its load, and no load should wait for a conversion.

/// Loads an input's elements, unconverted. A broadcast input has a single element; a number loads nothing.
template <class T, int width>
__device__ __forceinline__ Vector<T, width> fetch(const Input& input, std::int64_t offset, unsigned valid) {
  const T* const data = static_cast<const T*>(input.data) + offset;
  Vector<T, width> words = {};
  if (input.access == Access::vector && valid >= width) {
    words = read_vector<width>(data);
  } else if (input.access == Access::vector) {
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (k < valid) words.values[k] = data[k];
  } else if (input.access == Access::broadcast) {
    words.values[0] = *data;
  }
  return words;
}

template <class T, int width>
__device__ __forceinline__ Vector<computed_t<T>, width> expand(const Input& input, const Vector<T, width>& words) {
  using C = computed_t<T>;
  Vector<C, width> result;
  if (input.access == Access::vector) {
#pragma unroll
    for (int k = 0; k < width; ++k) result.values[k] = convert<C>(words.values[k]);
  } else {
    const C value = input.access == Access::number ? input.as<C>() : convert<C>(words.values[0]);
#pragma unroll
    for (int k = 0; k < width; ++k) result.values[k] = value;
  }
  return result;
}

/// Loads and converts an input's elements at any offsets.
template <class T, int width>
__device__ __forceinline__ Vector<computed_t<T>, width> gather(const Input& input, const std::int64_t (&offsets)[width], unsigned valid) {
  using C = computed_t<T>;
  Vector<C, width> result;
  if (input.access == Access::number) {
#pragma unroll
    for (int k = 0; k < width; ++k) result.values[k] = input.as<C>();
    return result;
  }
  with_type<T>(input.dtype, [&]<class S>() {
    Vector<S, width> words = {};
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (k < valid) words.values[k] = static_cast<const S*>(input.data)[offsets[k]];
#pragma unroll
    for (int k = 0; k < width; ++k) result.values[k] = convert<C>(words.values[k]);
  });
  return result;
}

template <class... T>
inline constexpr int vector_width = 16 / static_cast<int>(std::max({sizeof(T)...}));

/// vectors_body after its loads: converts the elements and applies f.
template <class Out, int width, class F, class... In, int... i>
__device__ __forceinline__ Vector<Out, width> evaluate_words(const F& f, const Inputs<sizeof...(In)>& inputs,
                                                             std::integer_sequence<int, i...>, const Vector<In, width>&... words) {
  return evaluate<Out>(f, expand<In, width>(inputs.at[i], words)...);
}

template <class F, class Out, class... In, int... i>
__device__ __forceinline__ void vectors_body(const F& f, Out* out, const Inputs<sizeof...(In)>& inputs,
                                             const Indexer<1 + sizeof...(In)>& indexer, std::uint32_t count,
                                             std::integer_sequence<int, i...> sequence) {
  constexpr int width = vector_width<Out, In...>;
  const std::uint32_t first = (blockIdx.x * block_size + threadIdx.x) * width;
  if (first >= count) return;
  const std::uint32_t valid = count - first;  // fewer than width only at the end of a single dimension
  std::int64_t offsets[1 + sizeof...(In)];
  indexer.locate(first, offsets);
  const auto result = evaluate_words<Out, width>(f, inputs, sequence, fetch<In, width>(inputs.at[i], offsets[i + 1], valid)...);
  if (valid >= width) {
    *reinterpret_cast<Vector<Out, width>*>(out + offsets[0]) = result;
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (k < valid) out[offsets[0] + k] = result.values[k];
  }
}

template <class F, class Out, class... In>
__global__ void __launch_bounds__(block_size)
    pointwise_vectors(F f, Out* out, Inputs<sizeof...(In)> inputs, Indexer<1 + sizeof...(In)> indexer, std::uint32_t count) {
  vectors_body<F, Out, In...>(f, out, inputs, indexer, count, std::make_integer_sequence<int, sizeof...(In)>());
}

/// Elements per thread, whose loads are in flight together; doubles need not be fast, and inline large functions.
template <class... In>
inline constexpr int items_of = std::max({sizeof(computed_t<In>)...}) <= 4 ? 4 : 1;

template <class F, class Out, class... In, int... i>
__device__ __forceinline__ void elements_body(const F& f, void* out, DType dtype, const Inputs<sizeof...(In)>& inputs,
                                              const Indexer<1 + sizeof...(In)>& indexer, std::uint32_t count,
                                              std::integer_sequence<int, i...>) {
  constexpr int items = items_of<In...>;
  constexpr int operands = 1 + sizeof...(In);
  const std::uint32_t first = blockIdx.x * (block_size * items) + threadIdx.x;
  std::int64_t offsets[operands][items];
  unsigned valid = 0;
#pragma unroll
  for (int k = 0; k < items; ++k) {
    const std::uint32_t index = first + k * block_size;
    std::int64_t located[operands] = {};
    if (index < count) {
      indexer.locate(index, located);
      valid = k + 1;
    }
#pragma unroll
    for (int o = 0; o < operands; ++o) offsets[o][k] = located[o];
  }
  const auto result = evaluate<Out>(f, gather<In, items>(inputs.at[i], offsets[i + 1], valid)...);
#pragma unroll
  for (int k = 0; k < items; ++k)
    if (k < valid) write<Out>(out, dtype, offsets[0][k], result.values[k]);
}

template <class F, class Out, class... In>
__global__ void __launch_bounds__(block_size)
    pointwise_elements(F f, void* out, DType dtype, Inputs<sizeof...(In)> inputs, Indexer<1 + sizeof...(In)> indexer, std::uint32_t count) {
  elements_body<F, Out, In...>(f, out, dtype, inputs, indexer, count, std::make_integer_sequence<int, sizeof...(In)>());
}

/// True if operand `data` of element size `size` can be read in vectors of `width`; sets its access.
template <int n>
bool find_access(const Layout<n>& layout, int operand, const void* data, std::size_t size, int width, Access& access) {
  const std::int64_t inner = layout.strides[operand][0];
  if (operand > 0 && inner == 0) {
    access = Access::broadcast;
    return true;
  }
  access = Access::vector;
  if (inner != 1 || !is_aligned(data, size * width)) return false;
  for (int d = 1; d < layout.dims; ++d)
    if (layout.strides[operand][d] % width != 0) return false;
  return true;
}

}  // namespace detail

/// y = f(sources...), elementwise. Out and In are element types, or tags for dtypes known at run time (convert.cuh).
template <class Out, class... In, class F>
void pointwise(const F& f, const View& y, const Source (&sources)[sizeof...(In)]) {
  constexpr int n = sizeof...(In);
  if (y.numel() == 0) return;
  Strides strides[1 + n] = {y.strides};
  for (int i = 0; i < n; ++i) strides[i + 1] = sources[i].strides;
  Layout<1 + n> whole = layout_of(y.shape, strides);
  whole.simplify();

  for_pieces(whole, [&](const Layout<1 + n>& layout, const std::int64_t* offsets) {
    const auto count = static_cast<std::uint32_t>(layout.numel());
    const auto at = [](const void* data, DType dtype, std::int64_t offset) {
      return static_cast<const char*>(data) + offset * static_cast<std::int64_t>(size_of(dtype));
    };
    void* out = const_cast<char*>(at(y.data, y.dtype, offsets[0]));
    detail::Inputs<n> inputs;
    for (int i = 0; i < n; ++i) {
      inputs.at[i] = sources[i].input;
      if (inputs.at[i].access != Access::number) inputs.at[i].data = at(sources[i].input.data, sources[i].input.dtype, offsets[i + 1]);
    }

    if constexpr (!is_tag<Out> && (!is_tag<In> && ...)) {
      constexpr int width = detail::vector_width<Out, In...>;
      detail::Inputs<n> vectors = inputs;
      Access ignored;
      bool fits = (layout.dims == 1 || layout.sizes[0] % width == 0) && detail::find_access(layout, 0, out, sizeof(Out), width, ignored);
      constexpr std::size_t sizes[] = {sizeof(In)...};
      for (int i = 0; i < n && fits; ++i)
        if (inputs.at[i].access != Access::number)
          fits = detail::find_access(layout, i + 1, inputs.at[i].data, sizes[i], width, vectors.at[i].access);
      if (fits)
        return launch(detail::pointwise_vectors<F, Out, In...>, blocks_for(count, std::int64_t(block_size) * width), block_size, 0,
                      y.stream, f, static_cast<Out*>(out), vectors, layout, count);
    }
    constexpr int items = detail::items_of<erased_t<In>...>;
    launch(detail::pointwise_elements<F, erased_t<Out>, erased_t<In>...>, blocks_for(count, block_size * items), block_size, 0, y.stream, f,
           out, y.dtype, inputs, layout, count);
  });
}

}  // namespace tern::gpu
