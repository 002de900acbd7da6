#include "ops/autocast.h"

#include <algorithm>
#include <string>

#include "autodiff/autograd_state.h"
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

bool Autocast::is_current(const Cast& kept) {
  if (!kept.source.defined() || kept.version != kept.source.version() || kept.is_recorded != context().grad) return false;
  const AutogradState* state = autograd_state(kept.result);
  return !kept.is_recorded || (state && state->node && !state->node->released);  // otherwise a backward pass has released it
}

/// A leaf that requires a gradient is a weight, which several calls read: its cast is kept.
Tensor Autocast::lowered(const Tensor& x) {
  if (x.dtype() == dtype_ || !x.is_leaf() || !x.requires_grad()) return cast(x, dtype_);
  Cast& kept = weights_[x.ref().get()];
  if (!is_current(kept)) kept = {x, cast(x, dtype_), x.version(), context().grad};
  return kept.result;
}

void Autocast::use(const Tensor& x, const Tensor& copy) {
  Cast& kept = weights_[x.ref().get()];
  if (is_current(kept) && kept.result.impl().storage == copy.impl().storage) return;
  const auto backward = [from = x.dtype()](const Backward& call) -> Tensors { return {cast(call.grad(), from)}; };
  kept = {x, record(Op{.name = "cast"}, copy, {x}, {}, backward), x.version(), context().grad};
}

void Autocast::forget() {
  weights_.clear();
  if (scope_.before()) scope_.before()->forget();
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
