#pragma once
#include <fmt/format.h>

#include "ops/copy.h"

namespace tern::detail {

/// Indices, targets or ids as kernels take them, i64: those of i32 are cast, at the door of each op, so that no kernel has a second type of
/// index. Throws Error for other dtypes.
inline Tensor as_indices(const char* op, const Tensor& index) {
  if (index.dtype() == DType::i64) return index;
  if (index.dtype() != DType::i32) fail(op, fmt::format("expected indices of i64 or i32 but got {}", name(index.dtype())));
  return cast(index, DType::i64);
}

}  // namespace tern::detail
