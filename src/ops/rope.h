#pragma once
#include <optional>

#include "tensor/tensor.h"

namespace tern {

/// Cosine and sine of t base^(-2i / D) for positions t < length and pairs i < D / 2: (length, D / 2, 2), f32.
Tensor rope_table(std::int64_t length, std::int64_t head_dim, double base = 10000, Device device = default_device());
/// Rotary position embedding: x (B, H, T, D) with each adjacent pair (2i, 2i + 1) at position t rotated by the angle in table[t, i], of
/// rope_table, (at least T, D / 2, 2). With `heads` only that many heads are rotated, and the others are copied: so queries and keys of one
/// projection are, beside its values. Su et al., "RoFormer", 2021. Throws Error if D is odd or shapes do not fit.
Tensor rope(const Tensor& x, const Tensor& table, std::optional<std::int64_t> heads = {});

}  // namespace tern
