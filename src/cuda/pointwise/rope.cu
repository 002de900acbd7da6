#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/attention.h"
#include "tensor/dispatch.h"

// Rotary position embedding: a thread rotates the pairs of one vector of 16 bytes, or of two vectors of 8 bytes if the elements of a pair
// are in different halves of the head, or a single pair. Threads follow y's memory order, so that writes are coalesced, and reads too if x
// has the same layout; the table is read by every head and batch row, and stays in the cache.
namespace tern::kernels {

using namespace gpu;

namespace {

template <class T>
struct Rotation {
  const T* x;
  T* y;
  const computed_t<T>* table;
  std::int64_t from[3], to[3];      ///< strides of x and y along batch, head, position
  unsigned heads, rotated, length;  ///< rotated: number of heads that are rotated
  unsigned parts;                   ///< threads per row
  std::int64_t count;               ///< total number of threads
  bool positions_first, inverse;    ///< positions_first: positions of a head are adjacent in memory
};

/// `width` elements at an address, which is a multiple of 16 bytes if `aligned`.
template <bool aligned, int width, class T>
__device__ __forceinline__ void read(const T* from, T (&values)[width]) {
  constexpr int step = aligned ? (width < vec16_width<T> ? width : vec16_width<T>) : 1;
#pragma unroll
  for (int i = 0; i < width; i += step) *reinterpret_cast<Vector<T, step>*>(values + i) = read_vector<step>(from + i);
}

/// `width` elements, of which i and i + 1 are a pair, or with `halves` i and i + width / 2.
template <class T, int width, bool aligned, bool halves>
__global__ void __launch_bounds__(block_size) rotate_pairs(__grid_constant__ const Rotation<T> a) {
  using C = computed_t<T>;
  const std::int64_t thread = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (thread >= a.count) return;
  const auto row = static_cast<unsigned>(thread / a.parts), part = static_cast<unsigned>(thread - std::int64_t(row) * a.parts);
  const unsigned inner = a.positions_first ? a.length : a.heads, outer = a.positions_first ? a.heads : a.length;
  const unsigned fast = row % inner, rest = row / inner, slow = rest % outer, b = rest / outer;
  const unsigned t = a.positions_first ? fast : slow, h = a.positions_first ? slow : fast;
  const auto place = [&](const std::int64_t (&strides)[3]) { return b * strides[0] + h * strides[1] + t * strides[2]; };
  // The elements of the first and of the second half of a head are one contiguous run each.
  constexpr int runs = halves ? 2 : 1, run = width / runs;
  const unsigned apart = a.parts * run;
  alignas(16) T values[runs][run];
  const T* const from = a.x + place(a.from) + part * run;
#pragma unroll
  for (int i = 0; i < runs; ++i) read<aligned>(from + i * apart, values[i]);
  if (h < a.rotated) {
    alignas(16) C angles[width];
    read<aligned>(a.table + (std::int64_t(t) * a.parts + part) * width, angles);
#pragma unroll
    for (int i = 0; i < width / 2; ++i) {
      T& low = halves ? values[0][i] : values[0][2 * i];
      T& high = halves ? values[runs - 1][i] : values[0][2 * i + 1];
      const C first = convert<C>(low), second = convert<C>(high);
      const C cosine = angles[2 * i], sine = a.inverse ? -angles[2 * i + 1] : angles[2 * i + 1];
      low = convert<T>(first * cosine - second * sine);
      high = convert<T>(first * sine + second * cosine);
    }
  }
  T* const to = a.y + place(a.to) + part * run;
#pragma unroll
  for (int i = 0; i < runs; ++i) {
    if constexpr (aligned) {
      write_vector(to + i * apart, *reinterpret_cast<const Vector<T, run>*>(values[i]));
    } else {
#pragma unroll
      for (int j = 0; j < run; ++j) to[i * apart + j] = values[i][j];
    }
  }
}

}  // namespace

void Rope::run(Cuda) const {
  if (y.numel() == 0) return;
  dispatch_floats(x.dtype, "rope", [&]<class T>() {
    const auto launch_with = [&]<int width, bool aligned, bool by_halves>() {
      const std::int64_t parts = x.shape[3] / width;
      const Rotation<T> a{x.as<const T>(),
                          y.as<T>(),
                          table.as<const computed_t<T>>(),
                          {x.strides[0], x.strides[1], x.strides[2]},
                          {y.strides[0], y.strides[1], y.strides[2]},
                          static_cast<unsigned>(x.shape[1]),
                          static_cast<unsigned>(heads),
                          static_cast<unsigned>(x.shape[2]),
                          static_cast<unsigned>(parts),
                          y.numel() / width,
                          y.strides[1] >= y.strides[2],
                          inverse};
      launch(rotate_pairs<T, width, aligned, by_halves>, blocks_for(a.count), block_size, 0, y.stream, a);
    };
    const bool aligned = has_vec16_rows(x) && has_vec16_rows(y) && is_aligned(table.data, 16);
    if (aligned && halves) launch_with.template operator()<vec16_width<T>, true, true>();
    else if (aligned) launch_with.template operator()<vec16_width<T>, true, false>();
    else if (halves) launch_with.template operator()<2, false, true>();
    else launch_with.template operator()<2, false, false>();
  });
}

}  // namespace tern::kernels
