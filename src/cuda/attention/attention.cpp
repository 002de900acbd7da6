#include "cuda/attention/attention.h"

// Attention on a GPU: the kernels that compute a call. The first row that takes the call serves it, and ops/attention.cpp asks once, for
// the way. A mask is any of causal, prefix, window, key lengths and padding.
//
//   way          kernels          takes                                                     how
//   decode       decode.cu        one query per sequence, any mask and bias; no gradient,   keys split into parts, whose sums are added
//                                 no dropout, not packed; f32, f16, bf16; D up to 256       in order
//   single_tile  single_tile.cu   self attention of at most 64 tokens, as many heads of k   a head per block; products in TF32 or SIMT
//                                 as of q, causal, prefix or padding; f32; D 32 or 64
//   flash        hopper_*.cu      any mask, dropout, packed sequences; f16, bf16; D 40 to   wgmma and TMA, warp-specialised, a
//                                 128; on Hopper; not short heads with dropout              persistent grid
//                hopper_f32.cu    the same in f32, in precision tf32x3 or tf32              the same; an operand is two f16 parts, or one
//                mma_*.cu         any mask, dropout, packed sequences, bias; f16, bf16;     mma.sync and cp.async
//                                 D 8 to 256; from compute capability 8.0 on
//   flash_dense  those of flash   what flash takes only if q, k and v are contiguous        copies them before
//   chunks       none             scores of more than attention_chunk_bytes; no dropout,    other ops, a chunk of queries at a time
//                                 no prefix, not packed
//   composed     none             everything else                                           other ops
//
// ops/composed_attention.cpp has the ways without kernels of their own.
namespace tern::kernels {

namespace {

bool has_flash_attention(const View& q, const View& k, const View& v, const View& y, const Attention& attention) {
  return gpu::has_hopper_attention(q, k, v, y, attention) || gpu::has_mma_attention(q);
}

/// View of a contiguous copy, which memory for it would align; the view itself if it is contiguous.
View copy_of(View x) {
  if (x.is_contiguous()) return x;
  x.data = nullptr;
  x.strides = contiguous_strides(x.shape);
  return x;
}

bool needs_chunks(const View& q, const View& k, const Attention& attention) {
  // Not with dropout, whose random numbers are counted over all probabilities, nor with a prefix, which queries before it see.
  if (attention.query_starts.data || attention.dropout > 0 || attention.mask.prefix.data || q.shape[1] <= 16) return false;
  const std::int64_t scores = q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1];
  return scores * static_cast<std::int64_t>(size_of(q.dtype)) > attention_chunk_bytes;
}

}  // namespace

AttentionWay attention_way(Cuda, const View& q, const View& k, const View& v, const Attention& attention, bool is_recorded) {
  if (may_decode(q, attention, is_recorded) && gpu::has_decode_attention(q, k, v)) return AttentionWay::decode;
  if (q.numel() == 0) return AttentionWay::composed;
  const AttentionMask& mask = attention.mask;
  const bool is_self_attention =
      !attention.query_starts.data && q.shape == k.shape && !attention.bias.data && mask.window == 0 && !mask.key_lengths.data;
  // The single-tile kernels take the maximum before they scale.
  if (is_self_attention && attention.scale > 0 && gpu::has_single_tile_attention(q)) return AttentionWay::single_tile;
  View y = q;  // as the op makes it
  y.data = nullptr;
  y.strides = contiguous_strides(y.shape);
  if (has_flash_attention(q, k, v, y, attention)) return AttentionWay::flash;
  if (has_flash_attention(copy_of(q), copy_of(k), copy_of(v), y, attention)) return AttentionWay::flash_dense;
  if (needs_chunks(q, k, attention)) return AttentionWay::chunks;
  return AttentionWay::composed;
}

// Both families of kernels write the same log_sums.
void FlashAttention::run(Cuda) const {
  const gpu::AttentionCall call{q, k, v, attention, y, log_sums};
  if (gpu::has_hopper_attention(q, k, v, y, attention)) gpu::hopper_attention(call);
  else gpu::mma_attention(call);
}

void FlashAttentionGrad::run(Cuda) const {
  // f32 has no other kernel, even if the matmul precision has changed since the forward pass.
  const bool is_hopper = q.dtype == DType::f32 || gpu::has_hopper_attention(q, k, v, y, attention);
  const gpu::AttentionGradCall call{{q, k, v, attention, y, log_sums}, g, gradients};
  if (is_hopper && gpu::has_hopper_attention_grad(g, gradients)) gpu::hopper_attention_grad(call);
  else gpu::mma_attention_grad(call);
}

}  // namespace tern::kernels
