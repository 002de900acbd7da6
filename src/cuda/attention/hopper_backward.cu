#include "cuda/attention/hopper_attention.h"
#include "cuda/attention/hopper_backward_launch.cuh"
#include "cuda/attention/hopper_f32_attention.h"

namespace tern::gpu {

using namespace hopper;

bool has_hopper_attention_grad(const View& g, const kernels::AttentionGradients& gradients) {
  return has_tensor_map(g) && has_tensor_map(gradients.q) && has_tensor_map(gradients.k) && has_tensor_map(gradients.v) &&
         !gradients.bias.data;
}

void hopper_attention_grad(const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                           const kernels::Attention& attention, const kernels::AttentionGradients& gradients) {
  if (q.dtype == DType::f32) return hopper_f32_attention_grad(q, k, v, y, log_sums, g, attention, gradients);
  const Args args(q, k, attention);
  dispatch(q.dtype, args, [&]<class T, bool general, bool drops>() {
    const auto with = [&]<class C, bool is_general>() {
      launch_backward<T, C, is_general, drops>(args, q, k, v, y, log_sums, g, gradients);
    };
    if (args.head_dim <= 64) with.template operator()<BackwardConfig<64, 4, true, 200, 40>, general>();
    else if (args.head_dim <= 96) with.template operator()<BackwardConfig<96, 3, false, 200, 40>, true>();  // rare: fewer kernels
    else with.template operator()<BackwardConfig<128, 3, false, 208, 32>, general>();
  });
}

}  // namespace tern::gpu
