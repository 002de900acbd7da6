#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/gemm/cublas.h"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/functors.h"
#include "ops/kernels/matmul.h"
#include "tensor/dispatch.h"
#include "tensor/layout.h"
#include "tensor/sizes.h"

// Batched GEMM by gemm.h, and by cuBLAS where that has no algorithm. Both are column-major, so they compute c^T = b^T a^T: the operands are
// swapped, and a row-major matrix is "not transposed". A batch with one stride is passed as such, another as arrays of addresses that a
// small kernel writes, or, where cuBLAS requires more alignment than ours have, as a loop over inner batches.
namespace tern::kernels {

using namespace gpu;

namespace {

/// Matrix in memory in BLAS terms.
struct BlasLayout {
  cublasOperation_t transpose = CUBLAS_OP_N;
  std::int64_t leading_dimension = 0;  ///< 0: BLAS cannot take these strides
};

BlasLayout blas_layout(std::int64_t rows, std::int64_t columns, std::int64_t row_stride, std::int64_t column_stride) {
  if ((column_stride == 1 || columns <= 1) && (rows <= 1 || row_stride >= std::max<std::int64_t>(columns, 1)))
    return {CUBLAS_OP_N, rows <= 1 ? std::max<std::int64_t>(columns, 1) : row_stride};
  if ((row_stride == 1 || rows <= 1) && (columns <= 1 || column_stride >= std::max<std::int64_t>(rows, 1)))
    return {CUBLAS_OP_T, columns <= 1 ? std::max<std::int64_t>(rows, 1) : column_stride};
  return {};
}

/// c (m, n) = a (m, k) b (k, n), row-major, for each element of a batch of any strides over a, b and c.
struct BatchedProblem {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_strides[2] = {}, b_strides[2] = {}, c_strides[2] = {};  ///< of rows and columns
  Layout<3> batch;
};

/// Merges a dimension of the batch that shares one b into the rows of a and c, if their strides allow it.
bool merge_into_rows(BatchedProblem& p) {
  if (p.batch.dims == 0) return false;
  for (int d = 0; d < p.batch.dims; ++d) {
    if (p.batch.strides[1][d] != 0) continue;
    const std::int64_t size = p.batch.sizes[d], a_stride = p.batch.strides[0][d], c_stride = p.batch.strides[2][d];
    const std::int64_t a_row = p.m == 1 ? a_stride : p.a_strides[0], c_row = p.m == 1 ? c_stride : p.c_strides[0];
    if (p.m != 1 && (a_stride != p.m * a_row || c_stride != p.m * c_row)) continue;
    if (blas_layout(p.m * size, p.k, a_row, p.a_strides[1]).leading_dimension == 0) continue;
    const BlasLayout c = blas_layout(p.m * size, p.n, c_row, p.c_strides[1]);
    if (c.leading_dimension == 0 || c.transpose != CUBLAS_OP_N) continue;
    p.m *= size;
    p.a_strides[0] = a_row;
    p.c_strides[0] = c_row;
    p.batch = p.batch.without(d);
    return true;
  }
  return false;
}

struct Addresses {
  char *a, *b, *c;
};

/// addresses (3, count): those of each GEMM's a, b and c.
__global__ void __launch_bounds__(block_size)
    fill_addresses(Addresses base, Indexer<3> batch, std::uint32_t count, std::int64_t element, char** addresses) {
  const std::uint32_t i = blockIdx.x * block_size + threadIdx.x;
  if (i >= count) return;
  std::int64_t offsets[3];
  batch.locate(i, offsets);
  addresses[i] = base.a + offsets[0] * element;
  addresses[std::int64_t(count) + i] = base.b + offsets[1] * element;
  addresses[2 * std::int64_t(count) + i] = base.c + offsets[2] * element;
}

class BatchedGemm {
 public:
  BatchedGemm(const BatchedProblem& p, DType dtype, double alpha, Write write, Stream stream)
      : p_(p),
        dtype_(dtype),
        write_(write),
        stream_(stream),
        handle_(cublas(stream)),
        type_(cuda_type(dtype)),
        compute_(compute_type(dtype, context().kernels.matmul_precision)),
        element_(static_cast<std::int64_t>(size_of(dtype))),
        alpha_(alpha),
        scale_(alpha, dtype),
        beta_(write == Write::accumulate ? 1 : 0, dtype),
        a_(blas_layout(p.m, p.k, p.a_strides[0], p.a_strides[1])),
        b_(blas_layout(p.k, p.n, p.b_strides[0], p.b_strides[1])),
        c_(blas_layout(p.m, p.n, p.c_strides[0], p.c_strides[1])) {
    if (a_.leading_dimension == 0 || b_.leading_dimension == 0 || c_.leading_dimension == 0 || c_.transpose != CUBLAS_OP_N)
      fail("matmul", "expected operands with one unit stride and c with contiguous rows");
  }

  /// True if cuBLAS gets the addresses of all GEMMs.
  bool takes_addresses(const Addresses& base) const { return p_.batch.dims > 1 && p_.batch.numel() <= 65535 && are_aligned(base); }
  std::size_t address_bytes() const { return static_cast<std::size_t>(3 * p_.batch.numel()) * sizeof(char*); }
  void write_addresses(const Addresses& base, char** addresses) const {
    const std::int64_t count = p_.batch.numel();
    launch(fill_addresses, blocks_for(count), block_size, 0, stream_, base, p_.batch, static_cast<std::uint32_t>(count), element_,
           addresses);
  }

  /// `addresses`: those of all GEMMs, or null.
  void run(const Addresses& base, char** addresses) const {
    const Layout<3>& batch = p_.batch;
    if (batch.dims == 0) return single(base);
    if (batch.dims == 1) return strided(base, 0);
    if (takes_addresses(base)) {
      const Workspace memory(addresses ? 0 : address_bytes(), stream_);
      if (!addresses) write_addresses(base, addresses = memory.as<char*>());
      return at_addresses(addresses);
    }
    // All dimensions but the longest in a loop.
    int longest = 0;
    for (int d = 1; d < batch.dims; ++d)
      if (batch.sizes[d] > batch.sizes[longest]) longest = d;
    const std::int64_t rest = batch.numel() / batch.sizes[longest];
    for (std::int64_t i = 0; i < rest; ++i) {
      std::int64_t index = i, offsets[3] = {};
      for (int d = 0; d < batch.dims; ++d) {
        if (d == longest) continue;
        for (int o = 0; o < 3; ++o) offsets[o] += index % batch.sizes[d] * batch.strides[o][d];
        index /= batch.sizes[d];
      }
      strided(moved(base, offsets), longest);
    }
  }

 private:
  Addresses moved(const Addresses& base, const std::int64_t* offsets) const {
    return {base.a + offsets[0] * element_, base.b + offsets[1] * element_, base.c + offsets[2] * element_};
  }

  /// `count` GEMMs along a dimension of the batch, by gemm.h.
  bool planned(const Addresses& at, std::int64_t count, int dimension) const {
    GemmProblem q{.dtype = dtype_,
                  .precision = context().kernels.matmul_precision,
                  .write = write_,
                  .a_transposed = b_.transpose == CUBLAS_OP_T,
                  .b_transposed = a_.transpose == CUBLAS_OP_T,
                  .m = p_.n,
                  .n = p_.m,
                  .k = p_.k,
                  .lda = b_.leading_dimension,
                  .ldb = a_.leading_dimension,
                  .ldc = c_.leading_dimension};
    if (count > 1) {
      q.batch_count = count;
      q.a_batch_stride = p_.batch.strides[1][dimension];
      q.b_batch_stride = p_.batch.strides[0][dimension];
      q.c_batch_stride = p_.batch.strides[2][dimension];
    }
    return gemm(q, {.a = at.b, .b = at.a, .c = at.c}, alpha_, stream_);
  }

  void single(const Addresses& at) const {
    if (planned(at, 1, 0)) return;
    check(cublasGemmEx_64(handle_, b_.transpose, a_.transpose, p_.n, p_.m, p_.k, scale_.data(), at.b, type_, b_.leading_dimension, at.a,
                          type_, a_.leading_dimension, beta_.data(), at.c, type_, c_.leading_dimension, compute_, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  }

  void strided(const Addresses& base, int d) const {
    constexpr std::int64_t max_count = 65535;  // maximum of a grid's third dimension
    const Layout<3>& batch = p_.batch;
    for (std::int64_t first = 0; first < batch.sizes[d]; first += max_count) {
      const std::int64_t offsets[3] = {first * batch.strides[0][d], first * batch.strides[1][d], first * batch.strides[2][d]};
      const Addresses at = moved(base, offsets);
      if (planned(at, std::min(max_count, batch.sizes[d] - first), d)) continue;
      check(cublasGemmStridedBatchedEx_64(handle_, b_.transpose, a_.transpose, p_.n, p_.m, p_.k, scale_.data(), at.b, type_,
                                          b_.leading_dimension, batch.strides[1][d], at.a, type_, a_.leading_dimension, batch.strides[0][d],
                                          beta_.data(), at.c, type_, c_.leading_dimension, batch.strides[2][d],
                                          std::min(max_count, batch.sizes[d] - first), compute_, CUBLAS_GEMM_DEFAULT),
            "cublasGemmStridedBatchedEx");
    }
  }

  /// For 16-bit floats cuBLAS chooses wide loads by k alone, and assumes that the addresses are aligned.
  bool are_aligned(const Addresses& base) const {
    if (element_ > 2) return true;
    const char* const bases[] = {base.a, base.b, base.c};
    for (int o = 0; o < 3; ++o) {
      if (!is_aligned(bases[o], 16)) return false;
      for (int d = 0; d < p_.batch.dims; ++d)
        if (p_.batch.strides[o][d] * element_ % 16 != 0) return false;
    }
    return true;
  }

  void at_addresses(char** addresses) const {
    const std::int64_t count = p_.batch.numel();
    const auto list = [&](int operand) { return reinterpret_cast<void**>(addresses + operand * count); };
    check(cublasGemmBatchedEx_64(handle_, b_.transpose, a_.transpose, p_.n, p_.m, p_.k, scale_.data(), const_cast<const void**>(list(1)),
                                 type_, b_.leading_dimension, const_cast<const void**>(list(0)), type_, a_.leading_dimension, beta_.data(),
                                 list(2), type_, c_.leading_dimension, count, compute_, CUBLAS_GEMM_DEFAULT),
          "cublasGemmBatchedEx");
  }

  const BatchedProblem& p_;
  DType dtype_;
  Write write_;
  Stream stream_;
  cublasHandle_t handle_;
  cudaDataType_t type_;
  cublasComputeType_t compute_;
  std::int64_t element_;
  double alpha_;
  GemmScale scale_, beta_;
  BlasLayout a_, b_, c_;
};

}  // namespace

bool has_matmul_precision(Cuda, MatmulPrecision precision, Device device) {
  return precision != MatmulPrecision::tf32x3 || has_tf32_gemm(device);
}

/// The problem of a product that has elements and a depth.
static BatchedProblem problem_of(const Matmul& product) {
  const auto& [a, b, c, alpha, write, addresses] = product;
  const int row = c.dims() - 2, column = c.dims() - 1;
  BatchedProblem p;
  p.m = c.shape[row];
  p.n = c.shape[column];
  p.k = a.shape[column];
  for (int i = 0; i < 2; ++i) {
    p.a_strides[i] = a.strides[row + i];
    p.b_strides[i] = b.strides[row + i];
    p.c_strides[i] = c.strides[row + i];
  }
  Layout<3> batch;
  for (int d = row - 1; d >= 0; --d) batch.push(c.shape[d], {a.strides[d], b.strides[d], c.strides[d]});
  batch.simplify();
  if (batch.numel() > 1) p.batch = batch;
  while (merge_into_rows(p)) {
  }
  return p;
}
static Addresses bases_of(const Matmul& product) { return {product.a.as<char>(), product.b.as<char>(), product.c.as<char>()}; }

void Matmul::run(Cuda) const {
  if (c.numel() == 0) return;
  if (a.shape.back() == 0) {
    if (write == Write::overwrite) Fill{c, 0}.run(Cuda{});
    return;
  }
  const BatchedProblem problem = problem_of(*this);
  BatchedGemm(problem, c.dtype, alpha, write, c.stream).run(bases_of(*this), static_cast<char**>(addresses));
}

std::size_t address_bytes(Cuda, const Matmul& product) {
  if (product.c.numel() == 0 || product.a.shape.back() == 0) return 0;
  const BatchedProblem problem = problem_of(product);
  const BatchedGemm gemm(problem, product.c.dtype, product.alpha, product.write, product.c.stream);
  return gemm.takes_addresses(bases_of(product)) ? gemm.address_bytes() : 0;
}
void write_addresses(Cuda, const Matmul& product) {
  const BatchedProblem problem = problem_of(product);
  BatchedGemm(problem, product.c.dtype, product.alpha, product.write, product.c.stream)
      .write_addresses(bases_of(product), static_cast<char**>(product.addresses));
}

// A linear layer as one GEMM with the bias in its epilogue: a separate addition would read and write y once more. Column-major
// as above: y^T (N, M) = weight (N, K) x^T (K, M).
//
// A bias gradient: the column sums of (M, N), optionally through GELU's derivative. Each block sums some rows and leaves a partial sum
// (ops/kernels/reduce.h). cuBLASLt has both as epilogues, but they take longer than these kernels, during which its tensor cores are idle.

namespace {

constexpr int lanes = 32, warps = block_size / lanes;  ///< a warp reads a row of the block's columns
constexpr std::int64_t max_parts = 256;

/// gelu_tanh'(x); for floats the fast form.
template <class C>
__device__ __forceinline__ C gelu_derivative(C x) {
  if constexpr (std::is_same_v<C, float>) return gelu_tanh_derivative(x);
  else return functors::GeluTanh{}.grad(x, C(0));
}

/// Column sums of g, or of g gelu'(x), which is written to dx: of rows_per_block rows each as parts (gridDim.y, N) of `sums`, or of all
/// rows in the sums' place if those have no parts; if both are null they are not needed.
template <class T, int width, bool has_gelu>
__global__ void __launch_bounds__(block_size)
    sum_columns(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t columns, std::int64_t rows_per_block, PartialSum sum) {
  using C = computed_t<T>;
  __shared__ C shared[warps][lanes * width];
  const std::int64_t first = std::int64_t(blockIdx.x) * lanes * width, column = first + threadIdx.x % lanes * width;
  const std::int64_t end = min(rows, (blockIdx.y + 1) * rows_per_block);
  C sums[width] = {};
  if (column < columns) {
    for (std::int64_t row = blockIdx.y * rows_per_block + threadIdx.x / lanes; row < end; row += warps) {
      const std::int64_t at = row * columns + column;
      const Vector<T, width> in = read_vector<width>(g + at);
      if constexpr (has_gelu) {
        const Vector<T, width> before = read_vector<width>(x + at);
        Vector<T, width> out;
#pragma unroll
        for (int k = 0; k < width; ++k) {
          const C gradient = convert<C>(in.values[k]) * gelu_derivative(convert<C>(before.values[k]));
          out.values[k] = convert<T>(gradient);
          sums[k] += gradient;
        }
        write_vector(dx + at, out);
      } else {
#pragma unroll
        for (int k = 0; k < width; ++k) sums[k] += convert<C>(in.values[k]);
      }
    }
  }
  if (!sum.to) return;
#pragma unroll
  for (int k = 0; k < width; ++k) shared[threadIdx.x / lanes][threadIdx.x % lanes * width + k] = sums[k];
  __syncthreads();
  for (int i = threadIdx.x; i < lanes * width && first + i < columns; i += block_size) {
    const C total = sum_column(shared, i);
    const std::int64_t at = (first + i) * sum.stride;
    if (sum.parts) static_cast<C*>(const_cast<void*>(sum.parts))[blockIdx.y * columns + first + i] = total;
    else write<AnyFloat>(sum.to, sum.dtype, at, sum.adds ? read<AnyFloat>(sum.to, sum.dtype, at) + double(total) : double(total));
  }
}

template <class T, bool has_gelu>
void sum(const View& g, const View& x, const View& dx, const View& sums, Write write, DeferredSums* deferred) {
  using C = computed_t<T>;
  constexpr int widest = 16 / sizeof(T);
  const std::int64_t rows = g.shape[0], columns = g.shape[1];
  bool is_vector = columns % widest == 0 && is_aligned(g.data, widest * sizeof(T));
  if (has_gelu) is_vector = is_vector && is_aligned(x.data, widest * sizeof(T)) && is_aligned(dx.data, widest * sizeof(T));
  const unsigned across = blocks_for(columns, lanes * (is_vector ? widest : 1));
  // About eight blocks for each multiprocessor, with at least two rows for each warp.
  const std::int64_t blocks = 8 * attribute(cudaDevAttrMultiProcessorCount, g.stream.device);
  const std::int64_t wanted = std::clamp<std::int64_t>(ceil_div(blocks, across), 1, max_parts);
  const std::int64_t rows_per_block = std::max<std::int64_t>(ceil_div(rows, wanted), 2 * warps);
  const auto count = static_cast<unsigned>(ceil_div(rows, rows_per_block));
  DeferredSums own(g.stream), &parts = own.or_given(deferred);
  PartialSum result{nullptr,    sums.data,
                    columns,    sums.data ? sums.strides[0] : 0,
                    count,      static_cast<unsigned>(columns),
                    sums.dtype, write == Write::accumulate};
  const bool has_parts = sums.data && (count > 1 || &parts != &own);  // a sum that is deferred may go where others do
  if (has_parts) result.parts = parts.memory(count * static_cast<std::size_t>(columns) * sizeof(C));
  launch(is_vector ? sum_columns<T, widest, has_gelu> : sum_columns<T, 1, has_gelu>, dim3(across, count), block_size, 0, g.stream,
         g.as<const T>(), x.as<const T>(), dx.as<T>(), rows, columns, rows_per_block, result);
  if (has_parts) parts.add(result);
  own.finish();
}

}  // namespace

void ColumnSums::run(Cuda) const {
  if (g.numel() > 0) dispatch_floats(g.dtype, "column_sums", [&]<class T>() { sum<T, false>(g, {}, {}, sums, write, deferred); });
  else if (write == Write::overwrite) Fill{sums, 0}.run(Cuda{});
}

void GeluBiasGrad::run(Cuda) const {
  if (g.numel() > 0) dispatch_floats(g.dtype, "gelu_bias_grad", [&]<class T>() { sum<T, true>(g, x, dx, sums, write, deferred); });
  else if (sums.data && write == Write::overwrite) Fill{sums, 0}.run(Cuda{});
}

/// True for a row-major matrix whose rows do not overlap.
static bool is_row_major(const View& x) { return (x.strides[1] == 1 || x.shape[1] == 1) && x.strides[0] >= x.shape[1]; }

/// Returns false, with nothing queued, if no GEMM takes the operands as they are.
static bool linear_gemm(const View& x, const View& weight, const View& bias, const View& y, Epilogue epilogue, void* before_gelu) {
  const bool has_bias = bias.data != nullptr;
  if (y.numel() == 0 || x.shape[1] == 0 || !is_row_major(x) || !is_row_major(weight) ||
      (has_bias && bias.strides[0] != 1 && bias.shape[0] != 1))
    return false;
  const GemmProblem problem{.dtype = y.dtype,
                            .precision = context().kernels.matmul_precision,
                            .epilogue = epilogue,
                            .a_transposed = true,
                            .m = y.shape[1],
                            .n = y.shape[0],
                            .k = x.shape[1],
                            .lda = weight.strides[0],
                            .ldb = x.strides[0],
                            .ldc = y.shape[1]};
  return gemm(problem, {.a = weight.data, .b = x.data, .c = y.data, .bias = bias.data, .before_gelu = before_gelu}, 1, y.stream);
}

void Linear::run(Cuda) const {
  if (!linear_gemm(x, weight, bias, y, bias.data ? Epilogue::bias : Epilogue::none, nullptr))
    plain_linear([](const auto& kernel) { kernel.run(Cuda{}); }, x, weight, bias, y);
}

void LinearGelu::run(Cuda) const {
  // In float32 the epilogue is slower than a separate kernel.
  const bool is_half = size_of(y.dtype) == 2;
  if (is_half && bias.data && linear_gemm(x, weight, bias, y, Epilogue::bias_gelu, before.data)) return;
  Linear{x, weight, bias, before}.run(Cuda{});
  Unary{functors::GeluTanh{}, before, y}.run(Cuda{});
}

}  // namespace tern::kernels
