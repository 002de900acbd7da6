#include "cuda/device/convert.cuh"
#include "cuda/runtime/launch.h"
#include "ops/kernels/rope.h"
#include "tensor/dispatch.h"

// Rotary position embedding: a thread rotates one pair. Neighbouring threads have neighbouring pairs of a row, so reading and writing are
// coalesced; the table is read by every head and batch, and stays in the cache.
namespace tern::kernels {

using namespace gpu;

namespace {

template <class T>
struct Rotation {
  const T* x;
  T* y;
  const computed_t<T>* table;
  std::int64_t strides[3];  ///< of x along batch, head, position
  unsigned heads, length, pairs;
  std::int64_t count;  ///< of pairs in all rows
  bool inverse;
};

template <class T>
__global__ void __launch_bounds__(block_size) rotate_pairs(__grid_constant__ const Rotation<T> a) {
  using C = computed_t<T>;
  const std::int64_t thread = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (thread >= a.count) return;
  const auto row = static_cast<unsigned>(thread / a.pairs), i = static_cast<unsigned>(thread - std::int64_t(row) * a.pairs);
  const unsigned t = row % a.length, head = row / a.length, h = head % a.heads, b = head / a.heads;
  const T* const from = a.x + b * a.strides[0] + h * a.strides[1] + t * a.strides[2] + 2 * i;
  const C* const angle = a.table + 2 * (std::int64_t(t) * a.pairs + i);  // which may begin anywhere in a larger tensor
  const C first = convert<C>(from[0]), second = convert<C>(from[1]), cosine = angle[0], sine = a.inverse ? -angle[1] : angle[1];
  T* const to = a.y + 2 * thread;
  to[0] = convert<T>(first * cosine - second * sine);
  to[1] = convert<T>(first * sine + second * cosine);
}

}  // namespace

void rope(Cuda, const View& x, const View& table, const View& y, bool inverse) {
  if (y.numel() == 0) return;
  dispatch_floats(x.dtype, "rope", [&]<class T>() {
    const std::int64_t pairs = x.shape[3] / 2;
    const Rotation<T> a{x.as<const T>(),
                        y.as<T>(),
                        table.as<const computed_t<T>>(),
                        {x.strides[0], x.strides[1], x.strides[2]},
                        static_cast<unsigned>(x.shape[1]),
                        static_cast<unsigned>(x.shape[2]),
                        static_cast<unsigned>(pairs),
                        y.numel() / 2,
                        inverse};
    launch(rotate_pairs<T>, blocks_for(a.count), block_size, 0, y.stream, a);
  });
}

}  // namespace tern::kernels
