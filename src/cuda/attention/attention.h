#pragma once
#include "ops/kernels/attention.h"

// Families of attention kernels, for q (B, T, H, D), k, v (B, S, Hkv, D) and y like q on their device. attention.cpp chooses between them.
namespace tern::gpu {

/// Arguments of kernels::FlashAttention, and of its gradient.
struct AttentionCall {
  const View &q, &k, &v;
  const kernels::Attention& attention;
  const View &y, &log_sums;
};
struct AttentionGradCall : AttentionCall {
  const View& g;
  const kernels::AttentionGradients& gradients;
};

/// True if decode_attention takes the views of a call with one query per sequence.
bool has_decode_attention(const View& q, const View& k, const View& v);

/// True if self_attention takes heads like q's.
bool has_single_tile_attention(const View& q);

/// True if Hopper's kernels take a call: on a Hopper GPU, D a multiple of 8 from 40 to 128, addresses and strides in multiples of 16 bytes,
/// a positive scale, no bias; float32 only with matmul precision tf32 or tf32x3.
bool has_hopper_attention(const View& q, const View& k, const View& v, const View& y, const kernels::Attention& attention);
/// True if they take the gradient of a call whose forward pass they take.
bool has_hopper_attention_grad(const View& g, const kernels::AttentionGradients& gradients);

/// In float32 as accurate as strict fp32, or with matmul precision tf32 from operands of 11 bits; deterministic.
void hopper_attention(const AttentionCall& call);
void hopper_attention_grad(const AttentionGradCall& call);

/// True if the mma kernels take a call: f16 or bf16, D a multiple of 8 up to 256.
bool has_mma_attention(const View& q);

/// As kernels::FlashAttention and its gradient. Reads are faster if addresses and strides are multiples of 16 bytes, and writes if they
/// are multiples of 4 bytes.
void mma_attention(const AttentionCall& call);
void mma_attention_grad(const AttentionGradCall& call);

}  // namespace tern::gpu
