#pragma once
#include "ops/kernels/attention_softmax.h"
#include "tensor/random.h"

namespace tern::kernels {

struct Attention {
  SoftmaxMask mask;    ///< of scores (B, H, T, T)
  double scale = 1;    ///< of the scores
  double dropout = 0;  ///< of the probabilities
  PhiloxState draws;   ///< element i of the probabilities (B, H, T, T) takes draw i, as in dropout
};

// CUDA alone has these: they are called through on_cuda, and asked for through cuda_has.

/// Whether there is a self_attention for heads of so many tokens and elements.
bool has_self_attention(Cuda, DType dtype, std::int64_t length, std::int64_t head_dim);

/// y (B, T, H, D) = dropout(softmax(scale q k^T + mask)) v for qkv (B, T, 3, H, D); contiguous, float32.
void self_attention(Cuda, const View& qkv, const Attention& attention, const View& y);

/// dqkv from g, the gradient of y. The probabilities are computed again, from the same draws as forward's.
void self_attention_grad(Cuda, const View& qkv, const View& g, const Attention& attention, const View& dqkv);

/// Whether there is a flash_attention for heads of so many elements, of any length.
bool has_flash_attention(Cuda, Device device, DType dtype, std::int64_t head_dim);

/// As self_attention, in tiles, with products of the dtype and sums in float32, in memory that grows with T alone. log_sums (B, H, T), f32,
/// gets the logarithms to base 2 of the sums of each query's exponentials; infinity for a query that sees no key.
void flash_attention(Cuda, const View& qkv, const Attention& attention, const View& y, const View& log_sums);

/// dqkv from g, the gradient of y; with y and log_sums as forward has left them. The same bits in every run.
void flash_attention_grad(Cuda, const View& qkv, const View& y, const View& log_sums, const View& g, const Attention& attention,
                          const View& dqkv);

}  // namespace tern::kernels
