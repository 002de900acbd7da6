#include "cuda/softmax.cuh"
#include "ops/kernels/softmax.h"

namespace tern::kernels {

using namespace gpu;

namespace {

template <class T, int width, int vectors, bool aligned>
__global__ void __launch_bounds__(most_threads, width * vectors <= 8 ? 3 : 2)
    softmax_grad_of_teams(Team team, const T* y, const T* g, T* dx, std::int64_t count, std::int64_t row_length) {
  __shared__ Parts<float> parts;
  announce(team);
  Place place(team);
  const int columns = place.row < count ? static_cast<int>(row_length) : 0;
  const std::int64_t start = place.row * row_length;
  place.divide<width, aligned>(columns > 0 ? y + start : nullptr);

  Word<T, width> y_words[vectors], g_words[vectors];
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    y_words[i] = g_words[i] = repeat<width>(T(0.f));
    if (place.column(i) < columns) {
      y_words[i] = read_once<width>(y + start + place.column(i));
      g_words[i] = read_once<width>(g + start + place.column(i));
    }
  }
  float mean = 0;  // of g, weighted with y
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    float ys[width], gs[width], sum = 0;
    unpack<T, width>(y_words[i], ys);
    unpack<T, width>(g_words[i], gs);
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
    if constexpr (width > 1) {
      forget(y_words[i]);
      forget(g_words[i]);
    }
    unpack<T, width>(y_words[i], ys);
    unpack<T, width>(g_words[i], gs);
#pragma unroll
    for (int k = 0; k < width; ++k) ys[k] *= gs[k] - mean;
    write_vector<aligned>(dx + start, place.column(i), columns, ys);
  }
}

/// Rows too long for the largest team, and f64: a block per row at a time, two readings.
template <class T>
__global__ void __launch_bounds__(most_threads) softmax_grad_in_two_readings(const T* y, const T* g, T* dx, std::int64_t count, std::int64_t columns) {
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
  with_layout<T, 16>(plan, [&]<int width, int vectors, bool aligned>() {
    launch_teams(softmax_grad_of_teams<T, width, vectors, aligned>, plan, count, dx.stream, y.as<const T>(), g.as<const T>(), dx.as<T>(), count, columns);
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
      if (const auto plan = plan_for<T>(columns, rowwise<T>({y, g, dx}, columns), columns <= 256 ? 8 : 16, 16, dx.stream))
        return softmax_grad_by_plan<T>(*plan, y, g, dx, count, columns);
    }
    softmax_grad_by_blocks<T>(y, g, dx, count, columns);
  });
}

}  // namespace tern::kernels
