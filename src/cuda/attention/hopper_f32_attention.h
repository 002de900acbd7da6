#pragma once
#include "ops/kernels/attention.h"

// The part of hopper_attention.h that is float32: in memory for the inputs' parts of f16 beside what the 16-bit kernels take. As exact as
// strict fp32, or in the product mode tf32 with operands of 11 bits; the same bits in every run.
namespace tern::gpu {

void hopper_f32_attention(const View& q, const View& k, const View& v, const kernels::Attention& attention, const View& y,
                          const View& log_sums);

void hopper_f32_attention_grad(const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                               const kernels::Attention& attention, const kernels::AttentionGradients& gradients);

}  // namespace tern::gpu
