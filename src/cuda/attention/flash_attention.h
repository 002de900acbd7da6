#pragma once
#include "ops/kernels/attention.h"

// Flash attention as its two families of kernels have it, for q (B, T, H, D), k, v (B, S, Hkv, D) and y like q on their device.
//
//   hopper_*   made fast by Hopper's wgmma and TMA: 16-bit elements, and float32 where the product mode lets tensor cores multiply it
//   mma_*      of 16-bit elements, by mma.sync and cp.async, which every GPU from compute capability 8.0 on has
//
// hopper_forward.cu and hopper_backward.cu choose between them.
namespace tern::gpu {

/// The arguments of kernels::flash_attention, and of its gradient.
struct AttentionCall {
  const View &q, &k, &v;
  const kernels::Attention& attention;
  const View &y, &log_sums;
};
struct AttentionGradCall : AttentionCall {
  const View& g;
  const kernels::AttentionGradients& gradients;
};

/// Whether Hopper's kernels take a call: on a Hopper GPU, D a multiple of 8 from 40 to 128, addresses and strides in multiples of 16 bytes,
/// a positive scale, no bias; float32 in the product modes tf32 and tf32x3 alone.
bool has_hopper_attention(const View& q, const View& k, const View& v, const View& y, const kernels::Attention& attention);

/// Those of float32, in memory for the inputs' parts of f16 beside what the 16-bit kernels take. As exact as strict fp32, or in the product
/// mode tf32 with operands of 11 bits; the same bits in every run.
void hopper_f32_attention(const AttentionCall& call);
void hopper_f32_attention_grad(const AttentionGradCall& call);

/// Whether the others take a call: f16 or bf16, D a multiple of 8 up to 256.
bool has_mma_attention(const View& q, const View& k, const View& v, const kernels::Attention& attention);

/// As kernels::flash_attention and its gradient. Addresses and strides in multiples of 16 bytes are read faster, and those of 4 bytes
/// written faster.
void mma_attention(const View& q, const View& k, const View& v, const kernels::Attention& attention, const View& y, const View& log_sums);
void mma_attention_grad(const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                        const kernels::Attention& attention, const kernels::AttentionGradients& gradients);

}  // namespace tern::gpu
