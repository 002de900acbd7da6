#pragma once
#include "cuda/attention/hopper_forward.cuh"
#include "cuda/attention/hopper_launch.cuh"

namespace tern::gpu::hopper {

template <class T, class C, bool general, bool drops>
void launch_forward(Args args, const View& q, const View& k, const View& v, const View& y, const View& log_sums,
                    const Maxima& maxima = {}) {
  const int tiles = (args.queries + C::rows - 1) / C::rows;
  const std::int64_t items = std::int64_t(tiles) * args.all_heads();
  if (items > 0x7fffffff) fail("attention", "expected at most 2^31 - 1 tiles of queries");
  args.heads_at_once = heads_in_l2(std::int64_t(args.keys) * args.head_dim * 4 * C::parts / args.group(), args, q.stream);
  const ForwardParams params{map_of(q, 64),
                             map_of(k, C::keys),
                             map_of(v, C::keys),
                             args,
                             Heads(y),
                             log_sums.as<float>(),
                             WorkQueue{completion_counters(q.stream, 1), static_cast<int>(items)},
                             tiles,
                             maxima};
  launch(hopper_attention_forward<T, C, general, drops>, blocks_of(items, q.stream), C::threads, C::shared_bytes, q.stream, params);
}

}  // namespace tern::gpu::hopper
