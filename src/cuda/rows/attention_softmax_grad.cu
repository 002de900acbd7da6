#include "cuda/device/vec16.cuh"
#include "cuda/rows/attention_softmax.cuh"
#include "cuda/runtime/launch.h"
#include "ops/kernels/attention_softmax.h"
#include "tensor/dispatch.h"

// The gradient of softmax: one reading of y and of g, one writing. It needs no masks, since hidden columns have y = 0.
namespace tern::kernels {

using namespace gpu;

namespace {

/// Where a thread keeps y and g until it knows their sum. 32 numbers of 16 bits would leave room for too few threads if they lay in
/// registers, which also hold what they are converted to: they lie in shared memory, each where only the thread that copied it reads.
template <class T, int width, int vectors>
struct Kept {
  Word<T, width> y[vectors], g[vectors];

  __device__ void read(int i, bool exists, const T* from_y, const T* from_g) {
    y[i] = g[i] = repeat<width>(T(0.f));
    if (!exists) return;
    y[i] = read_once<width>(from_y);
    g[i] = read_once<width>(from_g);
  }
  __device__ void await() {}
  __device__ Word<T, width> y_word(int i) { return y[i]; }
  __device__ Word<T, width> g_word(int i) { return g[i]; }
};

extern __shared__ uint4 copies[];

template <class T, int width, int vectors>
struct KeptInShared {
  static __device__ uint4& slot(int i) { return copies[i * blockDim.x + threadIdx.x]; }

  __device__ void read(int i, bool exists, const T* from_y, const T* from_g) {
    if (exists) {
      copy_async(slot(i), from_y);
      copy_async(slot(vectors + i), from_g);
    } else {
      slot(i) = slot(vectors + i) = uint4{};
    }
  }
  __device__ void await() { await_copies(); }
  __device__ uint4 y_word(int i) { return slot(i); }
  __device__ uint4 g_word(int i) { return slot(vectors + i); }
};

constexpr bool is_kept_in_shared(int elements) { return elements == 32; }

template <class T, int width, int vectors, bool aligned>
__global__ void __launch_bounds__(most_threads, width* vectors == 16 ? 2 : 3)
    softmax_grad_of_teams(Team team, const T* y, const T* g, T* dx, std::int64_t count, std::int64_t row_length) {
  __shared__ Parts<float> parts;
  announce(team);
  Place place(team);
  const int columns = place.row < count ? static_cast<int>(row_length) : 0;
  const std::int64_t start = place.row * row_length;
  place.divide<width, aligned>(columns > 0 ? y + start : nullptr);

  std::conditional_t<is_kept_in_shared(width * vectors), KeptInShared<T, width, vectors>, Kept<T, width, vectors>> kept;
#pragma unroll
  for (int i = 0; i < vectors; ++i) kept.read(i, place.column(i) < columns, y + start + place.column(i), g + start + place.column(i));
  kept.await();
  float mean = 0;  // of g, weighted with y
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    float ys[width], gs[width], sum = 0;
    unpack<T, width>(kept.y_word(i), ys);
    unpack<T, width>(kept.g_word(i), gs);
    if (!aligned && width > 1 && !is_vector_within<width, aligned>(place.column(i), columns)) {
#pragma unroll
      for (int k = 0; k < width; ++k)
        if (!is_within(place.column(i) + k, columns)) ys[k] = gs[k] = 0;
    }
#pragma unroll
    for (int k = 0; k < width; ++k) sum += ys[k] * gs[k];
    mean += sum;
  }
  mean = sum_of_lanes(mean, team.lanes());
  if (!team.in_a_warp()) {
    const unsigned count_of_parts = exchange(parts, mean, team);
    mean = 0;
    for (unsigned i = threadIdx.x % 32; i < count_of_parts; i += 32) mean += parts.values[i];
    mean = sum_of_lanes(mean, 32);
  }
  place.forget_columns();
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    float ys[width], gs[width];
    unpack<T, width>(kept.y_word(i), ys);
    unpack<T, width>(kept.g_word(i), gs);
#pragma unroll
    for (int k = 0; k < width; ++k) ys[k] *= gs[k] - mean;
    write_vector<aligned>(dx + start, place.column(i), columns, ys);
  }
}

/// Rows too long for the largest team, and f64: a block per row at a time, two readings.
template <class T>
__global__ void __launch_bounds__(most_threads)
    softmax_grad_in_two_readings(const T* y, const T* g, T* dx, std::int64_t count, std::int64_t columns) {
  using C = compute_t<T>;
  __shared__ C shared;
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const std::int64_t start = row * columns;
    C mean = 0;
#pragma unroll 4
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) mean += convert<C>(y[start + c]) * convert<C>(g[start + c]);
    mean = block_reduce<PlusOp<C>>(mean);
    if (threadIdx.x == 0) shared = mean;
    __syncthreads();
    mean = shared;
#pragma unroll 4
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x)
      dx[start + c] = convert<T>(convert<C>(y[start + c]) * (convert<C>(g[start + c]) - mean));
    __syncthreads();  // the next row overwrites what is shared
  }
}

template <class T>
void softmax_grad_by_plan(const Plan& plan, const View& y, const View& g, const View& dx, std::int64_t count, std::int64_t columns) {
  with_layout<T, is_half<T> ? 32 : 16>(plan, [&]<int width, int vectors, bool aligned>() {
    const std::size_t shared = is_kept_in_shared(width * vectors) ? 2 * 16 * vectors : 0;
    launch_teams(softmax_grad_of_teams<T, width, vectors, aligned>, plan, count, shared, dx.stream, y.as<const T>(), g.as<const T>(),
                 dx.as<T>(), count, columns);
  });
}

template <class T>
void softmax_grad_by_blocks(const View& y, const View& g, const View& dx, std::int64_t count, std::int64_t columns) {
  const auto [blocks, threads] = looping_grid(count, columns);
  launch(softmax_grad_in_two_readings<T>, blocks, threads, 0, dx.stream, y.as<const T>(), g.as<const T>(), dx.as<T>(), count, columns);
}

}  // namespace

void attention_softmax_grad(Cuda, const View& y, const View& g, const View& dx) {
  if (dx.numel() == 0) return;
  const std::int64_t columns = y.shape[y.dims() - 1], count = y.numel() / columns;
  dispatch_floats(y.dtype, "attention_softmax_grad", [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      const Rowwise kind = rowwise<T>({y, g, dx}, columns);
      const bool long_rows = is_half<T> && (columns > 8192 || kind == Rowwise::skewed);
      if (const auto plan = plan_for<T>(columns, kind, columns <= 256 ? 8 : 16, long_rows ? 32 : 16, dx.stream))
        return softmax_grad_by_plan<T>(*plan, y, g, dx, count, columns);
    }
    softmax_grad_by_blocks<T>(y, g, dx, count, columns);
  });
}

}  // namespace tern::kernels
