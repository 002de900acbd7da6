#include "cuda/attention/hopper_f32_attention.h"
#include "cuda/attention/hopper_f32_split.h"
#include "cuda/attention/hopper_forward_launch.cuh"
#include "tensor/context.h"

namespace tern::gpu {

using namespace hopper;

void hopper_f32_attention(const View& q, const View& k, const View& v, const kernels::Attention& attention, const View& y,
                          const View& log_sums) {
  const Args args(q, k, attention);
  const auto with = [&]<int parts>() {
    const View heads[] = {q, k, v};
    const SplitHeads split(heads, parts);
    dispatch(args, [&]<bool general, bool drops>() {
      const auto run = [&]<class C, bool is_general>() {
        launch_forward<float, C, is_general, drops>(args, split[0], split[1], split[2], y, log_sums, {split.maxima(), split.kv_heads()});
      };
      if (args.head_dim <= 64)
        run.template operator()<ForwardConfig<64, 2, drops ? 64 : 128, 2, true, 0, parts>, general>();             // a draw takes registers
      else if (args.head_dim <= 96) run.template operator()<ForwardConfig<96, 2, 64, 2, true, 0, parts>, true>();  // rare: fewer kernels
      else run.template operator()<ForwardConfig<128, 2, 64, 2, true, 0, parts>, general>();
    });
  };
  if (context().matmul_precision == MatmulPrecision::tf32) with.template operator()<1>();
  else with.template operator()<2>();
}

}  // namespace tern::gpu
