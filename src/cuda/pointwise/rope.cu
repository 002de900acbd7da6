#include "cuda/device/convert.cuh"
#include "cuda/runtime/launch.h"
#include "ops/kernels/rope.h"
#include "tensor/dispatch.h"

// A thread turns one pair. Neighbouring threads have neighbouring pairs of a row, so reading and writing are coalesced; the table
// is read by every head and batch, and stays in the cache.
namespace tern::kernels {

using namespace gpu;

namespace {

template <class T>
struct Rows {
  const T* x;
  T* y;
  const computed_t<T>* table;
  std::int64_t strides[3];  ///< of x along batch, head, position
  unsigned heads, length, pairs;
  std::int64_t count;  ///< of pairs in all rows
  bool inverse;
};

template <class T>
__global__ void __launch_bounds__(block_size) turn_pairs(__grid_constant__ const Rows<T> rows) {
  using C = computed_t<T>;
  const std::int64_t thread = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (thread >= rows.count) return;
  const auto row = static_cast<unsigned>(thread / rows.pairs), i = static_cast<unsigned>(thread - std::int64_t(row) * rows.pairs);
  const unsigned t = row % rows.length, head = row / rows.length, h = head % rows.heads, b = head / rows.heads;
  const T* const from = rows.x + b * rows.strides[0] + h * rows.strides[1] + t * rows.strides[2] + 2 * i;
  const C* const turn = rows.table + 2 * (std::int64_t(t) * rows.pairs + i);  // which may begin anywhere in a larger tensor
  const C first = convert<C>(from[0]), second = convert<C>(from[1]), cosine = turn[0], sine = rows.inverse ? -turn[1] : turn[1];
  T* const to = rows.y + 2 * thread;
  to[0] = convert<T>(first * cosine - second * sine);
  to[1] = convert<T>(first * sine + second * cosine);
}

}  // namespace

void rope(Cuda, const View& x, const View& table, const View& y, bool inverse) {
  if (y.numel() == 0) return;
  dispatch_floats(x.dtype, "rope", [&]<class T>() {
    const std::int64_t pairs = x.shape[3] / 2;
    const Rows<T> rows{x.as<const T>(),
                       y.as<T>(),
                       table.as<const computed_t<T>>(),
                       {x.strides[0], x.strides[1], x.strides[2]},
                       static_cast<unsigned>(x.shape[1]),
                       static_cast<unsigned>(x.shape[2]),
                       static_cast<unsigned>(pairs),
                       y.numel() / 2,
                       inverse};
    launch(turn_pairs<T>, blocks_for(rows.count), block_size, 0, y.stream, rows);
  });
}

}  // namespace tern::kernels
