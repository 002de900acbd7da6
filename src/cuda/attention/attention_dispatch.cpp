#include "cuda/attention/hopper_attention.h"
#include "cuda/attention/mma_attention.h"

// Dispatch of flash attention: the Hopper kernels where they take the call, else those of mma.sync. Both write the same log_sums.
namespace tern::kernels {

bool has_flash_attention(Cuda, const View& q, const View& k, const View& v, const View& y, const Attention& attention) {
  return gpu::has_hopper_attention(q, k, v, y, attention) || gpu::has_mma_attention(q, k, v, attention);
}

void flash_attention(Cuda, const View& q, const View& k, const View& v, const Attention& attention, const View& y, const View& log_sums) {
  if (gpu::has_hopper_attention(q, k, v, y, attention)) gpu::hopper_attention(q, k, v, attention, y, log_sums);
  else gpu::mma_attention(q, k, v, attention, y, log_sums);
}

void flash_attention_grad(Cuda, const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                          const Attention& attention, const AttentionGradients& gradients) {
  // f32 has no other kernel, even if the precision of matrix products has changed since the forward pass.
  const bool is_hopper = q.dtype == DType::f32 || gpu::has_hopper_attention(q, k, v, y, attention);
  if (is_hopper && gpu::has_hopper_attention_grad(g, gradients)) gpu::hopper_attention_grad(q, k, v, y, log_sums, g, attention, gradients);
  else gpu::mma_attention_grad(q, k, v, y, log_sums, g, attention, gradients);
}

}  // namespace tern::kernels
