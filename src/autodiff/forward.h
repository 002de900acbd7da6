#pragma once
#include <functional>
#include <span>

#include "tensor/tensor.h"

// Forward mode: ops compute tangents together with their values. See Note [Tangents] in forward.cpp; the public function is jvp
// (autodiff/functional.h).
namespace tern {

class Backward;

/// A running call of jvp; each tangent belongs to one call.
struct ForwardLevel final : RefCounted {
  /// A level within `outer_`, which may be null.
  explicit ForwardLevel(ForwardLevel* outer_) : outer(outer_) {}
  Ref<ForwardLevel> outer;  ///< the enclosing jvp, whose tangents flow through this one's
};

// Rules by which `record` computes the tangent of an op's output. Rules other than Transposed are used where they are cheaper. A rule's
// function is called before record returns, outside of autograd, so it may capture by reference.

/// Transposes the op's backward. The rule of every op that names no other.
struct Transposed {};
/// The Jacobian is symmetric, as that of an elementwise op, for an input of the output's shape and dtype: the tangent is the result of
/// backward for the input's tangent. Other inputs are transposed.
struct Symmetric {};
/// The op is linear in all of its inputs together: `op`, as Tensors(const Tensors&), of the inputs' tangents gives the outputs' tangents.
template <class F>
struct Linear {
  F op;  ///< gets zeros for an input without a tangent
};
/// The op is linear in each of its first two inputs, and a third one, if any, is added: `op`, as Tensors(const Tensors&), is called with a
/// tangent and the other factor.
template <class F>
struct Product {
  F op;  ///< gets the third input's tangent, or an undefined tensor, once with each product
};
/// @{
/// Deduces the rule's type from a function object.
template <class F>
Linear(F) -> Linear<F>;
template <class F>
Product(F) -> Product<F>;
/// @}

namespace detail {

/// A rule, with its function's type erased.
struct TangentRule {
  enum class Kind { transposed, symmetric, linear, product } kind;
  std::function<Tensors(const Tensors&)> op;

  TangentRule(const Transposed&) : kind(Kind::transposed) {}
  TangentRule(const Symmetric&) : kind(Kind::symmetric) {}
  template <class F>
  TangentRule(const Linear<F>& rule) : kind(Kind::linear), op(std::cref(rule.op)) {}
  template <class F>
  TangentRule(const Product<F>& rule) : kind(Kind::product), op(std::cref(rule.op)) {}
};

/// Call of an op that has computed its outputs.
struct TangentCall {
  const char* op;
  std::span<const Tensor> outputs, inputs, saved;
  std::function<Tensors(const Backward&)> backward;
  TangentRule rule;
};
/// Sets the tangents of the outputs, at each level at which an input has one.
void carry_tangents(const TangentCall& call);

/// True if jvp would follow results computed from x.
bool carries_tangent(const Tensor& x);
/// Tangent of x at a level, undefined if it has none. Throws Error that names `op` if x was edited in place after it got the tangent.
Tensor tangent_of(const Tensor& x, const ForwardLevel& level, const char* op);
/// Sets a tangent, of x's shape and dtype, of x, which has no other user yet.
void set_tangent(const Tensor& x, ForwardLevel& level, const Tensor& tangent);
/// x.detach() with x's tangents.
Tensor without_history(const Tensor& x);
/// The same without the tangent of one level, the innermost that x has.
Tensor without_tangent(const Tensor& x, const ForwardLevel& level);

/// Tangents of a fused op from its plain reference. Its backward passes the reference to vjp (autodiff/vjp.h) when it is called for a
/// tangent.
class ReferenceTangents {
 public:
  ReferenceTangents(ForwardLevel& level, const Tensors& tangents) : level_(level), tangents_(tangents) {}
  void find(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& reference);
  bool found() const { return found_; }
  const Tensors& results() const { return results_; }

 private:
  ForwardLevel& level_;
  const Tensors& tangents_;  ///< tangents of the op's inputs
  Tensors results_;          ///< tangents of its outputs
  bool found_ = false;
};

/// Scope in which ops carry tangents and are not recorded, at the given level, if any, and those outside of it.
class CarryTangents {
 public:
  explicit CarryTangents(ForwardLevel* level) : level_(context().forward, level), grad_(context().grad, true) {}

 private:
  ScopedValue<ForwardLevel*> level_;
  ScopedValue<bool> grad_, only_{context().tangents_only, true};
};

}  // namespace detail

}  // namespace tern
