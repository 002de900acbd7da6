#include "cuda/attention/hopper_backward.cuh"

namespace tern::gpu {

using namespace hopper;

bool has_hopper_attention_grad(const View& g, const kernels::AttentionGradients& gradients) {
  return has_tensor_map(g) && has_tensor_map(gradients.q) && has_tensor_map(gradients.k) && has_tensor_map(gradients.v) &&
         !gradients.bias.data;
}

void hopper_attention_grad(const AttentionGradCall& call) {
  if (call.q.dtype == DType::f32) return hopper_f32_attention_grad(call);
  const Args args(call.q, call.k, call.attention);
  const View operands[] = {call.q, call.k, call.v, call.g};
  dispatch(call.q.dtype, args, [&]<class T, bool general, bool drops>() {
    const auto with = [&]<class C, bool is_general>() {
      launch_backward<T, C>(hopper_attention_backward<T, C, is_general, drops>, args, operands, call);
    };
    if (args.head_dim <= 64) with.template operator()<BackwardConfig<64, 4, true, 200, 40>, general>();
    else if (args.head_dim <= 96) with.template operator()<BackwardConfig<96, 3, false, 200, 40>, true>();  // rare: fewer kernels
    else with.template operator()<BackwardConfig<128, 3, false, 208, 32>, general>();
  });
}

}  // namespace tern::gpu
