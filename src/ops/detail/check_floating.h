#pragma once
#include <fmt/format.h>

#include "tensor/tensor.h"

namespace tern::detail {

/// Throws Error that names `op` unless the dtype is a floating one.
inline void check_floating(const char* op, DType dtype) {
  if (!is_floating(dtype)) fail(op, fmt::format("expected a floating dtype but got {}", name(dtype)));
}
inline void check_floating(const char* op, const Tensor& x) { check_floating(op, x.dtype()); }

}  // namespace tern::detail
