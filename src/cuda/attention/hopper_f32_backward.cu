#include "cuda/attention/hopper_backward_launch.cuh"
#include "cuda/attention/hopper_f32_attention.h"
#include "cuda/attention/hopper_f32_backward.cuh"
#include "cuda/attention/hopper_f32_split.h"
#include "tensor/context.h"

namespace tern::gpu {

using namespace hopper;

void hopper_f32_attention_grad(const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                               const kernels::Attention& attention, const kernels::AttentionGradients& gradients) {
  const Args args(q, k, attention);
  const auto with = [&]<int parts>() {
    const View heads[] = {q, k, v, g};
    const SplitHeads split(heads, parts);
    dispatch(args, [&]<bool general, bool drops>() {
      const auto run = [&]<class C>() {
        launch_backward_kernel<float, C>(hopper_f32_attention_backward<C, general, drops>, args, split[0], split[1], split[2], split[3], y,
                                         log_sums, g, gradients, {split.maxima(), split.kv_heads()});
      };
      if (args.head_dim <= 64) run.template operator()<F32BackwardConfig<64, 3, 2, 2, parts>>();
      else run.template operator()<F32BackwardConfig<128, 2, 1, 1, parts>>();
    });
  };
  if (context().matmul_precision == MatmulPrecision::tf32) with.template operator()<1>();
  else with.template operator()<2>();
}

}  // namespace tern::gpu
