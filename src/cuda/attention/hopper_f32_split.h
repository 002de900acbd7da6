#pragma once
#include <array>
#include <optional>
#include <span>

#include "cuda/runtime/allocator.h"
#include "tensor/view.h"

namespace tern::gpu::hopper {

/// Heads of float32, (B, T, H, D) each, in parts of f16, scaled: Note [Two parts] in hopper_f32.cuh. For the duration of a call.
class SplitHeads {
 public:
  /// Of q, k, v, or of those and dy, in this order; k and v have kv_heads heads, the others a multiple. D <= 128.
  SplitHeads(std::span<const View> heads, int parts);

  /// (B parts, T, H, D) of f16, contiguous.
  const View& operator[](int tensor) const { return views_[static_cast<std::size_t>(tensor)]; }
  /// (values, B kv_heads): see Maxima.
  const float* maxima() const { return maxima_.as<const float>(); }
  int kv_heads() const { return kv_heads_; }  ///< of all batch rows

 private:
  int kv_heads_;
  Workspace maxima_;
  std::array<std::optional<Workspace>, 4> data_;
  std::array<View, 4> views_;
};

}  // namespace tern::gpu::hopper
