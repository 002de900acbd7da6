#pragma once
#include <optional>
#include <vector>

#include "ops/attention.h"

namespace tern::bench {

/// Forms of causal attention, the rows of the sweep `masks`.
enum class AttentionForm : std::uint8_t {
  plain,
  grouped,  ///< a quarter as many heads of keys and values, where that divides
  queries,  ///< the last half of the queries alone: T != S
  lengths,  ///< padding: of each batch row a random half to all of the keys
  prefix,   ///< of each batch row up to a half of the keys is seen by every query
  window,   ///< a quarter of the keys
  dropout,  ///< of 0.1
  packed,   ///< four sequences for each batch row, of random lengths with the same sum
  rope,     ///< queries and keys turned before it, as nn::MultiHeadAttention does; counts in the time, and not in the FLOPs
};
const char* name(AttentionForm form);
/// Those that a head of that many elements has, the plain one first: rotary positions turn pairs.
std::vector<AttentionForm> attention_forms(std::int64_t width);

struct AttentionCase {
  std::int64_t batch, heads, length, width;
  bool causal;
  std::optional<AttentionForm> form = {};

  std::vector<std::int64_t> shape() const { return {batch, heads, length, width}; }
};

/// A case's tensors. Random ones are the same for all forms that have them in one shape.
struct AttentionInputs {
  AttentionInputs(const AttentionCase& c, DType dtype, Device device);
  /// q, k and v.
  Tensors parts() const;

  Tensors projections;     ///< q, k and v are their slices, as in a model: one tensor for self attention, else q's, and one for k and v
  Tensor output_gradient;  ///< as q
  Tensor table;            ///< of rotary positions, where there are some
  AttentionParams params;
  std::int64_t heads, kv_heads;
  /// Of forward, two products: 4 D for each pair of query and key that is seen in a head. Counted pair by pair where the case has a form,
  /// else N^2, or half of it where causal, as peers count.
  double flops = 0;
};

}  // namespace tern::bench
