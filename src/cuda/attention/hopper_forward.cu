#include "cuda/attention/hopper_attention.h"
#include "cuda/attention/hopper_f32_attention.h"
#include "cuda/attention/hopper_forward.cuh"
#include "cuda/attention/hopper_forward_launch.cuh"
#include "tensor/context.h"

namespace tern::gpu {

using namespace hopper;

bool has_hopper_attention(const View& q, const View& k, const View& v, const View& y, const kernels::Attention& attention) {
  const std::int64_t head_dim = q.shape[3];
  const bool has_dtype =
      q.dtype == DType::f32 ? context().matmul_precision != MatmulPrecision::fp32 : q.dtype == DType::bf16 || q.dtype == DType::f16;
  // Draws are what a short head with dropout takes its time for, and the many warps of mma.sync hide them better: a training step of GPT-2
  // small with 50,304 words on an H200 takes 5.45 ms beside 5.53 at 4 x 512 tokens, 5.18 beside 5.27 at 8 x 256 (bench/ops.md).
  const std::int64_t queries = attention.query_starts.data ? attention.max_queries : q.shape[1];
  if (attention.dropout > 0 && q.dtype != DType::f32 && queries <= 512) return false;
  return has_dtype && head_dim > 32 && head_dim <= max_width && attention.scale > 0 && !attention.bias.data && has_tensor_map(q) &&
         has_tensor_map(k) && has_tensor_map(v) && has_tensor_map(y) &&
         runs_wgmma_kernel(hopper_attention_forward<bf16, ForwardConfig<64, 3, 128, 4>, false, false>, q.stream.device);
}

void hopper_attention(const View& q, const View& k, const View& v, const kernels::Attention& attention, const View& y,
                      const View& log_sums) {
  if (q.dtype == DType::f32) return hopper_f32_attention(q, k, v, attention, y, log_sums);
  const Args args(q, k, attention);
  dispatch(q.dtype, args, [&]<class T, bool general, bool drops>() {
    using Narrow = ForwardConfig<64, drops ? 2 : 3, 128, 4>;  // a draw takes more registers than three groups leave each other
    if (args.head_dim <= 64) launch_forward<T, Narrow, general, drops>(args, q, k, v, y, log_sums);
    else if (args.head_dim <= 96)
      launch_forward<T, ForwardConfig<96, 2, 128, 2>, true, drops>(args, q, k, v, y, log_sums);  // rare: fewer kernels
    else launch_forward<T, ForwardConfig<128, 2, 128, 2>, general, drops>(args, q, k, v, y, log_sums);
  });
}

}  // namespace tern::gpu
