#pragma once
#include "cuda/device/math.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/runtime/dispatch.h"
#include "ops/kernels/attention.h"

namespace tern::gpu {

/// Arguments of attention kernels: sizes, mask and dropout. Scores are taken to base 2, for which the GPU has an instruction:
/// e^x = 2^(x log2(e)).
struct AttentionArgs {
  int length, batch, heads, head_dim;
  float scale, scale_log2;  ///< of the scores; scale_log2 = scale log2(e)
  const float* padding;
  const std::int64_t* prefix;
  bool causal, aligned;  ///< aligned: all inputs begin at a multiple of 16 bytes
  DropoutMask dropout;
  float inverse_keep;  ///< 1 / (1 - p)

  AttentionArgs(const View& qkv, const kernels::Attention& attention)
      : length(static_cast<int>(qkv.shape[1])),
        batch(static_cast<int>(qkv.shape[0])),
        heads(static_cast<int>(qkv.shape[3])),
        head_dim(static_cast<int>(qkv.shape[4])),
        scale(static_cast<float>(attention.scale)),
        scale_log2(scale * log2_e),
        padding(attention.mask.padding.as<const float>()),
        prefix(attention.mask.prefix.as<const std::int64_t>()),
        causal(attention.mask.causal),
        aligned(is_aligned(qkv.data, 16)),
        dropout(attention.dropout, attention.draws),
        inverse_keep(static_cast<float>(1 / (1 - attention.dropout))) {}

  __device__ int batch_heads() const { return batch * heads; }
  __device__ std::int64_t row_size() const { return std::int64_t(heads) * head_dim; }  ///< elements of a token's queries, or keys
  /// Keys at the begin of a sequence that all of its queries see.
  __device__ int prefix_len(int sequence) const {
    return prefix ? static_cast<int>(min(max(prefix[sequence], std::int64_t(0)), std::int64_t(length))) : 0;
  }
};

}  // namespace tern::gpu
