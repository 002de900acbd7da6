#pragma once
#include "tensor/view.h"

// Kernels for batches of column-major matrices, used between calls of cuSOLVER and cuBLAS: `count` matrices of f32 or f64, `stride`
// elements apart.
namespace tern::gpu {

/// Batch of matrices, or of vectors, which are matrices of one column.
struct Batch {
  void* data;
  std::int64_t count;
  std::int64_t stride;
};

/// pointers[i] = the address of matrix i.
void write_pointers(const Batch& x, DType dtype, void* pointers, Stream stream);

/// *first = index of the first matrix that failed: whose info is not 0 (if there is info), or whose diagonal has a 0, or with `positive` an
/// element that is not above 0; `count` if there is none.
void find_failed_matrix(const Batch& x, std::int64_t n, DType dtype, bool positive, const int* info, std::int64_t* first, Stream stream);

/// values[i] = determinant of matrix i from its LU decomposition: the product of the diagonal, negated for each row that was exchanged.
/// Pivots (count, n) count from 1, in i64, or i32 with `short_pivots`.
void determinants(const Batch& lu, std::int64_t n, DType dtype, const void* pivots, bool short_pivots, void* values, Stream stream);

/// marks[i] = 1 if matrix i, of `stride` elements, has a NaN or an infinity, else 0. All elements of such a matrix are set to 0, because
/// iterations of cuSOLVER might otherwise not terminate.
void zero_non_finite(const Batch& x, DType dtype, int* marks, Stream stream);
/// Fills matrices with NaN if they are marked, or if info is not 0.
void fill_nan(const Batch& x, DType dtype, const int* marks, const int* info, Stream stream);

/// Applies Note [Signs] to k columns of `length` elements of each matrix of `columns`, and to the rows of `rows` that belong to them, of
/// `width` elements each. qr's sign is that of R's diagonal, in `rows`. For columns alone, rows.data is null.
enum class SignOf : bool { large_element, diagonal };
void fix_signs(SignOf sign, const Batch& columns, std::int64_t length, const Batch& rows, std::int64_t width, std::int64_t k, DType dtype,
               Stream stream);

/// Forms the first k columns of the orthogonal matrix of Householder reflections: q (count, k, length), column-major. Reflections are as
/// geqrf leaves them, below the diagonal of columns of `length` elements, with tau (count, k). For many small matrices: one warp per
/// column.
void form_q(const Batch& reflections, std::int64_t length, std::int64_t k, DType dtype, const void* tau, void* q, Stream stream);

}  // namespace tern::gpu
