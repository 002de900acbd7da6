#include "cuda/device/convert.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/gemm/cublas.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/tf32_gemm.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/matmul.h"
#include "tensor/layout.h"

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
    write_addresses(Addresses base, Indexer<3> batch, std::uint32_t count, std::int64_t element, char** addresses) {
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

  void run(const Addresses& base) const {
    const Layout<3>& batch = p_.batch;
    if (batch.dims == 0) return single(base);
    if (batch.dims == 1) return strided(base, 0);
    if (takes_pointer_array(base) && batch.numel() <= 65535) return pointer_array(base);
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
  bool takes_pointer_array(const Addresses& base) const {
    if (element_ > 2) return true;
    const char* const bases[] = {base.a, base.b, base.c};
    for (int o = 0; o < 3; ++o) {
      if (!is_aligned(bases[o], 16)) return false;
      for (int d = 0; d < p_.batch.dims; ++d)
        if (p_.batch.strides[o][d] * element_ % 16 != 0) return false;
    }
    return true;
  }

  void pointer_array(const Addresses& base) const {
    const std::int64_t count = p_.batch.numel();
    const Workspace memory(static_cast<std::size_t>(3 * count) * sizeof(char*), stream_);
    char** const addresses = memory.as<char*>();
    launch(write_addresses, blocks_for(count), block_size, 0, stream_, base, p_.batch, static_cast<std::uint32_t>(count), element_,
           addresses);
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

void matmul(Cuda, const View& a, const View& b, const View& c, double alpha, Write write) {
  if (c.numel() == 0) return;
  const int row = c.dims() - 2, column = c.dims() - 1;
  BatchedProblem p;
  p.m = c.shape[row];
  p.n = c.shape[column];
  p.k = a.shape[column];
  if (p.k == 0) {
    if (write == Write::overwrite) fill(Cuda{}, c, 0);
    return;
  }
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
  BatchedGemm(p, c.dtype, alpha, write, c.stream).run({a.as<char>(), b.as<char>(), c.as<char>()});
}

}  // namespace tern::kernels
