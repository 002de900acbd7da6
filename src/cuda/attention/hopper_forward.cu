#include "cuda/attention/hopper_forward.cuh"
#include "tensor/context.h"

namespace tern::gpu {

using namespace hopper;

bool has_hopper_attention(const View& q, const View& k, const View& v, const View& y, const kernels::Attention& attention) {
  const std::int64_t head_dim = q.shape[3];
  const bool has_dtype =
      q.dtype == DType::f32 ? context().matmul_precision != MatmulPrecision::fp32 : q.dtype == DType::bf16 || q.dtype == DType::f16;
  // With dropout, short heads are bound by random numbers, whose latency the many warps of the mma.sync kernel hide better.
  const std::int64_t queries = attention.query_starts.data ? attention.max_queries : q.shape[1];
  if (attention.dropout > 0 && q.dtype != DType::f32 && queries <= 512) return false;
  return has_dtype && head_dim > 32 && head_dim <= max_width && attention.scale > 0 && !attention.bias.data && has_tensor_map(q) &&
         has_tensor_map(k) && has_tensor_map(v) && has_tensor_map(y) &&
         runs_wgmma_kernel(hopper_attention_forward<bf16, ForwardConfig<64, 3, 128, 4>, false, false>, q.stream.device);
}

void hopper_attention(const AttentionCall& call) {
  if (call.q.dtype == DType::f32) return hopper_f32_attention(call);
  const Args args(call.q, call.k, call.attention);
  const View operands[] = {call.q, call.k, call.v};
  dispatch(call.q.dtype, args, [&]<class T, bool general, bool drops>() {
    const auto with = [&]<class C, bool is_general>() { launch_forward<T, C, is_general, drops>(args, operands, call); };
    // With dropout, three consumer warpgroups would not have enough registers.
    if (args.head_dim <= 64) with.template operator()<ForwardConfig<64, drops ? 2 : 3, 128, 4>, general>();
    else if (args.head_dim <= 96) with.template operator()<ForwardConfig<96, 2, 128, 2>, true>();  // rare: fewer kernels
    else with.template operator()<ForwardConfig<128, 2, 128, 2>, general>();
  });
}

}  // namespace tern::gpu
