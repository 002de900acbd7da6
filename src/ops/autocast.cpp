#include "ops/autocast.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "autodiff/autograd_state.h"
#include "autodiff/node.h"
#include "autodiff/parameter_buffer.h"
#include "ops/copy.h"
#include "ops/detail/autocast.h"

namespace tern {

// The policy, after PyTorch's "Autocast Op Reference".
static constexpr std::array table = {
    // Products are compute-bound, and tensor cores compute them in 16 bits with f32 sums.
    AutocastRule{"matmul", CastTo::lower},
    AutocastRule{"linear", CastTo::lower},
    AutocastRule{"depthwise_conv1d", CastTo::lower},
    AutocastRule{"conv1d", CastTo::lower},
    AutocastRule{"conv2d", CastTo::lower},
    AutocastRule{"conv_transpose2d", CastTo::lower},
    // Sums of many terms, and functions that exceed the range or the precision of 16 bits.
    AutocastRule{"softmax", CastTo::f32},
    AutocastRule{"log_softmax", CastTo::f32},
    AutocastRule{"attention_softmax", CastTo::f32},
    AutocastRule{"layer_norm", CastTo::f32},
    AutocastRule{"rms_norm", CastTo::f32},
    AutocastRule{"cross_entropy", CastTo::f32},
    AutocastRule{"mse_loss", CastTo::f32},
    AutocastRule{"exp", CastTo::f32},
    AutocastRule{"log", CastTo::f32},
    AutocastRule{"log1p", CastTo::f32},
    AutocastRule{"expm1", CastTo::f32},
    AutocastRule{"pow", CastTo::f32},
    AutocastRule{"rsqrt", CastTo::f32},
    AutocastRule{"reciprocal", CastTo::f32},
    AutocastRule{"sum", CastTo::f32},
    AutocastRule{"prod", CastTo::f32},
    AutocastRule{"cumsum", CastTo::f32},
    AutocastRule{"logsumexp", CastTo::f32},
    // Operands that must have one dtype.
    AutocastRule{"cat", CastTo::widest},
    AutocastRule{"stack", CastTo::widest},
};

std::span<const AutocastRule> autocast_table() { return table; }

static const AutocastRule* rule_of(std::string_view op) {
  const auto found = std::find_if(table.begin(), table.end(), [op](const AutocastRule& rule) { return op == rule.op; });
  return found == table.end() ? nullptr : &*found;
}

static bool is_castable(DType dtype) { return is_floating(dtype) && dtype != DType::f64; }

static DType checked_dtype(DType dtype) {
  if (size_of(dtype) != 2) fail("Autocast", std::string("expected bf16 or f16 but got ") + name(dtype));
  return dtype;
}

Autocast::Autocast(DType dtype) : dtype_(checked_dtype(dtype)), scope_(context().autocast, this) {}

Tensor Autocast::operand(const char* op, const Tensor& x) {
  const AutocastRule* rule = rule_of(op);
  if (!rule || !is_castable(x.dtype())) return x;
  return rule->to == CastTo::f32 ? cast(x, DType::f32) : rule->to == CastTo::lower ? lowered(x) : x;
}

/// A weight whose memory is allocated on demand. Its cast is not kept: all casts together would take half as much memory as the weights.
static Tensor lowered_on_demand(const FlatStorage& flat, const Tensor& x, DType dtype) {
  const Tensor copy = flat.lowered && x.is_contiguous() ? flat.lowered(x, dtype) : Tensor();
  if (!copy.defined()) return cast(x, dtype);
  return record("cast", copy, {x}, {}, [from = x.dtype()](const Backward& call) -> Tensors { return {cast(call.grad(), from)}; });
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

Tensors detail::autocast_all(const char* op, std::span<const Tensor> xs) {
  Tensors result(xs.begin(), xs.end());
  if (!context().autocast || xs.empty() || !rule_of(op)) return result;
  if (!std::all_of(xs.begin(), xs.end(), [](const Tensor& x) { return is_castable(x.dtype()); })) return result;
  DType widest = xs[0].dtype();
  for (const Tensor& x : xs) widest = promote(widest, x.dtype());
  for (Tensor& x : result) x = cast(x, widest);
  return result;
}

}  // namespace tern
