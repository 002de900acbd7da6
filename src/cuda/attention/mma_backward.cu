#include "cuda/attention/mma_attention.h"
#include "cuda/attention/mma_backward.cuh"
#include "cuda/attention/mma_launch.cuh"
#include "cuda/runtime/allocator.h"
#include "tensor/ceil_div.h"

namespace tern::gpu {

using namespace ampere;

namespace {

struct Call {
  const View &q, &k, &v, &y, &log_sums, &g;
  const kernels::Attention& attention;
  const kernels::AttentionGradients& gradients;
};

template <class T, class C, Flavour flavour>
void launch_backward(const Call& call, const Args& args) {
  const Stream stream = call.q.stream;
  const std::int64_t heads = args.all_heads(), kv_heads = std::int64_t(args.sequences) * args.kv_heads;
  const std::int64_t tiles = ceil_div(args.queries, C::queries), blocks = ceil_div(args.keys, C::keys);
  const auto bytes_if = [](bool is_needed, std::int64_t count) { return is_needed ? static_cast<std::size_t>(count) * 4 : 0; };
  const bool is_alone = C::has_whole_head || (tiles <= 1 && blocks <= 1 && args.group() == 1);
  const kernels::AttentionGradients& to = call.gradients;
  const bool needs_delta = !is_alone || to.bias.data;
  const std::int64_t all_tiles = blocks > 1 ? args.all_tile_places(C::queries) : 0;
  const Workspace delta(bytes_if(needs_delta, call.log_sums.numel()), stream);
  const Workspace semaphores(bytes_if(blocks > 1, all_tiles), stream);
  const Workspace sums(bytes_if(blocks > 1, all_tiles * C::queries * C::width), stream);
  const bool is_aligned = ampere::rows_are_aligned({&call.q, &call.k, &call.v, &call.y, &call.g}, 16);
  if (needs_delta && args.queries > 0) {
    const int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ceil_div(args.head_dim, 8))));
    launch(mma_attention_delta<T>, blocks_for(std::max(heads * args.queries * lanes, all_tiles)), block_size, 0, stream, Heads(call.y),
           Heads(call.g), Heads(to.q), delta.as<float>(), semaphores.as<int>(), all_tiles, lanes, is_aligned, args);
  }
  const BackwardInputs inputs{args,
                              Heads(call.q),
                              Heads(call.k),
                              Heads(call.v),
                              Heads(call.y),
                              Heads(call.g),
                              Bias(call.attention.bias),
                              call.log_sums.as<const float>(),
                              delta.as<const float>(),
                              is_aligned};
  const BackwardParams params{inputs,
                              Heads(to.q),
                              Heads(to.k),
                              Heads(to.v),
                              sums.as<float>(),
                              semaphores.as<int>(),
                              args.tile_places(C::queries),
                              is_alone,
                              ampere::rows_are_aligned({&to.q, &to.k, &to.v}, 4)};
  launch(mma_attention_backward<T, C, flavour>, blocks_for(std::max<std::int64_t>(blocks, 1) * kv_heads, 1), C::threads,
         C::bytes(tiles * args.group() > 1 ? 2 : 1), stream, params);
  if (to.bias.data) sum_bias_gradient(inputs, to.bias);
}

}  // namespace

void mma_attention_grad(const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                        const kernels::Attention& attention, const kernels::AttentionGradients& gradients) {
  if (q.shape[0] == 0 || q.shape[2] == 0) return;
  const Args args(q, k, attention);
  if (args.sequences == 0) return;
  const Call call{q, k, v, y, log_sums, g, attention, gradients};
  const auto with = [&]<class C, bool is_rare>() {
    dispatch<is_rare>(q.dtype, args, attention, [&]<class T, Flavour flavour>() { launch_backward<T, C, flavour>(call, args); });
  };
  using Wide = BackwardConfig<64, 8, 1, 128, 32, 128, 1>;
  if (args.head_dim <= 32 && args.queries <= 64 && args.keys <= 64 && args.group() == 1) {
    with.template operator()<BackwardConfig<32, 4, 1, 64, 16, 0, 4>, false>();
  } else if (attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, q.stream.device) >= Wide::bytes(2)) {
    if (args.head_dim <= 32) with.template operator()<BackwardConfig<32, 8, 1, 128, 32, 128, 1>, false>();
    else if (args.head_dim <= 64) with.template operator()<Wide, false>();
    else if (args.head_dim <= 96) with.template operator()<BackwardConfig<96, 8, 1, 64, 32, 128, 1>, true>();
    else if (args.head_dim <= 128) with.template operator()<BackwardConfig<128, 8, 1, 64, 32, 128, 1>, false>();
    else with.template operator()<BackwardConfig<256, 4, 2, 32, 16, 128, 1>, true>();
  } else {
    using Small64 = BackwardConfig<64, 8, 1, 64, 32, 128, 1>;
    using Small128 = BackwardConfig<128, 4, 1, 32, 32, 128, 1>;
    using Small256 = BackwardConfig<256, 2, 2, 16, 16, 128, 1>;
    constexpr int room = 99 << 10;  // of compute capabilities 8.6 and 8.9
    static_assert(Small64::bytes(2) <= room && Small128::bytes(2) <= room && Small256::bytes(2) <= room);
    if (args.head_dim <= 64) with.template operator()<Small64, true>();
    else if (args.head_dim <= 128) with.template operator()<Small128, true>();
    else with.template operator()<Small256, true>();
  }
}

}  // namespace tern::gpu
