#include "cuda/attention/hopper_attention.h"
#include "ops/kernels/attention.h"

// Which kernels serve attention on a GPU.
namespace tern::kernels {

bool has_flash_attention(Cuda, const View& q, const View& k, const View& v, const View& y, const Attention& attention) {
  return gpu::has_hopper_attention(q, k, v, y, attention);
}

void flash_attention(Cuda, const View& q, const View& k, const View& v, const Attention& attention, const View& y, const View& log_sums) {
  gpu::hopper_attention(q, k, v, attention, y, log_sums);
}

void flash_attention_grad(Cuda, const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                          const Attention& attention, const AttentionGradients& gradients) {
  gpu::hopper_attention_grad(q, k, v, y, log_sums, g, attention, gradients);
}

}  // namespace tern::kernels
