#pragma once
#include <string>
#include <vector>

#include "nn/layers.h"

namespace tern::nn {

/// Options of add_low_rank.
struct LowRankOptions {
  std::int64_t rank = 8;  ///< R, the rank of an adapter's matrix
  double alpha = 16;      ///< numerator of the adapters' scale, alpha / R
  /// Linear layers whose path contains one of these get an adapter, such as "qkv" or "ff."; by default all of the blocks, not the head.
  std::vector<std::string> layers = {"blocks."};
};

/// LoRA (Hu et al., 2021): freezes all parameters of a module, and adds a trained adapter of rank R to its Linear layers, whose result
/// becomes x W^T + b + alpha / R (x A^T) B^T. A (R, in) is uniform in +-1 / sqrt(in), B (out, R) starts as zeros: at first the module
/// computes what it did. Both have the weight's dtype and device, and the names `lora_a` and `lora_b` beside `weight`; layers with one
/// weight share them. Add adapters before an optimizer or flatten_parameters sees the module, so that frozen weights take no memory for
/// gradients; to adapt a quantized model, quantize it after the training. Throws Error for a rank below 1, an alpha that is not finite, if
/// no layer is chosen, and for a layer that is quantized, has an adapter, or shares its weight with a module without one; the module is
/// then unchanged.
void add_low_rank(Module& module, const LowRankOptions& options = {});

/// Adds each adapter to its weight, W + alpha / R B A, and removes it; all parameters stay frozen. Copies that share the parameters keep
/// their adapters, which are zero from then on. Throws Error for a quantized layer with an adapter.
void merge_low_rank(Module& module);

}  // namespace tern::nn
