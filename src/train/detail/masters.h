#pragma once
#include "ops/factory.h"
#include "ops/pointwise.h"

namespace tern::train::detail {

/// Copies edits of 16-bit parameters to their f32 masters, where a parameter is no longer its rounded master: loading a file writes only
/// parameters. Both (N).
inline void refresh_masters(const Tensor& parameters, const Tensor& masters) {
  const Tensor is_unchanged = eq(cast(masters, parameters.dtype()), parameters);
  copy_(masters, where(is_unchanged, masters, cast(parameters, DType::f32)));
}

}  // namespace tern::train::detail
