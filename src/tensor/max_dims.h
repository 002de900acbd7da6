#pragma once

namespace tern {

/// Maximal number of dimensions of a tensor.
inline constexpr int max_dims = 8;

}  // namespace tern
