#pragma once
#include <cstdint>

#include "tensor/dtype.h"

// Eigen's part of ops/linalg.h: decompositions of `count` contiguous row-major matrices of f32 or f64, each by pointers to the first.
namespace tern::detail::linalg {

#ifdef TERN_EIGEN
inline constexpr bool is_built = true;
#else
inline constexpr bool is_built = false;
#endif

struct Batch {
  DType dtype;
  std::int64_t count, rows, columns;  ///< of the matrices that go in
};

/// The index of the first matrix that is not positive definite, or -1.
std::int64_t cholesky(const Batch& batch, const void* a, void* l);
void qr(const Batch& batch, const void* a, void* q, void* r);
/// NaN throughout for a matrix that holds a number that is not finite.
void eigh(const Batch& batch, const void* a, void* values, void* vectors);
void svd(const Batch& batch, const void* a, void* u, void* s, void* vt);
/// x (rows, width) of b (rows, width). The index of the first matrix that is singular, or -1.
std::int64_t solve(const Batch& batch, const void* a, const void* b, std::int64_t width, void* x);
void det(const Batch& batch, const void* a, void* values);

}  // namespace tern::detail::linalg
