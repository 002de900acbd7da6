#pragma once
#include <optional>
#include <vector>

#include "ops/attention.h"

namespace tern::bench {

/// Variants of causal attention, the rows of the sweep `masks`.
enum class AttentionForm : std::uint8_t {
  plain,
  grouped,  ///< grouped-query attention: a quarter as many key and value heads, if that divides
  queries,  ///< only the last half of the queries: T != S
  lengths,  ///< padding: a random length for each batch row, from half to all of the keys
  prefix,   ///< prefix LM: a random prefix for each batch row, of up to half the keys
  window,   ///< sliding window of a quarter of the keys
  dropout,  ///< dropout of 0.1
  packed,   ///< packed sequences: four for each batch row, of random lengths
  rope,     ///< rotary positions, applied to queries and keys before; counted in the time, but not in the FLOPs
};
const char* name(AttentionForm form);
/// The variants for a head size, the plain one first. Rotary positions need an even size.
std::vector<AttentionForm> attention_forms(std::int64_t width);

struct AttentionCase {
  std::int64_t batch, heads, length, width;
  bool causal;
  std::optional<AttentionForm> form = {};

  std::vector<std::int64_t> shape() const { return {batch, heads, length, width}; }
};

/// The tensors of a case. Random values are the same for all variants with tensors of the same shape.
struct AttentionInputs {
  AttentionInputs(const AttentionCase& c, DType dtype, Device device);
  /// Returns q, k and v.
  Tensors parts() const;

  Tensors projections;  ///< q, k and v are slices of these, as in a model: one tensor for self attention, else one for q and one for k, v
  Tensor output_gradient;  ///< of q's shape
  Tensor table;            ///< rotary positions; undefined without them
  AttentionParams params;
  std::int64_t heads, kv_heads;
  /// FLOPs of the two GEMMs of forward: 4 D for each visible pair of query and key in a head. Variants count the visible pairs; other cases
  /// N^2, or half of it if causal, as other benchmarks do.
  double flops = 0;
};

}  // namespace tern::bench
