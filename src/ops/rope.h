#pragma once
#include <optional>

#include "tensor/tensor.h"

namespace tern {

/// Slower rotations for texts longer than those of the training before. `factor` 1 changes nothing.
struct RopeScaling {
  double factor = 1;  ///< positions are divided by it: position interpolation (Chen et al., 2023)
  /// Of the training before; 0: all pairs are slowed down alike. Else as Llama 3 does: pairs that turn more than `high_turns` times over
  /// this length keep their speed, those that turn less than `low_turns` times are slowed down by `factor`, and between them it is blended.
  std::int64_t original_length = 0;
  double low_turns = 1;   ///< see original_length
  double high_turns = 4;  ///< see original_length
};

/// Cosine and sine of t base^(-2i / D), a frequency that `scaling` changes, for positions t < length and pairs i < D / 2:
/// (length, D / 2, 2), f32. Throws Error for an odd D, and for numbers that are not positive.
Tensor rope_table(std::int64_t length, std::int64_t head_dim, double base = 10000, Device device = default_device(),
                  const RopeScaling& scaling = {});

/// The two elements of a head that are rotated together, as pair i.
enum class RopePairs : std::uint8_t {
  adjacent,  ///< 2i and 2i + 1, as in the paper
  halves,    ///< i and D / 2 + i, as Hugging Face's models have them: "rotate half"
};

/// Rotary position embedding: x (B, H, T, D) with each pair i at position t rotated by the angle in table[t, i], of rope_table, (at least
/// T, D / 2, 2). With `heads` only that many heads are rotated, and the others are copied: so queries and keys of one projection are,
/// beside its values. Su et al., "RoFormer", 2021. Throws Error if D is odd or shapes do not fit.
Tensor rope(const Tensor& x, const Tensor& table, std::optional<std::int64_t> heads = {}, RopePairs pairs = RopePairs::adjacent);

}  // namespace tern
