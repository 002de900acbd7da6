#include "cuda/attention/mma_attention.h"
#include "cuda/attention/mma_forward.cuh"
#include "cuda/attention/mma_launch.cuh"
#include "tensor/ceil_div.h"

namespace tern::gpu {

using namespace ampere;

namespace {

template <class T, class C, Flavour flavour>
void launch_forward(const ForwardParams& params, Stream stream) {
  const Args& args = params.args;
  static_assert(C::bytes(2) <= 99 << 10, "compute capabilities 8.6 and 8.9 have no more shared memory");
  const std::int64_t row_blocks = ceil_div(args.queries, C::rows);
  launch(mma_attention_forward<T, C, flavour>, blocks_for(row_blocks * args.all_heads(), 1), C::threads,
         C::bytes(args.keys > C::keys ? 2 : 1), stream, params);
}

/// Blocks of 128 queries from which on a warp takes 32 rows: it then loads keys half as often, but there must be enough blocks to keep the
/// device busy. Fitted on one H200, about three for each of its 132 multiprocessors. Of the rows of bench/ops.md, "Attention on one H200",
/// (4, 12, 1024, 64) has 384 and stays below, (1, 16, 4096, 64) has 512. Other devices take the same number.
constexpr std::int64_t wide_warp_blocks = 400;

}  // namespace

bool has_mma_attention(const View& q, const View&, const View&, const kernels::Attention&) {
  const std::int64_t head_dim = q.shape[3];
  return (q.dtype == DType::f16 || q.dtype == DType::bf16) && head_dim > 0 && head_dim <= 256 && head_dim % 8 == 0 &&
         attribute(cudaDevAttrComputeCapabilityMajor, q.stream.device) >= 8;
}

void mma_attention(const View& q, const View& k, const View& v, const kernels::Attention& attention, const View& y, const View& log_sums) {
  if (log_sums.numel() == 0) return;
  const Args args(q, k, attention);
  const ForwardParams params{args,
                             Heads(q),
                             Heads(k),
                             Heads(v),
                             Heads(y),
                             Bias(attention.bias),
                             log_sums.as<float>(),
                             args.padding || attention.bias.data || args.scale <= 0,
                             ampere::rows_are_aligned({&q, &k, &v}, 16),
                             ampere::rows_are_aligned({&y}, 4)};
  const bool has_wide_warps = ceil_div(args.queries, 128) * std::int64_t(args.all_heads()) >= wide_warp_blocks;
  const auto with = [&]<class C, bool is_rare>() {
    dispatch<is_rare>(q.dtype, args, attention, [&]<class T, Flavour flavour>() { launch_forward<T, C, flavour>(params, q.stream); });
  };
  if (args.head_dim <= 32) {
    if (args.queries <= 48) with.template operator()<ForwardConfig<32, 3, 16, 48, 1>, false>();
    else if (has_wide_warps) with.template operator()<ForwardConfig<32, 4, 32, 64, 2>, false>();
    else with.template operator()<ForwardConfig<32, 4, 16, 64, 1>, false>();
  } else if (args.head_dim <= 64) {
    if (has_wide_warps) with.template operator()<ForwardConfig<64, 4, 32, 64, 2>, false>();
    else with.template operator()<ForwardConfig<64, 4, 16, 64, 1>, false>();
  } else if (args.head_dim <= 96) {
    with.template operator()<ForwardConfig<96, 4, 16, 64, 1>, true>();
  } else if (args.head_dim <= 128) {
    with.template operator()<ForwardConfig<128, 4, 16, 64, 1>, false>();
  } else {
    with.template operator()<ForwardConfig<256, 4, 16, 32, 2>, true>();
  }
}

}  // namespace tern::gpu
