#pragma once
#include "ops/attention_mask.h"
#include "ops/kernels/attention_softmax.h"

namespace tern::detail {

/// Mask as the kernels take it, with the tensors that its views point to.
struct KernelMask {
  KernelMask(const AttentionMask& mask, DType scores);
  kernels::AttentionMask view() const;

  Tensor padding, prefix, key_lengths;
  std::int64_t window;
  bool causal;
};

/// Throws Error unless the mask fits scores of that shape (B, ..., T, S), dtype and device.
void check_mask(const char* op, const Shape& scores, DType dtype, Device device, const AttentionMask& mask);

/// attention_softmax of sequences of different lengths: row b has query_lengths[b] queries and key_lengths[b] keys, (B) of i64, which take
/// the place of T and S in the mask.
Tensor attention_softmax(const Tensor& scores, const AttentionMask& mask, const Tensor& query_lengths, const Tensor& key_lengths);

}  // namespace tern::detail
