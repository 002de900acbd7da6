#pragma once
#include "ops/kernels/softmax.h"
#include "tensor/random.h"

namespace tern::kernels {

struct Attention {
  SoftmaxMask mask;    ///< of scores (B, H, T, T)
  double scale = 1;    ///< of the scores
  double dropout = 0;  ///< of the probabilities
  PhiloxState draws;   ///< element i of the probabilities (B, H, T, T) takes draw i, as in dropout
};

/// Whether the device has self_attention for heads of so many tokens and elements.
inline bool has_self_attention(Cpu, DType, std::int64_t, std::int64_t) { return false; }
bool has_self_attention(Cuda, DType dtype, std::int64_t length, std::int64_t head_dim);

/// y (B, T, H, D) = dropout(softmax(scale q k^T + mask)) v for qkv (B, T, 3, H, D); contiguous, one dtype, computed in float32.
inline void self_attention(Cpu, const View&, const Attention&, const View&) {}
void self_attention(Cuda, const View& qkv, const Attention& attention, const View& y);

/// dqkv from g, the gradient of y. What forward had is computed again, from the same draws.
inline void self_attention_grad(Cpu, const View&, const View&, const Attention&, const View&) {}
void self_attention_grad(Cuda, const View& qkv, const View& g, const Attention& attention, const View& dqkv);

}  // namespace tern::kernels
