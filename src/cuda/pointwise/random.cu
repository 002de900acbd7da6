#include <cmath>

#include "cuda/device/philox_dropout.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/random.h"
#include "tensor/dispatch.h"

// Random numbers and dropout: a thread computes one Philox block and the four elements from it. (permutation is in sort.cu.)
namespace tern::kernels {

using namespace gpu;

namespace {

/// Each thread calls f, which computes four elements from a block's words, and writes those that exist. `vector`: all four exist and are
/// aligned.
template <class T, class F>
__global__ void __launch_bounds__(block_size) map_blocks(F f, T* y, std::int64_t count, PhiloxState state, bool aligned) {
  const std::int64_t block = std::int64_t(blockIdx.x) * block_size + threadIdx.x, first = 4 * block;
  if (first >= count) return;
  const std::uint64_t base = state.base ? *state.base : 0;
  const PhiloxBlock words = philox(state.seed, state.offset + base + static_cast<std::uint64_t>(block));
  const bool whole = first + 4 <= count;
  Vector<T, 4> elements;
  f(words, first, whole && aligned, count, elements);
  if (whole && aligned) {
    *reinterpret_cast<Vector<T, 4>*>(y + first) = elements;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (first + k < count) y[first + k] = elements.values[k];
  }
}

template <class T, class F>
void fill_blocks(const View& y, PhiloxState state, bool aligned, F f) {
  const std::int64_t count = y.numel();
  if (count == 0) return;
  launch(map_blocks<T, F>, blocks_for(count, 4 * block_size), block_size, 0, y.stream, f, y.as<T>(), count, state,
         aligned && is_aligned(y.data, 4 * sizeof(T)));
}

template <class T>
struct UniformNumbers {
  UniformRange<T, computed_t<T>> range;
  __device__ void operator()(const PhiloxBlock& block, std::int64_t, bool, std::int64_t, Vector<T, 4>& out) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) out.values[k] = convert<T>(range(unit_float(block.words[k])));
  }
};

template <class T>
struct WholeNumbersOf {
  WholeNumbers numbers;
  PhiloxState state;
  __device__ void operator()(const PhiloxBlock& upper, std::int64_t first, bool, std::int64_t, Vector<T, 4>& out) const {
    const std::uint64_t position = state.offset + (state.base ? *state.base : 0) + static_cast<std::uint64_t>(first / 4);
    const PhiloxBlock lower = numbers.is_wide ? philox(state.seed, position, 1) : upper;
#pragma unroll
    for (int k = 0; k < 4; ++k) out.values[k] = static_cast<T>(numbers(upper.words[k], lower.words[k], state.seed, position, k));
  }
};

/// Two normal numbers from two words: Box & Muller, 1958.
__device__ __forceinline__ void box_muller(std::uint32_t a, std::uint32_t b, float& first, float& second) {
  const float radius = std::sqrt(-2.0f * std::log((static_cast<float>(a >> 8) + 0.5f) * 0x1p-24f));
  float sine, cosine;
  sincospif(2.0f * unit_float(b), &sine, &cosine);
  first = radius * cosine;
  second = radius * sine;
}
__device__ __forceinline__ void box_muller(std::uint32_t a, std::uint32_t b, double& first, double& second) {
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(a >> 8) + 0.5) * 0x1p-24));
  double sine, cosine;
  sincospi(2.0 * static_cast<double>(unit_float(b)), &sine, &cosine);
  first = radius * cosine;
  second = radius * sine;
}

template <class T>
struct NormalNumbers {
  computed_t<T> mean, deviation;
  __device__ void operator()(const PhiloxBlock& block, std::int64_t, bool, std::int64_t, Vector<T, 4>& out) const {
    computed_t<T> z[4];
    box_muller(block.words[0], block.words[1], z[0], z[1]);
    box_muller(block.words[2], block.words[3], z[2], z[3]);
#pragma unroll
    for (int k = 0; k < 4; ++k) out.values[k] = convert<T>(mean + deviation * z[k]);
  }
};

/// Zero and one are the bits of these numbers in the dtype.
template <class Bits>
struct BernoulliNumbers {
  std::uint32_t bound;  ///< word >> 8 is below this if and only if unit_float(word) < probability
  Bits one;
  __device__ void operator()(const PhiloxBlock& block, std::int64_t, bool, std::int64_t, Vector<Bits, 4>& out) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) out.values[k] = block.words[k] >> 8 < bound ? one : Bits(0);
  }
};

/// Dropout uses 16-bit random numbers, see Note [Dropout's bits].
template <class T>
struct DropoutOfElements {
  const T* x;
  gpu::Dropout<computed_t<T>> dropout;
  __device__ void operator()(const PhiloxBlock&, std::int64_t first, bool vector, std::int64_t count, Vector<T, 4>& out) const {
    Vector<T, 4> in{};
    if (vector) in = read_vector<4>(x + first);
    computed_t<T> values[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (!vector && first + k < count) in.values[k] = x[first + k];
      values[k] = convert<computed_t<T>>(in.values[k]);
    }
    if (dropout.drops) dropout(values, first, dropout.position());
#pragma unroll
    for (int k = 0; k < 4; ++k) out.values[k] = convert<T>(values[k]);
  }
};

}  // namespace

void Uniform::run(Cuda) const {
  dispatch_floats(y.dtype, "uniform", [&]<class T>() { fill_blocks<T>(y, state, true, UniformNumbers<T>{{low, high}}); });
}

void Normal::run(Cuda) const {
  dispatch_floats(y.dtype, "normal", [&]<class T>() {
    using C = computed_t<T>;
    fill_blocks<T>(y, state, true, NormalNumbers<T>{static_cast<C>(mean), static_cast<C>(deviation)});
  });
}

void Bernoulli::run(Cuda) const {
  dispatch_bits(y.dtype, [&]<class Bits>() {
    fill_blocks<Bits>(y, state, true, BernoulliNumbers<Bits>{draws_below(probability, 24), static_cast<Bits>(bits_of(1, y.dtype))});
  });
}

void Randint::run(Cuda) const {
  dispatch_numbers(y.dtype, "whole_numbers", [&]<class T>() {
    if constexpr (std::is_integral_v<T>) fill_blocks<T>(y, state, true, WholeNumbersOf<T>{{low, span}, state});
  });
}

void Dropout::run(Cuda) const {
  dispatch_floats(y.dtype, "dropout", [&]<class T>() {
    const DropoutOfElements<T> dropped{x.as<const T>(), gpu::Dropout<computed_t<T>>(p, state)};
    fill_blocks<T>(y, state, is_aligned(x.data, 4 * sizeof(T)), dropped);
  });
}

}  // namespace tern::kernels
