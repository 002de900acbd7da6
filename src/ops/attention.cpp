#include "ops/attention.h"

#include <fmt/format.h>

#include <cmath>

#include "autodiff/vjp.h"
#include "ops/copy.h"
#include "ops/detail/attention_mask.h"
#include "ops/detail/autocast.h"
#include "ops/detail/dropout_at.h"
#include "ops/join.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/random.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

// Self attention from a projection to the heads' results: as a composition, and fused.
namespace tern {

namespace {

void check(const char* op, const Tensor& qkv, const AttentionParams& params) {
  if (qkv.dims() != 5 || qkv.size(2) != 3)
    fail(op, fmt::format("expected queries, keys and values (B, T, 3, H, D) but got {}", to_string(qkv.shape())));
  if (!(params.dropout >= 0 && params.dropout < 1)) fail(op, fmt::format("expected a probability in [0, 1) but got {}", params.dropout));
  const std::int64_t length = qkv.size(1);
  detail::check_mask(op, {qkv.size(0), qkv.size(3), length, length}, qkv.dtype(), qkv.device(), params.mask);
}

double scale_for(const Tensor& qkv) { return 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(qkv.size(4), 1))); }

/// Queries, keys and values, (B, H, T, D) each.
Tensors heads_of(const Tensor& qkv) {
  Tensors parts = unstack(qkv, 2);
  for (Tensor& part : parts) part = transpose(part, 1, 2);
  return parts;
}

/// The composition, with `dropped` for the dropout of the weights.
template <class F>
Tensor compose(const Tensor& qkv, const SoftmaxMask& mask, bool is_fused, F dropped) {
  const Tensors heads = heads_of(qkv);
  const Tensor scores = matmul(heads[0], transpose(heads[1], -1, -2), scale_for(qkv));
  const Tensor weights = (is_fused ? fused_attention_softmax : attention_softmax)(scores, mask);
  return transpose(matmul(dropped(weights), heads[2]), 1, 2);
}

Tensor compose(const Tensor& qkv, const AttentionParams& params, bool is_fused) {
  return compose(qkv, params.mask, is_fused, [&](const Tensor& weights) { return dropout(weights, params.dropout, params.training); });
}

/// The same with draws that were made before: the reference of the fused ones.
Tensor compose_again(const Tensor& qkv, const SoftmaxMask& mask, double p, PhiloxState draws) {
  return compose(qkv, mask, false, [&](const Tensor& weights) { return p > 0 ? detail::dropout_at(weights, p, draws) : weights; });
}

/// On a GPU, as products of whole batches and fused kernels between them. The heads are brought side by side first: cuBLAS takes a batch
/// with one stride faster than a list of addresses, and the gradients of queries, keys and values go to one tensor.
Tensor attention_by_products(const Tensor& qkv, const AttentionParams& params) {
  const Tensor heads = contiguous(permute(qkv, {2, 0, 3, 1, 4}));  // (3, B, H, T, D)
  const detail::KernelMask mask(params.mask, qkv.dtype());
  const double scale = scale_for(qkv), p = params.training ? params.dropout : 0;
  Tensor weights, dropped, y;
  PhiloxState draws;
  {
    const NoGrad unrecorded;
    const Tensors parts = unstack(heads, 0);
    weights = matmul(parts[0], transpose(parts[1], -1, -2), scale);
    on(weights.device(), [&](auto dev) { kernels::attention_softmax(dev, weights.view(), mask.view(), weights.view()); });
    if (p > 0) draws = context().generator.reserve(weights.numel());
    dropped = p > 0 ? detail::dropout_at(weights, p, draws) : weights;
    y = matmul(dropped, parts[2]);
  }
  y = record("fused_self_attention", y, {heads}, {heads, weights, dropped}, [=, given = params.mask](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0);
    if (context().grad)
      return vjp(call, {x}, [&](const Tensors& in) -> Tensors {
        return {transpose(compose_again(permute(in[0], {1, 3, 0, 2, 4}), given, p, draws), 1, 2)};
      });
    const Tensors parts = unstack(x, 0);
    const Tensor probabilities = call.saved(1), g = contiguous(call.grad()), dx = empty_like(x);
    const Tensor scores = matmul(g, transpose(parts[2], -1, -2));
    const auto part = [&](int i) { return select(dx, 0, i).view(); };
    on(dx.device(), [&](auto dev) {
      if (p > 0) kernels::dropout(dev, scores.view(), scores.view(), p, draws);
      kernels::attention_softmax_grad(dev, probabilities.view(), scores.view(), scores.view());
      kernels::matmul(dev, scores.view(), parts[1].view(), part(0), scale, Write::overwrite);
      kernels::matmul(dev, transpose(scores, -1, -2).view(), parts[0].view(), part(1), scale, Write::overwrite);
      kernels::matmul(dev, transpose(call.saved(2), -1, -2).view(), g.view(), part(2), 1, Write::overwrite);
    });
    return {dx};
  });
  return transpose(y, 1, 2);
}

/// On a GPU, in tiles: nothing that grows with T^2 is in memory.
Tensor attention_in_tiles(const Tensor& qkv, const AttentionParams& params) {
  const Tensor source = contiguous(qkv);
  const std::int64_t batch = qkv.size(0), length = qkv.size(1), heads = qkv.size(3);
  const Tensor y = empty({batch, length, heads, qkv.size(4)}, qkv.dtype(), qkv.device());
  const Tensor log_sums = empty({batch, heads, length}, DType::f32, qkv.device());
  const detail::KernelMask mask(params.mask, qkv.dtype());
  const double scale = scale_for(qkv), p = params.training ? params.dropout : 0;
  const PhiloxState draws = p > 0 ? context().generator.reserve(batch * heads * length * length) : PhiloxState{};
  const auto attention = [=] { return kernels::Attention{mask.view(), scale, p, draws}; };
  on_cuda("fused_self_attention", y.device(),
          [&](auto dev) { kernels::flash_attention(dev, source.view(), attention(), y.view(), log_sums.view()); });
  return record("fused_self_attention", y, {source}, {source, y, log_sums}, [=, given = params.mask](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0);
    if (context().grad) return vjp(call, {x}, [&](const Tensors& in) -> Tensors { return {compose_again(in[0], given, p, draws)}; });
    const Tensor result = call.saved(1), sums = call.saved(2), g = contiguous(call.grad()), dx = empty_like(x);
    on_cuda("fused_self_attention", dx.device(),
            [&](auto dev) { kernels::flash_attention_grad(dev, x.view(), result.view(), sums.view(), g.view(), attention(), dx.view()); });
    return {dx};
  });
}

}  // namespace

Tensor self_attention(const Tensor& qkv, const AttentionParams& params) {
  check("self_attention", qkv, params);
  return compose(qkv, params, false);
}

Tensor fused_self_attention(const Tensor& qkv_, const AttentionParams& params) {
  const Tensor qkv = detail::autocast("matmul", qkv_);
  check("fused_self_attention", qkv, params);
  if (cuda_has(qkv.device(), [&](auto dev) { return kernels::has_flash_attention(dev, qkv.device(), qkv.dtype(), qkv.size(4)); }))
    return attention_in_tiles(qkv, params);
  if (!cuda_has(qkv.device(), [&](auto dev) { return kernels::has_self_attention(dev, qkv.dtype(), qkv.size(1), qkv.size(4)); }))
    return qkv.device() == cpu ? compose(qkv, params, true) : attention_by_products(qkv, params);

  const Tensor source = contiguous(qkv);
  const std::int64_t batch = qkv.size(0), length = qkv.size(1), heads = qkv.size(3);
  const Tensor y = empty({batch, length, heads, qkv.size(4)}, qkv.dtype(), qkv.device());
  const detail::KernelMask mask(params.mask, qkv.dtype());
  const double scale = scale_for(qkv), p = params.training ? params.dropout : 0;
  const PhiloxState draws = p > 0 ? context().generator.reserve(batch * heads * length * length) : PhiloxState{};
  const auto attention = [=] { return kernels::Attention{mask.view(), scale, p, draws}; };
  on_cuda("fused_self_attention", y.device(), [&](auto dev) { kernels::self_attention(dev, source.view(), attention(), y.view()); });
  return record("fused_self_attention", y, {source}, {source}, [=, given = params.mask](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0);
    if (context().grad) return vjp(call, {x}, [&](const Tensors& in) -> Tensors { return {compose_again(in[0], given, p, draws)}; });
    const Tensor g = contiguous(call.grad()), dx = empty_like(x);
    on_cuda("fused_self_attention", dx.device(),
            [&](auto dev) { kernels::self_attention_grad(dev, x.view(), g.view(), attention(), dx.view()); });
    return {dx};
  });
}

}  // namespace tern
