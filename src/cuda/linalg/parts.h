#pragma once
#include "tensor/view.h"

// The kernels between the calls of cuSOLVER and cuBLAS, which want matrices by columns: `count` matrices of f32 or f64, each `stride`
// elements after the one before.
namespace tern::gpu {

/// A batch of matrices, or of vectors that are its columns.
struct Batch {
  void* data;
  std::int64_t count;
  std::int64_t stride;
};

/// pointers[i] = the address of matrix i.
void point_to(const Batch& x, DType dtype, void* pointers, Stream stream);

/// *first = the index of the first matrix whose info is not 0 (where there is info), or with an element on its diagonal that is 0, or with
/// `positive` one that is not above it; larger than any index where there is none.
void find_refused(const Batch& x, std::int64_t n, DType dtype, bool positive, const int* info, std::int64_t* first, Stream stream);

/// values[i] = the determinant of matrix i from its LU decomposition: the product of the diagonal, negated for each row that moved.
/// Pivots (count, n) count from 1, in i64, or i32 with `short_pivots`.
void determinants(const Batch& lu, std::int64_t n, DType dtype, const void* pivots, bool short_pivots, void* values, Stream stream);

/// marks[i] = whether matrix i, of `stride` elements, has one that is not finite. All its elements become 0 then, as the iterations of
/// cuSOLVER need not end otherwise.
void clear_infinite(const Batch& x, DType dtype, int* marks, Stream stream);
/// Matrices of results become NaN where marked, or where info is not 0.
void spoil_marked(const Batch& x, DType dtype, const int* marks, const int* info, Stream stream);

/// Note [Signs] of k columns of `length` elements of each matrix of `columns`, with the rows of `rows` that belong to them, each of
/// `width` elements. qr's sign is that of R's diagonal, in `rows`. For columns alone, rows.data is null.
enum class SignOf : bool { large_element, diagonal };
void fix_signs(SignOf sign, const Batch& columns, std::int64_t length, const Batch& rows, std::int64_t width, std::int64_t k, DType dtype,
               Stream stream);

/// The first k columns of the orthogonal matrix that Householder's reflections give: q (count, k, length) by columns. Reflections are as
/// geqrf leaves them below the diagonal of columns of `length` elements, with tau (count, k). For many small matrices: a warp a column.
void form_q(const Batch& reflections, std::int64_t length, std::int64_t k, DType dtype, const void* tau, void* q, Stream stream);

}  // namespace tern::gpu
