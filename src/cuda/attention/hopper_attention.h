#pragma once
#include "ops/kernels/attention.h"

// Flash attention by the kernels that Hopper's wgmma and TMA make fast: of 16-bit elements, and of float32 where the product mode lets
// tensor cores multiply it.
namespace tern::gpu {

/// Whether there is a hopper_attention for q (B, T, H, D), k, v (B, S, Hkv, D), y like q: on a Hopper GPU, D a multiple of 8 from 40 to
/// 128, addresses and strides in multiples of 16 bytes, a positive scale, no bias; float32 in the product modes tf32 and tf32x3 alone.
bool has_hopper_attention(const View& q, const View& k, const View& v, const View& y, const kernels::Attention& attention);

/// As kernels::flash_attention.
void hopper_attention(const View& q, const View& k, const View& v, const kernels::Attention& attention, const View& y,
                      const View& log_sums);

/// Whether there is a hopper_attention_grad where there is a hopper_attention, for g and the gradients.
bool has_hopper_attention_grad(const View& g, const kernels::AttentionGradients& gradients);

/// As kernels::flash_attention_grad.
void hopper_attention_grad(const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                           const kernels::Attention& attention, const kernels::AttentionGradients& gradients);

}  // namespace tern::gpu
