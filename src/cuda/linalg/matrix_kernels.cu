#include "cuda/device/group.cuh"
#include "cuda/linalg/matrix_kernels.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/linalg.h"
#include "tensor/dispatch.h"

namespace tern::gpu {

namespace {

constexpr int warps = 4;  ///< warps of a block, each independent

template <class T>
__global__ void __launch_bounds__(block_size) write_pointers_kernel(T* data, std::int64_t stride, std::int64_t count, T** pointers) {
  const std::int64_t i = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (i < count) pointers[i] = data + i * stride;
}

__global__ void set_number(std::int64_t* number, std::int64_t value) { *number = value; }

/// One warp per matrix.
template <class T>
__global__ void __launch_bounds__((warps * 32)) find_failed_kernel(const T* x, std::int64_t stride, std::int64_t count, std::int64_t n,
                                                                   bool positive, const int* info, std::int64_t* first) {
  const std::int64_t i = std::int64_t(blockIdx.x) * warps + threadIdx.x / 32;
  if (i >= count) return;
  bool refused = info && info[i] != 0;
  for (std::int64_t j = threadIdx.x % 32; j < n; j += 32) {
    const T element = x[i * stride + j * (n + 1)];
    refused |= positive ? !(element > T(0)) : element == T(0);
  }
  if (refused) atomicMin(reinterpret_cast<long long*>(first), static_cast<long long>(i));
}

template <class T>
struct TimesOp {
  using Accumulator = T;
  static __device__ T combine(T a, T b) { return a * b; }
};

/// One warp per matrix.
template <class T, class Pivot>
__global__ void __launch_bounds__((warps * 32))
    multiply_diagonals(const T* lu, std::int64_t stride, std::int64_t count, std::int64_t n, const Pivot* pivots, T* values) {
  const std::int64_t i = std::int64_t(blockIdx.x) * warps + threadIdx.x / 32;
  if (i >= count) return;
  T product = T(1);
  for (std::int64_t j = threadIdx.x % 32; j < n; j += 32) {
    const T element = lu[i * stride + j * (n + 1)];
    product *= pivots[i * n + j] == j + 1 ? element : -element;
  }
  product = warp_all_reduce<TimesOp<T>>(product);
  if (threadIdx.x % 32 == 0) values[i] = product;
}

template <class T>
__global__ void __launch_bounds__(block_size) mark_non_finite(const T* x, std::int64_t size, std::int64_t total, int* marks) {
  const std::int64_t i = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (i < total && !isfinite(x[i])) marks[i / size] = 1;
}

template <class T>
__global__ void __launch_bounds__(block_size)
    fill_marked(T* x, std::int64_t size, std::int64_t total, T value, const int* marks, const int* info) {
  const std::int64_t i = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (i < total && (marks[i / size] != 0 || (info && info[i / size] != 0))) x[i] = value;
}

template <class T>
struct LargestOp {
  using Accumulator = T;
  static __device__ T combine(T a, T b) { return fmax(a, b); }
};

/// True, in all lanes, if the first large element of a vector is negative.
template <class T>
__device__ bool is_to_be_negated(const T* vector, std::int64_t length) {
  const unsigned lane = threadIdx.x % 32;
  T largest = 0;
  for (std::int64_t i = lane; i < length; i += 32) largest = fmax(largest, fabs(vector[i]));
  const T large = warp_all_reduce<LargestOp<T>>(largest) * static_cast<T>(kernels::large_element);
  for (std::int64_t start = 0; start < length; start += 32) {
    const T element = start + lane < length ? vector[start + lane] : T(0);
    const unsigned found = __ballot_sync(whole_warp, start + lane < length && fabs(element) >= large);
    if (found == 0) continue;
    return __shfl_sync(whole_warp, int(element < T(0)), __ffs(int(found)) - 1) != 0;
  }
  return false;
}

/// One warp per column.
template <class T>
__global__ void __launch_bounds__((warps * 32))
    negate_columns(SignOf sign, T* columns, std::int64_t columns_stride, std::int64_t length, T* rows, std::int64_t rows_stride,
                   std::int64_t width, std::int64_t k, std::int64_t total) {
  const std::int64_t at = std::int64_t(blockIdx.x) * warps + threadIdx.x / 32;
  if (at >= total) return;
  const std::int64_t i = at / k, j = at % k;
  T* const column = columns + i * columns_stride + j * length;
  T* const row = rows ? rows + i * rows_stride + j * width : nullptr;
  const bool negated = sign == SignOf::diagonal ? row[j] < T(0) : is_to_be_negated(column, length);
  __syncwarp();
  if (!negated) return;
  for (std::int64_t e = threadIdx.x % 32; e < length; e += 32) column[e] = -column[e];
  // Zeros below R's diagonal stay 0, and do not become -0.
  for (std::int64_t e = threadIdx.x % 32; row && e < width; e += 32)
    if (sign != SignOf::diagonal || e >= j) row[e] = -row[e];
}

/// Column c of Q is H_1 ... H_k e_c, and reflections after c do not change e_c. Each lane only accesses elements of its own residue, so
/// that the column in shared memory needs no barrier.
template <class T>
__global__ void __launch_bounds__((warps * 32))
    reflect_unit_columns(const T* reflections, std::int64_t stride, int length, int k, const T* tau, T* q, std::int64_t total) {
  extern __shared__ double shared[];
  const std::int64_t at = std::int64_t(blockIdx.x) * warps + threadIdx.x / 32;
  if (at >= total) return;
  const std::int64_t i = at / k;
  const int c = static_cast<int>(at % k), lane = static_cast<int>(threadIdx.x % 32);
  T* const column = reinterpret_cast<T*>(shared) + std::int64_t(threadIdx.x / 32) * length;
  for (int e = lane; e < length; e += 32) column[e] = T(e == c);
  for (int j = c; j >= 0; --j) {
    const T* const v = reflections + i * stride + std::int64_t(j) * length;
    const int first = j / 32 * 32 + lane;
    T along = 0;
    for (int e = first; e < length; e += 32)
      if (e >= j) along += (e == j ? T(1) : v[e]) * column[e];
    along = warp_all_reduce<PlusOp<T>>(along) * tau[i * k + j];
    for (int e = first; e < length; e += 32)
      if (e >= j) column[e] -= along * (e == j ? T(1) : v[e]);
  }
  for (int e = lane; e < length; e += 32) q[at * length + e] = column[e];
}

}  // namespace

void write_pointers(const Batch& x, DType dtype, void* pointers, Stream stream) {
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(write_pointers_kernel<T>, blocks_for(x.count), block_size, 0, stream, static_cast<T*>(x.data), x.stride, x.count,
           static_cast<T**>(pointers));
  });
}

void find_failed_matrix(const Batch& x, std::int64_t n, DType dtype, bool positive, const int* info, std::int64_t* first, Stream stream) {
  launch(set_number, 1, 1, 0, stream, first, x.count);
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(find_failed_kernel<T>, blocks_for(x.count, warps), warps * 32, 0, stream, static_cast<const T*>(x.data), x.stride, x.count, n,
           positive, info, first);
  });
}

void determinants(const Batch& lu, std::int64_t n, DType dtype, const void* pivots, bool short_pivots, void* values, Stream stream) {
  const auto run = [&]<class T, class Pivot>() {
    launch(multiply_diagonals<T, Pivot>, blocks_for(lu.count, warps), warps * 32, 0, stream, static_cast<const T*>(lu.data), lu.stride,
           lu.count, n, static_cast<const Pivot*>(pivots), static_cast<T*>(values));
  };
  dispatch_f32_f64(dtype, "linalg",
                   [&]<class T>() { short_pivots ? run.template operator()<T, int>() : run.template operator()<T, std::int64_t>(); });
}

void zero_non_finite(const Batch& x, DType dtype, int* marks, Stream stream) {
  use(stream);
  check(cudaMemsetAsync(marks, 0, static_cast<std::size_t>(x.count) * sizeof(int), handle(stream)), "cudaMemset");
  const std::int64_t total = x.count * x.stride;
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    T* const data = static_cast<T*>(x.data);
    launch(mark_non_finite<T>, blocks_for(total), block_size, 0, stream, data, x.stride, total, marks);
    launch(fill_marked<T>, blocks_for(total), block_size, 0, stream, data, x.stride, total, T(0), marks, nullptr);
  });
}

void fill_nan(const Batch& x, DType dtype, const int* marks, const int* info, Stream stream) {
  const std::int64_t total = x.count * x.stride;
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(fill_marked<T>, blocks_for(total), block_size, 0, stream, static_cast<T*>(x.data), x.stride, total, static_cast<T>(NAN), marks,
           info);
  });
}

void fix_signs(SignOf sign, const Batch& columns, std::int64_t length, const Batch& rows, std::int64_t width, std::int64_t k, DType dtype,
               Stream stream) {
  const std::int64_t total = columns.count * k;
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(negate_columns<T>, blocks_for(total, warps), warps * 32, 0, stream, sign, static_cast<T*>(columns.data), columns.stride, length,
           static_cast<T*>(rows.data), rows.stride, width, k, total);
  });
}

void form_q(const Batch& reflections, std::int64_t length, std::int64_t k, DType dtype, const void* tau, void* q, Stream stream) {
  const std::int64_t total = reflections.count * k;
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(reflect_unit_columns<T>, blocks_for(total, warps), warps * 32, warps * static_cast<std::size_t>(length) * sizeof(T), stream,
           static_cast<const T*>(reflections.data), reflections.stride, static_cast<int>(length), static_cast<int>(k),
           static_cast<const T*>(tau), static_cast<T*>(q), total);
  });
}

}  // namespace tern::gpu
