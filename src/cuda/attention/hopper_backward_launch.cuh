#pragma once
#include "cuda/attention/hopper_backward.cuh"
#include "cuda/attention/hopper_launch.cuh"
#include "cuda/runtime/allocator.h"

namespace tern::gpu::hopper {

/// The kernel, whose operands are q, k, v and dy, after the one that computes its rows from y and g.
template <class T, class C>
void launch_backward_kernel(void (*kernel)(BackwardParams), Args args, const View& q, const View& k, const View& v, const View& dy,
                            const View& y, const View& log_sums, const View& g, const kernels::AttentionGradients& gradients,
                            const Maxima& maxima = {}) {
  const int tiles = (args.queries + C::queries - 1) / C::queries, blocks = (args.keys + C::keys - 1) / C::keys;
  const std::int64_t longest = std::int64_t(tiles) * args.all_heads(), all_tiles = args.all_tile_places(C::queries),
                     items = std::int64_t(blocks) * args.sequences * args.kv_heads;
  if (items > 0x7fffffff || longest > 0x7fffffff) fail("attention", "expected at most 2^31 - 1 tiles");
  const std::int64_t sum_bytes = std::int64_t(C::pieces) * C::queries * block_columns * 4;
  const Workspace rows(static_cast<std::size_t>(all_tiles * C::row_values * 4), q.stream);
  const Workspace semaphores(static_cast<std::size_t>(all_tiles * 4), q.stream);
  const Workspace sums(static_cast<std::size_t>(blocks > 1 ? all_tiles * sum_bytes : 0), q.stream);
  const int lanes = (args.head_dim <= 64 ? 64 : 128) / vec16_width<T>;
  launch(hopper_attention_rows<T>, blocks_for(longest * C::queries * lanes), block_size, 0, q.stream, Heads(y), Heads(g),
         Heads(gradients.q), log_sums.as<const float>(), rows.as<float>(), semaphores.as<int>(), tiles, args.tile_places(C::queries), lanes,
         args);
  args.heads_at_once = args.sequences * args.kv_heads;
  const BackwardParams params{map_of(q, C::queries),
                              map_of(k, C::keys),
                              map_of(v, C::keys),
                              map_of(dy, C::queries),
                              args,
                              Heads(gradients.q),
                              Heads(gradients.k),
                              Heads(gradients.v),
                              rows.as<const float>(),
                              sums.as<float4>(),
                              semaphores.as<int>(),
                              WorkQueue{completion_counters(q.stream, 1), static_cast<int>(items)},
                              args.tile_places(C::queries),
                              blocks,
                              maxima};
  launch(kernel, blocks_of(items, q.stream), C::threads, C::shared_bytes, q.stream, params);
}

template <class T, class C, bool general, bool drops>
void launch_backward(const Args& args, const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                     const kernels::AttentionGradients& gradients) {
  launch_backward_kernel<T, C>(hopper_attention_backward<T, C, general, drops>, args, q, k, v, g, y, log_sums, g, gradients);
}

}  // namespace tern::gpu::hopper
