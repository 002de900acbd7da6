#pragma once
#include "ops/attention_softmax.h"
#include "ops/kernels/attention_softmax.h"

namespace tern::detail {

/// A mask as the kernels take it, and the tensors that it points to.
struct KernelMask {
  KernelMask(const SoftmaxMask& mask, DType scores);
  kernels::SoftmaxMask view() const;

  Tensor padding, prefix;
  bool causal;
};

/// Throws Error unless the mask fits scores of that shape (B, ..., T, S), dtype and device.
void check_mask(const char* op, const Shape& scores, DType dtype, Device device, const SoftmaxMask& mask);

}  // namespace tern::detail
