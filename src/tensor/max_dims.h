#pragma once

namespace tern {

/// The most dimensions that a tensor can have.
inline constexpr int max_dims = 8;

}  // namespace tern
