#pragma once
#include "cuda/convert.cuh"
#include "cuda/launch.h"
#include "tensor/view.h"

// What the depthwise convolution and its gradient share. Memory bounds both, so that each element should come from memory once and in
// vectors, and what neighbours read twice should come from the caches:
//
// - channels last, (B, L, D) with a unit stride along D: a thread has a vector of channels and walks along L, and the K elements that a
//   position sees slide through its registers. The warps of a block have tiles of L one after the other, whose K - 1 common positions
//   lie in the first-level cache.
// - channels first, a unit stride along L: a thread has a vector of positions of one channel, and reads the aligned vectors that cover
//   what these see. The distance from a vector's start is the same for all threads.
// - all else (other K, f64, lengths that are no multiple of a vector, any strides) takes kernels that read element by element.
namespace tern::gpu::conv {

/// Taps for which there are kernels of their own.
template <class F>
bool with_taps(std::int64_t taps, F&& f) {
  switch (taps) {
    case 2: f.template operator()<2>(); return true;
    case 3: f.template operator()<3>(); return true;
    case 4: f.template operator()<4>(); return true;
    case 5: f.template operator()<5>(); return true;
    case 7: f.template operator()<7>(); return true;
    default: return false;
  }
}

template <class F>
bool with_short_floats(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::f16: return f.template operator()<f16>();
    case DType::bf16: return f.template operator()<bf16>();
    default: return false;
  }
}

/// A signal (B, L, D): its strides along batch, position and channel.
template <class T>
struct Signal {
  T* data = nullptr;
  std::int64_t batch = 0, position = 0, channel = 0;
  int length = 0;

  Signal() = default;
  explicit Signal(const View& x) : data(x.as<T>()) {
    if (!data) return;
    batch = x.strides[0], position = x.strides[1], channel = x.strides[2];
    length = static_cast<int>(x.shape[1]);
  }
  __device__ std::int64_t at(std::int64_t b, std::int64_t l, std::int64_t d) const { return b * batch + l * position + d * channel; }
  __device__ bool has(int l) const { return l >= 0 && l < length; }
};

/// True where every vector of `width` along dimension `fast` lies on its alignment.
template <class T, int width>
bool has_vectors(const View& x, int fast) {
  if (!x.data) return true;
  const int slow = 3 - fast;
  return (x.strides[fast] == 1 || x.shape[fast] == 1) && x.shape[fast] % width == 0 && x.strides[0] % width == 0 && x.strides[slow] % width == 0 &&
         is_aligned(x.data, sizeof(T) * width);
}
inline bool is_channels_last(const View& u) { return u.strides[1] != 1 || (u.strides[2] == 1 && u.shape[2] > 1); }
/// Positions are counted in ints, with room for padding.
inline bool is_short(const View& x) { return !x.data || x.shape[1] < (1 << 30); }

template <class T, int width>
__device__ __forceinline__ void unpack(const Vector<T, width>& from, float (&to)[width]) {
#pragma unroll
  for (int i = 0; i < width; ++i) to[i] = convert<float>(from.values[i]);
}
template <class T, int width>
__device__ __forceinline__ void write_floats(T* to, const float (&from)[width]) {
  Vector<T, width> packed;
#pragma unroll
  for (int i = 0; i < width; ++i) packed.values[i] = convert<T>(from[i]);
  write_vector(to, packed);
}

/// taps[k][i] = w[channel + i, k]. A vector's taps lie side by side: they come in K vectors.
template <class T, int K, int width>
__device__ __forceinline__ void read_taps(const T* w, std::int64_t channel, float (&taps)[K][width]) {
#pragma unroll
  for (int v = 0; v < K; ++v) {
    const auto part = read_vector<width>(w + channel * K + v * width);
#pragma unroll
    for (int i = 0; i < width; ++i) taps[(v * width + i) % K][(v * width + i) / K] = convert<float>(part.values[i]);
  }
}
template <class T, int width>
__device__ __forceinline__ void read_bias(const T* bias, std::int64_t channel, float (&values)[width]) {
#pragma unroll
  for (int i = 0; i < width; ++i) values[i] = 0;
  if (bias) unpack(read_vector<width>(bias + channel), values);
}

/// x[i] = x[i + by] for by < 2 step, a power of two at a time: an index that is known at run time only would put the array in memory.
template <int step, int count>
__device__ __forceinline__ void shift_left(float (&x)[count], int by) {
  if constexpr (step > 0) {
    if (by & step) {
#pragma unroll
      for (int i = 0; i + step < count; ++i) x[i] = x[i + step];
    }
    shift_left<step / 2>(x, by);
  }
}

/// The positions from .. from + count of a channel, zeros outside of it. Where the channel's vectors are aligned; `row` is its first element.
template <int width, int count, class T>
__device__ __forceinline__ void read_window(const T* row, int from, int length, float (&x)[count]) {
  constexpr int vectors = (count + 2 * width - 2) / width;
  const int off = from & (width - 1), base = from - off;
  float wide[vectors * width];
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    const int position = base + v * width;
    Vector<T, width> raw{};
    if (position >= 0 && position < length && v * width < off + count) raw = read_vector<width>(row + position);
#pragma unroll
    for (int i = 0; i < width; ++i) wide[v * width + i] = convert<float>(raw.values[i]);
  }
  shift_left<width / 2>(wide, off);
#pragma unroll
  for (int i = 0; i < count; ++i) x[i] = wide[i];
}

__device__ __forceinline__ float silu(float z) { return __fdividef(z, 1 + __expf(-z)); }
__device__ __forceinline__ double silu(double z) { return z / (1 + exp(-z)); }
/// The derivative of silu.
__device__ __forceinline__ float silu_slope(float z) {
  const float s = __fdividef(1, 1 + __expf(-z));
  return s * (1 + z * (1 - s));
}
__device__ __forceinline__ double silu_slope(double z) {
  const double s = 1 / (1 + exp(-z));
  return s * (1 + z * (1 - s));
}

}  // namespace tern::gpu::conv
