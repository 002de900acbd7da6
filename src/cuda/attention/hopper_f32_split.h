#pragma once
#include <array>
#include <optional>
#include <span>

#include "cuda/attention/hopper_f32.cuh"
#include "cuda/runtime/allocator.h"
#include "tensor/view.h"

namespace tern::gpu::hopper {

/// float32 heads, (B, T, H, D) each, as scaled parts of f16: Note [Two parts] in hopper_f32.cuh. Lives for the duration of a call.
class SplitHeads {
 public:
  /// Splits q, k, v, or those and dy, in this order; k and v have kv_heads heads, the others a multiple. D <= 128.
  SplitHeads(std::span<const View> heads, int parts);

  /// (B parts, T, H, D) of f16, contiguous.
  const std::array<View, 4>& views() const { return views_; }
  Maxima maxima() const { return {maxima_.as<const float>(), kv_heads_}; }

 private:
  int kv_heads_;  ///< counted over all batch rows
  Workspace maxima_;
  std::array<std::optional<Workspace>, 4> data_;
  std::array<View, 4> views_;
};

}  // namespace tern::gpu::hopper
