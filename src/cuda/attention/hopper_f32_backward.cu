#include "cuda/attention/hopper_f32_backward.cuh"
#include "cuda/attention/hopper_f32_split.h"
#include "tensor/context.h"

namespace tern::gpu {

using namespace hopper;

void hopper_f32_attention_grad(const AttentionGradCall& call) {
  const Args args(call.q, call.k, call.attention);
  const auto with = [&]<int parts>() {
    const View heads[] = {call.q, call.k, call.v, call.g};
    const SplitHeads split(heads, parts);
    dispatch(args, [&]<bool general, bool drops>() {
      const auto run = [&]<class C>() {
        launch_backward<float, C>(hopper_f32_attention_backward<C, general, drops>, args, split.views(), call, split.maxima());
      };
      if (args.head_dim <= 64) run.template operator()<F32BackwardConfig<64, 3, 2, 2, parts>>();
      else run.template operator()<F32BackwardConfig<128, 2, 1, 1, parts>>();
    });
  };
  if (context().matmul_precision == MatmulPrecision::tf32) with.template operator()<1>();
  else with.template operator()<2>();
}

}  // namespace tern::gpu
