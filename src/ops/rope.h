#pragma once
#include <optional>

#include "tensor/tensor.h"

namespace tern {

/// RoPE scaling: lower rotation frequencies, for texts longer than the training length. A `factor` of 1 changes nothing.
struct RopeScaling {
  double factor = 1;  ///< positions are divided by it: position interpolation (Chen et al., 2023)
  /// Length of the training texts. 0: all pairs are slowed down alike. Otherwise as in Llama 3: pairs that turn more than `high_turns`
  /// times over this length keep their frequency, those that turn less than `low_turns` times are slowed down by `factor`, and in between
  /// the two are blended.
  std::int64_t original_length = 0;
  double low_turns = 1;   ///< see original_length
  double high_turns = 4;  ///< see original_length
};

/// Cosines and sines of t base^(-2i / D), a frequency that `scaling` changes, for positions t < length and pairs i < D / 2: (length, D / 2,
/// 2), f32. Throws Error for an odd D, and for numbers that are not positive.
Tensor rope_table(std::int64_t length, std::int64_t head_dim, double base = 10000, Device device = default_device(),
                  const RopeScaling& scaling = {});

/// Layout of the pairs of elements of a head that are rotated together, as pair i.
enum class RopePairs : std::uint8_t {
  adjacent,  ///< 2i and 2i + 1, as in the paper
  halves,    ///< i and D / 2 + i, "rotate half" in Hugging Face's models
};

/// Rotary position embedding: rotates each pair i of x (B, H, T, D) at position t by the angle table[t, i] of rope_table, (at least T, D /
/// 2, 2). With `heads`, only the first `heads` heads are rotated and the others are copied: for queries and keys beside values in one
/// projection. Su et al., "RoFormer", 2021. Throws Error if D is odd or shapes do not fit.
Tensor rope(const Tensor& x, const Tensor& table, std::optional<std::int64_t> heads = {}, RopePairs pairs = RopePairs::adjacent);

}  // namespace tern
