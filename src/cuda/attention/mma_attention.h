#pragma once
#include "ops/kernels/attention.h"

// Flash attention of 16-bit elements by mma.sync and cp.async, which every GPU from compute capability 8.0 on has.
namespace tern::gpu {

/// Whether there is a mma_attention for q (B, T, H, D), k, v (B, S, Hkv, D) on their device: f16 or bf16, D a multiple of 8 up to 256.
bool has_mma_attention(const View& q, const View& k, const View& v, const kernels::Attention& attention);

/// As kernels::flash_attention. Addresses and strides in multiples of 16 bytes are read faster, and those of 4 bytes written faster.
void mma_attention(const View& q, const View& k, const View& v, const kernels::Attention& attention, const View& y, const View& log_sums);

/// As kernels::flash_attention_grad.
void mma_attention_grad(const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                        const kernels::Attention& attention, const kernels::AttentionGradients& gradients);

}  // namespace tern::gpu
