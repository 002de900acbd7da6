#include "cuda/attention/hopper_f32_split.h"
#include "cuda/attention/hopper_forward.cuh"
#include "tensor/context.h"

namespace tern::gpu {

using namespace hopper;

void hopper_f32_attention(const AttentionCall& call) {
  const Args args(call.q, call.k, call.attention);
  const auto with = [&]<int parts>() {
    const View heads[] = {call.q, call.k, call.v};
    const SplitHeads split(heads, parts);
    dispatch(args, [&]<bool general, bool drops>() {
      const auto run = [&]<class C, bool is_general>() {
        launch_forward<float, C, is_general, drops>(args, split.views(), call, split.maxima());
      };
      if (args.head_dim <= 64)
        run.template operator()<ForwardConfig<64, 2, drops ? 64 : 128, 2, 0, parts>, general>();             // a draw takes registers
      else if (args.head_dim <= 96) run.template operator()<ForwardConfig<96, 2, 64, 2, 0, parts>, true>();  // rare: fewer kernels
      else run.template operator()<ForwardConfig<128, 2, 64, 2, 0, parts>, general>();
    });
  };
  if (context().matmul_precision == MatmulPrecision::tf32) with.template operator()<1>();
  else with.template operator()<2>();
}

}  // namespace tern::gpu
