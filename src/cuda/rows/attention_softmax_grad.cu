#include "cuda/rows/attention_softmax.cuh"
#include "ops/kernels/attention_softmax.h"
#include "tensor/dispatch.h"

// Gradient of softmax, dx = y (g - sum(g y)): one read of y and of g, one write. It needs no masks, because hidden columns have y = 0.
namespace tern::kernels {

using namespace gpu;

namespace {

/// A thread's part of a row of y and g, kept in registers until their sum is known.
template <class T, int width, int vectors>
struct RegisterCache {
  Packed<T, width> y[vectors], g[vectors];

  __device__ void read(int i, bool exists, const T* from_y, const T* from_g) {
    y[i] = g[i] = broadcast<width>(T(0.f));
    if (!exists) return;
    y[i] = read_packed_cg<width>(from_y);
    g[i] = read_packed_cg<width>(from_g);
  }
  __device__ void wait() {}
  __device__ Packed<T, width> y_at(int i) { return y[i]; }
  __device__ Packed<T, width> g_at(int i) { return g[i]; }
};

extern __shared__ uint4 cache_memory[];

/// The same in shared memory, where each vector is read only by the thread that copied it: 32 16-bit numbers, in addition to the floats
/// that they are converted to, would take the registers of too many threads.
template <class T, int width, int vectors>
struct SharedCache {
  static __device__ uint4& slot(int i) { return cache_memory[i * blockDim.x + threadIdx.x]; }

  __device__ void read(int i, bool exists, const T* from_y, const T* from_g) {
    if (exists) {
      cp_async<16>(shared_address(&slot(i)), from_y);
      cp_async<16>(shared_address(&slot(vectors + i)), from_g);
    } else {
      slot(i) = slot(vectors + i) = uint4{};
    }
  }
  __device__ void wait() { cp_async_wait_all(); }
  __device__ uint4 y_at(int i) { return slot(i); }
  __device__ uint4 g_at(int i) { return slot(vectors + i); }
};

constexpr bool is_in_shared(int elements) { return elements == 32; }

template <class T, RowAccess access, int vectors>
__global__ void __launch_bounds__(max_softmax_threads, row_vector_width<T, access>* vectors == 16 ? 2 : 3)
    softmax_grad_by_groups(RowPartition partition, const T* y, const T* g, T* dx, std::int64_t count, std::int64_t row_length) {
  constexpr int width = row_vector_width<T, access>;
  using Group = RowGroup<true, float, 1>;
  __shared__ Group::Exchange exchange;
  Group group(partition, exchange);
  const std::int64_t row = group.first_row(), start = row * row_length;
  const int columns = row < count ? static_cast<int>(row_length) : 0;
  RowColumns own = columns_of<access>(group, columns > 0 ? y + start : nullptr);

  std::conditional_t<is_in_shared(width * vectors), SharedCache<T, width, vectors>, RegisterCache<T, width, vectors>> cache;
#pragma unroll
  for (int i = 0; i < vectors; ++i) cache.read(i, own[i] < columns, y + start + own[i], g + start + own[i]);
  cache.wait();
  float dot = 0;  // sum(g y)
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    float ys[width], gs[width], sum = 0;
    unpack<T>(cache.y_at(i), ys);
    unpack<T>(cache.g_at(i), gs);
    clear_outside<access>(ys, own[i], columns);
    clear_outside<access>(gs, own[i], columns);
#pragma unroll
    for (int k = 0; k < width; ++k) sum += ys[k] * gs[k];
    dot += sum;
  }
  dot = lanes_all_reduce<PlusOp<float>>(dot, group.lanes());
  if (!group.in_a_warp()) {
    group.wait_for_cluster();
    const auto warps = group.all_gather(dot);
    dot = 0;
    for (unsigned i = threadIdx.x % 32; i < warps.count; i += 32) dot += warps[i];
    dot = warp_all_reduce<PlusOp<float>>(dot);
  }
  launder(own.first);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    float ys[width], gs[width];
    unpack<T>(cache.y_at(i), ys);
    unpack<T>(cache.g_at(i), gs);
#pragma unroll
    for (int k = 0; k < width; ++k) ys[k] *= gs[k] - dot;
    if (own[i] < columns) write_row_vector<access>(dx + start + own[i], own[i], columns, ys);
  }
}

/// Rows too long for a cluster, and f64: a block processes a row at a time, in two passes.
template <class T>
__global__ void __launch_bounds__(max_softmax_threads)
    softmax_grad_two_pass(const T* y, const T* g, T* dx, std::int64_t count, std::int64_t columns) {
  using C = compute_t<T>;
  __shared__ C shared;
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const std::int64_t start = row * columns;
    C dot = 0;  // sum(g y)
#pragma unroll 4
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) dot += convert<C>(y[start + c]) * convert<C>(g[start + c]);
    dot = block_reduce<PlusOp<C>>(dot);
    if (threadIdx.x == 0) shared = dot;
    __syncthreads();
    dot = shared;
#pragma unroll 4
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x)
      dx[start + c] = convert<T>(convert<C>(y[start + c]) * (convert<C>(g[start + c]) - dot));
    __syncthreads();  // before the next row overwrites `shared`
  }
}

}  // namespace

void attention_softmax_grad(Cuda, const View& y, const View& g, const View& dx) {
  if (dx.numel() == 0) return;
  const std::int64_t columns = y.shape[y.dims() - 1], count = y.numel() / columns;
  dispatch_floats(y.dtype, "attention_softmax_grad", [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      const RowAccess access = row_access<T>({&y, &g, &dx}, columns);
      const bool long_rows = is_half<T> && (columns > 8192 || access == RowAccess::misaligned);
      if (const auto plan = plan_softmax<T>(columns, access, columns <= 256 ? 8 : 16, long_rows ? 32 : 16, dx.stream)) {
        const RowPartition& partition = plan->partition;
        return with_softmax_layout<T, is_half<T> ? 32 : 16>(*plan, [&]<RowAccess access, int vectors>() {
          const std::size_t shared = is_in_shared(row_vector_width<T, access> * vectors) ? 2 * sizeof(uint4) * vectors : 0;
          launch_rows(softmax_grad_by_groups<T, access, vectors>, partition, blocks_for(count, partition.rows), shared * partition.block(),
                      dx.stream, y.as<const T>(), g.as<const T>(), dx.as<T>(), count, columns);
        });
      }
    }
    const auto [blocks, threads] = looping_grid(count, columns);
    launch(softmax_grad_two_pass<T>, blocks, threads, 0, dx.stream, y.as<const T>(), g.as<const T>(), dx.as<T>(), count, columns);
  });
}

}  // namespace tern::kernels
