#include "cuda/attention/mma_bias_grad.cuh"
#include "cuda/attention/mma_launch.cuh"
#include "cuda/runtime/allocator.h"
#include "ops/kernels/deferred_sums.h"
#include "tensor/ceil_div.h"

namespace tern::gpu::ampere {

namespace {

/// Blocks that a sum is cut into where it has fewer units: about four for each of an H200's 132 multiprocessors. Other devices take the
/// same number, so that sums are the same on all. Parts take the memory of at most as many tiles.
constexpr std::int64_t wanted_blocks = 512;

template <class T, class C>
void launch_bias_grad(const BackwardInputs& inputs, const View& dbias) {
  const Args& args = inputs.args;
  const int counts[] = {args.sequences, args.heads, ceil_div(args.queries, C::queries), ceil_div(args.keys, C::keys)};
  BiasGradParams p{inputs};
  p.elements = dbias.numel();
  std::int64_t units = 1, terms = 1;
  for (int d = 0; d < 4; ++d) {
    p.counts[d] = std::max(counts[d], 1);
    p.is_summed[d] = dbias.shape[d] == 1;
    (p.is_summed[d] ? terms : units) *= counts[d];
  }
  constexpr std::int64_t most = 1 << 30;
  if (units > most || terms > most) fail("attention", "expected at most 2^30 tiles of a bias");
  const std::int64_t splits = std::clamp<std::int64_t>(wanted_blocks / units, 1, std::max<std::int64_t>(terms, 1));
  p.units = static_cast<int>(units), p.terms = static_cast<int>(terms), p.splits = static_cast<int>(splits);
  const Workspace parts(splits > 1 ? static_cast<std::size_t>(splits * p.elements) * sizeof(float) : 0, dbias.stream);
  if (splits > 1) p.parts = parts.as<float>();
  else p.dbias = dbias.data;
  launch(mma_attention_bias_grad<T, C>, blocks_for(units * splits, 1), C::threads, C::bytes, dbias.stream, p);
  if (splits == 1) return;
  kernels::PartialSum sum{.parts = p.parts,
                          .to = dbias.data,
                          .pitch = p.elements,
                          .stride = 1,
                          .count = static_cast<unsigned>(splits),
                          .columns = static_cast<unsigned>(p.elements),
                          .dtype = dbias.dtype,
                          .adds = false};
  kernels::add_partial_sums(Cuda{}, {&sum, 1}, dbias.stream);
}

}  // namespace

void sum_bias_gradient(const BackwardInputs& inputs, const View& dbias) {
  if (dbias.numel() == 0) return;
  const auto with = [&]<class C>() { dispatch_halves(dbias.dtype, [&]<class T>() { launch_bias_grad<T, C>(inputs, dbias); }); };
  const int head_dim = inputs.args.head_dim;
  if (head_dim <= 32) with.template operator()<BiasGradConfig<32, 8, 64, 32, 2, 2>>();
  else if (head_dim <= 64) with.template operator()<BiasGradConfig<64, 8, 64, 32, 2, 2>>();
  else if (head_dim <= 128) with.template operator()<BiasGradConfig<128, 8, 64, 32, 1, 2>>();
  else with.template operator()<BiasGradConfig<256, 4, 32, 32, 1, 2>>();
}

}  // namespace tern::gpu::ampere
