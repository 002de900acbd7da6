// Linear algebra on a GPU. A single matrix is passed to cuSOLVER, many small ones to the batched functions of cuSOLVER and cuBLAS. Both
// take column-major matrices, and work in place: a copy is needed anyway, and also transposes. A row-major matrix is its own transpose in
// column-major order, which cholesky, eigh and svd use. Kernels of ours do the rest between those calls.
#include "ops/kernels/linalg.h"

#ifdef TERN_CUSOLVER
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "cuda/device/group.cuh"
#include "cuda/gemm/cublas.h"
#include "cuda/linalg/cusolver.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/copy.h"
#include "tensor/dispatch.h"

namespace tern::kernels {

using namespace gpu;

namespace {

// Kernels for batches of column-major matrices.

/// Batch of matrices, or of vectors, which are matrices of one column.
struct Batch {
  void* data;
  std::int64_t count;
  std::int64_t stride;
};

enum class SignOf : bool { large_element, diagonal };

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
  const T large = warp_all_reduce<LargestOp<T>>(largest) * static_cast<T>(large_element);
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

/// pointers[i] = the address of matrix i.
void write_pointers(const Batch& x, DType dtype, void* pointers, Stream stream) {
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(write_pointers_kernel<T>, blocks_for(x.count), block_size, 0, stream, static_cast<T*>(x.data), x.stride, x.count,
           static_cast<T**>(pointers));
  });
}

/// *first = index of the first matrix that failed: whose info is not 0 (if there is info), or whose diagonal has a 0, or with `positive` an
/// element that is not above 0; `count` if there is none.
void find_failed_matrix(const Batch& x, std::int64_t n, DType dtype, bool positive, const int* info, std::int64_t* first, Stream stream) {
  launch(set_number, 1, 1, 0, stream, first, x.count);
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(find_failed_kernel<T>, blocks_for(x.count, warps), warps * 32, 0, stream, static_cast<const T*>(x.data), x.stride, x.count, n,
           positive, info, first);
  });
}

/// values[i] = determinant of matrix i from its LU decomposition: the product of the diagonal, negated for each row that was exchanged.
/// Pivots (count, n) count from 1, in i64, or i32 with `short_pivots`.
void determinants(const Batch& lu, std::int64_t n, DType dtype, const void* pivots, bool short_pivots, void* values, Stream stream) {
  const auto run = [&]<class T, class Pivot>() {
    launch(multiply_diagonals<T, Pivot>, blocks_for(lu.count, warps), warps * 32, 0, stream, static_cast<const T*>(lu.data), lu.stride,
           lu.count, n, static_cast<const Pivot*>(pivots), static_cast<T*>(values));
  };
  dispatch_f32_f64(dtype, "linalg",
                   [&]<class T>() { short_pivots ? run.template operator()<T, int>() : run.template operator()<T, std::int64_t>(); });
}

/// marks[i] = 1 if matrix i, of `stride` elements, has a NaN or an infinity, else 0. All elements of such a matrix are set to 0, because
/// iterations of cuSOLVER might otherwise not terminate.
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

/// Fills matrices with NaN if they are marked, or if info is not 0.
void fill_nan(const Batch& x, DType dtype, const int* marks, const int* info, Stream stream) {
  const std::int64_t total = x.count * x.stride;
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(fill_marked<T>, blocks_for(total), block_size, 0, stream, static_cast<T*>(x.data), x.stride, total, static_cast<T>(NAN), marks,
           info);
  });
}

/// Applies Note [Signs] to k columns of `length` elements of each matrix of `columns`, and to the rows of `rows` that belong to them, of
/// `width` elements each. qr's sign is that of R's diagonal, in `rows`. For columns alone, rows.data is null.
void fix_signs(SignOf sign, const Batch& columns, std::int64_t length, const Batch& rows, std::int64_t width, std::int64_t k, DType dtype,
               Stream stream) {
  const std::int64_t total = columns.count * k;
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(negate_columns<T>, blocks_for(total, warps), warps * 32, 0, stream, sign, static_cast<T*>(columns.data), columns.stride, length,
           static_cast<T*>(rows.data), rows.stride, width, k, total);
  });
}

/// Forms the first k columns of the orthogonal matrix of Householder reflections: q (count, k, length), column-major. Reflections are as
/// geqrf leaves them, below the diagonal of columns of `length` elements, with tau (count, k). For many small matrices: one warp per
/// column.
void form_q(const Batch& reflections, std::int64_t length, std::int64_t k, DType dtype, const void* tau, void* q, Stream stream) {
  const std::int64_t total = reflections.count * k;
  dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
    launch(reflect_unit_columns<T>, blocks_for(total, warps), warps * 32, warps * static_cast<std::size_t>(length) * sizeof(T), stream,
           static_cast<const T*>(reflections.data), reflections.stride, static_cast<int>(length), static_cast<int>(k),
           static_cast<const T*>(tau), static_cast<T*>(q), total);
  });
}

// Calls of the libraries.

constexpr cublasFillMode_t upper = CUBLAS_FILL_MODE_UPPER;  ///< column-major: the lower triangle in row-major order
constexpr cusolverEigMode_t with_vectors = CUSOLVER_EIG_MODE_VECTOR;

struct Sizes {
  explicit Sizes(const View& a) : rows(a.shape[a.dims() - 2]), columns(a.shape[a.dims() - 1]) {
    for (int d = 0; d < a.dims() - 2; ++d) count *= a.shape[d];
  }
  std::int64_t count = 1, rows, columns;
  bool empty() const { return count == 0 || rows == 0 || columns == 0; }
};

int as_int(std::int64_t size) {
  if (size > std::numeric_limits<int>::max()) fail("linalg", "expected sizes below 2^31 on a GPU but got " + std::to_string(size));
  return static_cast<int>(size);
}

std::size_t bytes_of(std::int64_t elements, DType dtype) { return static_cast<std::size_t>(elements) * size_of(dtype); }
void* element(void* data, std::int64_t i, DType dtype) { return static_cast<char*>(data) + static_cast<std::int64_t>(size_of(dtype)) * i; }

/// True if `count` matrices of n rows or columns are processed as a batch. One by one, each occupies the GPU by itself from a few hundred
/// rows on; in a batch each has one block or a few, which pays off for more matrices the larger they are.
bool is_batched(std::int64_t count, std::int64_t n) { return count > 1 && n <= std::min<std::int64_t>(32 * count, 512); }

/// Matrices (..., rows, columns) in memory for as many matrices as `like` has, each `stride` elements after the previous one: column-major
/// or row-major.
enum class Order : bool { by_rows, by_columns };
View matrices(Order order, void* data, const View& like, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  View y = like;
  y.data = data;
  const int d = like.dims();
  y.shape[d - 2] = rows;
  y.shape[d - 1] = columns;
  y.strides[d - 2] = order == Order::by_columns ? 1 : columns;
  y.strides[d - 1] = order == Order::by_columns ? rows : 1;
  for (int i = d - 3; i >= 0; --i) {
    y.strides[i] = stride;
    stride *= y.shape[i];
  }
  return y;
}
View matrices(Order order, void* data, const View& like, std::int64_t rows, std::int64_t columns) {
  return matrices(order, data, like, rows, columns, rows * columns);
}

/// Workspaces of a function of cuSOLVER, on the GPU and on the host.
class Buffers {
 public:
  template <class QuerySizes>
  Buffers(Stream stream, const char* what, QuerySizes query) : device_(query_sizes(what, query), stream), host_(host_bytes_) {}
  void* device() const { return device_.as<>(); }
  std::size_t device_bytes() const { return device_bytes_; }
  void* host() { return host_.data(); }
  std::size_t host_bytes() const { return host_bytes_; }

 private:
  template <class QuerySizes>
  std::size_t query_sizes(const char* what, QuerySizes query) {
    check(query(&device_bytes_, &host_bytes_), what);
    return device_bytes_;
  }
  std::size_t device_bytes_ = 0, host_bytes_ = 0;
  Workspace device_;
  std::vector<char> host_;
};

/// Pointers to each matrix of a batch, in device memory.
class Pointers {
 public:
  Pointers(const Batch& x, DType dtype, Stream stream) : memory_(static_cast<std::size_t>(x.count) * sizeof(void*), stream) {
    write_pointers(x, dtype, memory_.as<>(), stream);
  }
  template <class T>
  T** of() const {
    return memory_.as<T*>();
  }

 private:
  Workspace memory_;
};

/// Reads an index that find_failed_matrix wrote; -1 if it is `count`. Waits.
std::int64_t read_refused(const std::int64_t* first, std::int64_t count, Stream stream) {
  std::int64_t index = 0;
  backend::copy_to_host(Cuda{}, &index, first, sizeof index, stream);
  return index == count ? -1 : index;
}

/// LU decompositions of square matrices with partial pivoting, column-major: those of a itself, so that the pivots are those of the CPU.
/// `marks`, one int per matrix, is set to 1 for matrices that are not finite; these are first replaced by zeros, because the pivot search
/// ignores NaN.
class Lu {
 public:
  explicit Lu(const View& a, int* marks = nullptr)
      : sizes_(a),
        dtype_(a.dtype),
        stream_(a.stream),
        batched_(is_batched(sizes_.count, sizes_.rows)),
        memory_(bytes_of(sizes_.count * sizes_.rows * sizes_.rows, dtype_), stream_),
        pivots_(static_cast<std::size_t>(sizes_.count * sizes_.rows) * sizeof(std::int64_t), stream_),
        info_(static_cast<std::size_t>(sizes_.count) * sizeof(int), stream_) {
    const std::int64_t n = sizes_.rows;
    Copy{a, matrices(Order::by_columns, memory_.as<>(), a, n, n)}.run(Cuda{});
    if (marks) zero_non_finite(batch(), dtype_, marks, stream_);
    if (batched_) {
      factor_batch();
      return;
    }
    const CusolverHandle with = cusolver(stream_);
    const Cusolver& library = cusolver_library();
    const cudaDataType_t type = cuda_type(dtype_);
    Buffers buffers(stream_, "cusolverDnXgetrf_bufferSize", [&](std::size_t* device, std::size_t* host) {
      return library.getrf_buffer_size(with.handle, with.params, n, n, type, matrix(0), n, type, device, host);
    });
    for (std::int64_t i = 0; i < sizes_.count; ++i)
      check(library.getrf(with.handle, with.params, n, n, type, matrix(i), n, pivots(i), type, buffers.device(), buffers.device_bytes(),
                          buffers.host(), buffers.host_bytes(), info_.as<int>() + i),
            "cusolverDnXgetrf");
  }

  /// Solves for b (count, width, n), column-major, in place.
  void solve(void* b, std::int64_t width) const {
    const std::int64_t n = sizes_.rows;
    if (batched_) return solve_batch(b, width);
    const CusolverHandle with = cusolver(stream_);
    for (std::int64_t i = 0; i < sizes_.count; ++i)
      check(cusolver_library().getrs(with.handle, with.params, CUBLAS_OP_N, n, width, cuda_type(dtype_), matrix(i), n, pivots(i),
                                     cuda_type(dtype_), element(b, i * n * width, dtype_), n, info_.as<int>()),
            "cusolverDnXgetrs");
  }

  void determinants(void* values) const { kernels::determinants(batch(), sizes_.rows, dtype_, pivots_.as<>(), batched_, values, stream_); }
  /// Queues the search for a pivot of 0.
  void find_singular(std::int64_t* first) const { find_failed_matrix(batch(), sizes_.rows, dtype_, false, nullptr, first, stream_); }

 private:
  Batch batch() const { return {memory_.as<>(), sizes_.count, sizes_.rows * sizes_.rows}; }
  void* matrix(std::int64_t i) const { return element(memory_.as<>(), i * sizes_.rows * sizes_.rows, dtype_); }
  std::int64_t* pivots(std::int64_t i) const { return pivots_.as<std::int64_t>() + i * sizes_.rows; }

  void factor_batch() const {
    const Pointers all(batch(), dtype_, stream_);
    const cublasHandle_t with = cublas(stream_);
    const int n = as_int(sizes_.rows), count = as_int(sizes_.count);
    check(dtype_ == DType::f64 ? cublasDgetrfBatched(with, n, all.of<double>(), n, pivots_.as<int>(), info_.as<int>(), count)
                               : cublasSgetrfBatched(with, n, all.of<float>(), n, pivots_.as<int>(), info_.as<int>(), count),
          "cublasgetrfBatched");
  }
  void solve_batch(void* b, std::int64_t width) const {
    const Pointers left(batch(), dtype_, stream_), right({b, sizes_.count, sizes_.rows * width}, dtype_, stream_);
    const cublasHandle_t with = cublas(stream_);
    const int n = as_int(sizes_.rows), count = as_int(sizes_.count), columns = as_int(width);
    int refused = 0;  // index of an invalid argument, which cuBLAS's status reports as well
    const auto run = [&]<class T>(auto function) {
      return function(with, CUBLAS_OP_N, n, columns, left.of<const T>(), n, pivots_.as<int>(), right.of<T>(), n, &refused, count);
    };
    check(dtype_ == DType::f64 ? run.template operator()<double>(cublasDgetrsBatched) : run.template operator()<float>(cublasSgetrsBatched),
          "cublasgetrsBatched");
  }

  Sizes sizes_;
  DType dtype_;
  Stream stream_;
  bool batched_;
  Workspace memory_, pivots_, info_;  ///< pivots are i32 in a batch, else i64
};

}  // namespace

bool has_linalg(Cuda) { return true; }

std::int64_t Cholesky::run(Cuda) const {
  const Sizes sizes(a);
  if (sizes.empty()) return -1;
  const std::int64_t n = sizes.rows;
  const Stream stream = l.stream;
  const Batch batch{l.data, sizes.count, n * n};
  const Workspace info(static_cast<std::size_t>(sizes.count) * sizeof(int), stream), first(sizeof(std::int64_t), stream);
  const CusolverHandle with = cusolver(stream);
  const Cusolver& library = cusolver_library();
  if (is_batched(sizes.count, n)) {
    Triangle{a, l, 0, false}.run(Cuda{});
    const Pointers all(batch, l.dtype, stream);
    dispatch_f32_f64(l.dtype, "linalg", [&]<class T>() {
      check(library.of<T>().potrf_batched(with.handle, upper, as_int(n), all.of<T>(), as_int(n), info.as<int>(), as_int(sizes.count)),
            "cusolverDnpotrfBatched");
    });
  } else {
    // The lower triangle in column-major order, for which matrices are transposed twice.
    const Workspace memory(bytes_of(sizes.count * n * n, l.dtype), stream);
    const View columns = matrices(Order::by_columns, memory.as<>(), a, n, n);
    Copy{a, columns}.run(Cuda{});
    const cudaDataType_t type = cuda_type(l.dtype);
    const cublasFillMode_t lower = CUBLAS_FILL_MODE_LOWER;
    Buffers buffers(stream, "cusolverDnXpotrf_bufferSize", [&](std::size_t* device, std::size_t* host) {
      return library.potrf_buffer_size(with.handle, with.params, lower, n, type, memory.as<>(), n, type, device, host);
    });
    for (std::int64_t i = 0; i < sizes.count; ++i)
      check(library.potrf(with.handle, with.params, lower, n, type, element(memory.as<>(), i * n * n, l.dtype), n, type, buffers.device(),
                          buffers.device_bytes(), buffers.host(), buffers.host_bytes(), info.as<int>() + i),
            "cusolverDnXpotrf");
    Copy{columns, l}.run(Cuda{});
  }
  Triangle{l, l, 0, false}.run(Cuda{});  // potrf leaves the other triangle unchanged, and potrfBatched leaves intermediate values there
  find_failed_matrix(batch, n, l.dtype, true, info.as<int>(), first.as<std::int64_t>(), stream);
  return read_refused(first.as<std::int64_t>(), sizes.count, stream);
}

void Qr::run(Cuda) const {
  const Sizes sizes(a);
  if (sizes.empty()) return;
  const std::int64_t m = sizes.rows, n = sizes.columns, k = std::min(m, n), count = sizes.count;
  const Stream stream = a.stream;
  const DType dtype = a.dtype;
  const bool batched = is_batched(count, std::max(m, n));
  const Workspace memory(bytes_of(count * m * n, dtype), stream), tau(bytes_of(count * k, dtype), stream),
      info(static_cast<std::size_t>(count) * sizeof(int), stream);
  const Batch reflections{memory.as<>(), count, m * n};
  Copy{a, matrices(Order::by_columns, memory.as<>(), a, m, n)}.run(Cuda{});
  const CusolverHandle with = cusolver(stream);
  const Cusolver& library = cusolver_library();
  const cudaDataType_t type = cuda_type(dtype);
  const auto matrix = [&](std::int64_t i) { return element(memory.as<>(), i * m * n, dtype); };
  const auto scales = [&](std::int64_t i) { return element(tau.as<>(), i * k, dtype); };
  if (batched) {
    const Pointers all(reflections, dtype, stream), taus({tau.as<>(), count, k}, dtype, stream);
    int refused = 0;  // index of an invalid argument, which cuBLAS's status reports as well
    const auto run = [&]<class T>(auto function) {
      return function(cublas(stream), as_int(m), as_int(n), all.of<T>(), as_int(m), taus.of<T>(), &refused, as_int(count));
    };
    check(dtype == DType::f64 ? run.template operator()<double>(cublasDgeqrfBatched) : run.template operator()<float>(cublasSgeqrfBatched),
          "cublasgeqrfBatched");
  } else {
    Buffers buffers(stream, "cusolverDnXgeqrf_bufferSize", [&](std::size_t* device, std::size_t* host) {
      return library.geqrf_buffer_size(with.handle, with.params, m, n, type, matrix(0), m, type, scales(0), type, device, host);
    });
    for (std::int64_t i = 0; i < count; ++i)
      check(library.geqrf(with.handle, with.params, m, n, type, matrix(i), m, type, scales(i), type, buffers.device(),
                          buffers.device_bytes(), buffers.host(), buffers.host_bytes(), info.as<int>() + i),
            "cusolverDnXgeqrf");
  }
  Triangle{matrices(Order::by_columns, memory.as<>(), a, m, n), r, 0, true}.run(Cuda{});
  // Q is formed in the first k columns of each matrix, or, in a batch, in separate memory.
  const Workspace beside(batched ? bytes_of(count * m * k, dtype) : 0, stream);
  const Batch columns = batched ? Batch{beside.as<>(), count, m * k} : reflections;
  if (batched) {
    form_q(reflections, m, k, dtype, tau.as<>(), columns.data, stream);
  } else {
    dispatch_f32_f64(dtype, "linalg", [&]<class T>() {
      const int rows = as_int(m), width = as_int(k);
      int size = 0;
      check(library.of<T>().orgqr_buffer_size(with.handle, rows, width, width, memory.as<T>(), rows, tau.as<T>(), &size),
            "cusolverDnorgqr_bufferSize");
      const Workspace work(bytes_of(size, dtype), stream);
      for (std::int64_t i = 0; i < count; ++i)
        check(library.of<T>().orgqr(with.handle, rows, width, width, static_cast<T*>(matrix(i)), rows, static_cast<T*>(scales(i)),
                                    work.as<T>(), size, info.as<int>() + i),
              "cusolverDnorgqr");
    });
  }
  fix_signs(SignOf::diagonal, columns, m, {r.data, count, k * n}, n, k, dtype, stream);
  Copy{matrices(Order::by_columns, columns.data, a, m, k, columns.stride), q}.run(Cuda{});
}

void Eigh::run(Cuda) const {
  const Sizes sizes(a);
  if (sizes.empty()) return;
  const std::int64_t n = sizes.rows, count = sizes.count;
  const Stream stream = a.stream;
  const DType dtype = a.dtype;
  const Workspace memory(bytes_of(count * n * n, dtype), stream), info(static_cast<std::size_t>(count) * sizeof(int), stream),
      marks(static_cast<std::size_t>(count) * sizeof(int), stream);
  const Batch batch{memory.as<>(), count, n * n};
  Triangle{a, matrices(Order::by_rows, memory.as<>(), a, n, n), 0, false}.run(Cuda{});
  zero_non_finite(batch, dtype, marks.as<int>(), stream);
  const CusolverHandle with = cusolver(stream);
  const Cusolver& library = cusolver_library();
  const cudaDataType_t type = cuda_type(dtype);
  if (is_batched(count, n)) {
    Buffers buffers(stream, "cusolverDnXsyevBatched_bufferSize", [&](std::size_t* device, std::size_t* host) {
      return library.syev_batched_buffer_size(with.handle, with.params, with_vectors, upper, n, type, memory.as<>(), n, type, values.data,
                                              type, device, host, count);
    });
    check(library.syev_batched(with.handle, with.params, with_vectors, upper, n, type, memory.as<>(), n, type, values.data, type,
                               buffers.device(), buffers.device_bytes(), buffers.host(), buffers.host_bytes(), info.as<int>(), count),
          "cusolverDnXsyevBatched");
  } else {
    Buffers buffers(stream, "cusolverDnXsyevd_bufferSize", [&](std::size_t* device, std::size_t* host) {
      return library.syevd_buffer_size(with.handle, with.params, with_vectors, upper, n, type, memory.as<>(), n, type, values.data, type,
                                       device, host);
    });
    for (std::int64_t i = 0; i < count; ++i)
      check(library.syevd(with.handle, with.params, with_vectors, upper, n, type, element(memory.as<>(), i * n * n, dtype), n, type,
                          element(values.data, i * n, dtype), type, buffers.device(), buffers.device_bytes(), buffers.host(),
                          buffers.host_bytes(), info.as<int>() + i),
            "cusolverDnXsyevd");
  }
  fix_signs(SignOf::large_element, batch, n, {}, 0, n, dtype, stream);
  Copy{matrices(Order::by_columns, memory.as<>(), a, n, n), vectors}.run(Cuda{});
  fill_nan({values.data, count, n}, dtype, marks.as<int>(), info.as<int>(), stream);
  fill_nan({vectors.data, count, n * n}, dtype, marks.as<int>(), info.as<int>(), stream);
}

namespace {

/// Singular vectors column-major, left ones (count, columns, rows) and right ones (count, columns, columns), each with a stride.
struct Jacobi {
  std::int64_t count, rows, columns;  ///< rows >= columns
  bool batched;                       ///< gesvdjBatched takes at most 32 rows, and computes `rows` left singular vectors
  std::int64_t left_stride() const { return rows * (batched ? rows : columns); }
  std::int64_t right_stride() const { return columns * columns; }

  /// Decomposes a (count, columns, rows), column-major, and overwrites it.
  template <class T>
  void run(T* a, T* s, T* left, T* right, int* info, Stream stream) const {
    const CusolverHandle with = cusolver(stream);
    const CusolverOf<T>& library = cusolver_library().of<T>();
    const int m = as_int(rows), n = as_int(columns), all = as_int(count);
    int size = 0;
    if (batched) {
      check(library.gesvdj_batched_buffer_size(with.handle, with_vectors, m, n, a, m, s, left, m, right, n, &size, with.jacobi, all),
            "cusolverDngesvdjBatched_bufferSize");
      const Workspace work(static_cast<std::size_t>(size) * sizeof(T), stream);
      check(library.gesvdj_batched(with.handle, with_vectors, m, n, a, m, s, left, m, right, n, work.as<T>(), size, info, with.jacobi, all),
            "cusolverDngesvdjBatched");
      return;
    }
    check(library.gesvdj_buffer_size(with.handle, with_vectors, 1, m, n, a, m, s, left, m, right, n, &size, with.jacobi),
          "cusolverDngesvdj_bufferSize");
    const Workspace work(static_cast<std::size_t>(size) * sizeof(T), stream);
    for (std::int64_t i = 0; i < count; ++i)
      check(library.gesvdj(with.handle, with_vectors, 1, m, n, a + i * rows * columns, m, s + i * columns, left + i * left_stride(), m,
                           right + i * right_stride(), n, work.as<T>(), size, info + i, with.jacobi),
            "cusolverDngesvdj");
  }
};

}  // namespace

void Svd::run(Cuda) const {
  const Sizes sizes(a);
  if (sizes.empty()) return;
  const std::int64_t m = sizes.rows, n = sizes.columns, k = std::min(m, n), count = sizes.count;
  const Stream stream = a.stream;
  const DType dtype = a.dtype;
  // A wide row-major matrix is a tall column-major one, whose left and right vectors are swapped.
  const bool is_tall = m >= n;
  const Jacobi jacobi{count, std::max(m, n), k, count > 1 && std::max(m, n) <= 32};
  const Workspace memory(bytes_of(count * m * n, dtype), stream), left(bytes_of(count * jacobi.left_stride(), dtype), stream),
      right(bytes_of(count * jacobi.right_stride(), dtype), stream), info(static_cast<std::size_t>(count) * sizeof(int), stream),
      marks(static_cast<std::size_t>(count) * sizeof(int), stream);
  Copy{a, matrices(is_tall ? Order::by_columns : Order::by_rows, memory.as<>(), a, m, n)}.run(Cuda{});
  zero_non_finite({memory.as<>(), count, m * n}, dtype, marks.as<int>(), stream);
  dispatch_f32_f64(dtype, "linalg",
                   [&]<class T>() { jacobi.run(memory.as<T>(), s.as<T>(), left.as<T>(), right.as<T>(), info.as<int>(), stream); });
  const Batch lefts{left.as<>(), count, jacobi.left_stride()}, rights{right.as<>(), count, jacobi.right_stride()};
  const Batch &of_u = is_tall ? lefts : rights, &of_vt = is_tall ? rights : lefts;
  fix_signs(SignOf::large_element, of_u, m, of_vt, n, k, dtype, stream);
  Copy{matrices(Order::by_columns, of_u.data, a, m, k, of_u.stride), u}.run(Cuda{});
  Copy{matrices(Order::by_rows, of_vt.data, a, k, n, of_vt.stride), vt}.run(Cuda{});
  for (const Batch& y : {Batch{u.data, count, m * k}, Batch{s.data, count, k}, Batch{vt.data, count, k * n}})
    fill_nan(y, dtype, marks.as<int>(), info.as<int>(), stream);
}

std::int64_t Solve::run(Cuda) const {
  const Sizes sizes(a);
  const std::int64_t n = sizes.rows, width = x.shape[x.dims() - 1];
  if (sizes.empty() || width == 0) return -1;
  const Stream stream = x.stream;
  const Lu lu(a);
  // A single column is the same in both orders.
  const Workspace beside(width == 1 ? 0 : bytes_of(sizes.count * n * width, x.dtype), stream), first(sizeof(std::int64_t), stream);
  const View columns = matrices(Order::by_columns, width == 1 ? x.data : beside.as<>(), x, n, width);
  Copy{b, columns}.run(Cuda{});
  lu.find_singular(first.as<std::int64_t>());
  lu.solve(columns.data, width);
  if (width > 1) Copy{columns, x}.run(Cuda{});
  return read_refused(first.as<std::int64_t>(), sizes.count, stream);
}

void Det::run(Cuda) const {
  const Sizes sizes(a);
  if (sizes.empty()) return Fill{values, 1}.run(Cuda{});
  const Workspace marks(static_cast<std::size_t>(sizes.count) * sizeof(int), a.stream);
  Lu(a, marks.as<int>()).determinants(values.data);
  fill_nan({values.data, sizes.count, 1}, a.dtype, marks.as<int>(), nullptr, a.stream);
}

}  // namespace tern::kernels

#else

namespace tern::kernels {

bool has_linalg(Cuda) { return false; }
std::int64_t Cholesky::run(Cuda) const { fail_without_linalg(); }
void Qr::run(Cuda) const { fail_without_linalg(); }
void Eigh::run(Cuda) const { fail_without_linalg(); }
void Svd::run(Cuda) const { fail_without_linalg(); }
std::int64_t Solve::run(Cuda) const { fail_without_linalg(); }
void Det::run(Cuda) const { fail_without_linalg(); }

}  // namespace tern::kernels

#endif
