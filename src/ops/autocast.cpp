#include "ops/autocast.h"

#include <algorithm>
#include <string>

#include "autodiff/autograd_state.h"
#include "autodiff/parameter_buffer.h"
#include "ops/op.h"

namespace tern {

static bool is_castable(DType dtype) { return is_floating(dtype) && dtype != DType::f64; }

static DType checked_dtype(DType dtype) {
  if (size_of(dtype) != 2) fail("Autocast", std::string("expected bf16 or f16 but got ") + name(dtype));
  return dtype;
}

Autocast::Autocast(DType dtype) : dtype_(checked_dtype(dtype)), scope_(context().autocast, this) {}

Tensor Autocast::operand(CastTo to, const Tensor& x) {
  if (!is_castable(x.dtype())) return x;
  return to == CastTo::f32 ? cast(x, DType::f32) : to == CastTo::lower ? lowered(x) : x;
}

/// A weight whose memory is allocated on demand. Its cast is not kept: all casts together would take half as much memory as the weights.
static Tensor lowered_on_demand(const FlatStorage& flat, const Tensor& x, DType dtype) {
  const Tensor copy = flat.lowered && x.is_contiguous() ? flat.lowered(x, dtype) : Tensor();
  if (!copy.defined()) return cast(x, dtype);
  return record({"cast"}, copy, {x}, {}, [from = x.dtype()](const Backward& call) -> Tensors { return {cast(call.grad(), from)}; });
}

/// A leaf that requires a gradient is a weight, which several calls read: its cast is kept.
Tensor Autocast::lowered(const Tensor& x) {
  if (x.dtype() == dtype_ || !x.is_leaf()) return cast(x, dtype_);
  const FlatStorage* const flat = flat_storage(x);
  if (flat && flat->is_on_demand()) return lowered_on_demand(*flat, x, dtype_);
  if (!x.requires_grad()) return cast(x, dtype_);
  const bool is_recorded = context().grad;
  const auto is_current = [&](const Cast& kept) {
    if (kept.version != x.version() || kept.is_recorded != is_recorded) return false;
    const AutogradState* state = autograd_state(kept.result);
    return !is_recorded || (state && state->node && !state->node->released);  // otherwise a backward pass has released it
  };
  Cast& kept = weights_[x.ref().get()];
  if (!kept.source.defined() || !is_current(kept)) kept = {x, cast(x, dtype_), x.version(), is_recorded};
  return kept.result;
}

Tensor detail::operand(const Op& op, const Tensor& x) {
  if (!x.defined()) return x;
  if (op.takes == Takes::floating) check_floating(op.name, x);
  return context().autocast ? context().autocast->operand(op.autocast, x) : x;
}

Tensors detail::operands(const Op& op, const Tensors& xs) {
  Tensors result;
  result.reserve(xs.size());
  for (const Tensor& x : xs) result.push_back(operand(op, x));
  if (!context().autocast || op.autocast != CastTo::widest || xs.empty()) return result;
  if (!std::all_of(xs.begin(), xs.end(), [](const Tensor& x) { return is_castable(x.dtype()); })) return result;
  DType widest = xs[0].dtype();
  for (const Tensor& x : xs) widest = promote(widest, x.dtype());
  for (Tensor& x : result) x = cast(x, widest);
  return result;
}

}  // namespace tern
