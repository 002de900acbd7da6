#pragma once
#include <functional>
#include <span>

#include "tensor/tensor.h"

// Forward mode: tangents that ops compute beside their values. See Note [Tangents] in forward.cpp; jvp (autodiff/functional.h) is its door.
namespace tern {

class Backward;

/// A call of jvp that runs: tangents are of one such call.
struct ForwardLevel final : RefCounted {
  /// Within `outer_`, or null.
  explicit ForwardLevel(ForwardLevel* outer_) : outer(outer_) {}
  Ref<ForwardLevel> outer;  ///< the jvp around this one, whose tangents flow through this one's
};

// Rules, by which `record` finds the tangent of an op's output. Others than transposition are there where they are cheaper. A rule's
// function is called before record returns, outside of autograd, so that it may refer to what is about it.

/// No more is known of the op than its backward. The rule of every op that names no other.
struct Transposed {};
/// The Jacobian is its own transpose, as an elementwise op's, for an input of the output's shape and dtype: the tangent is backward's
/// result for the input's tangent. Other inputs are transposed.
struct Symmetric {};
/// The op is linear in all of its inputs together: `op` of their tangents, as Tensors(const Tensors&), is its outputs' tangents.
template <class F>
struct Linear {
  F op;  ///< gets zeros for an input without a tangent
};
/// The op is linear in each of its first two inputs, and a third one, if there is any, is added: `op`, as Tensors(const Tensors&), of a
/// tangent and the other factor.
template <class F>
struct Product {
  F op;  ///< gets the third input's tangent, or an undefined tensor, once with each product
};
/// @{
/// Of a function object.
template <class F>
Linear(F) -> Linear<F>;
template <class F>
Product(F) -> Product<F>;
/// @}

namespace detail {

/// A rule, whatever its function's type.
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

/// A call of an op that has computed its outputs.
struct TangentCall {
  const char* op;
  std::span<const Tensor> outputs, inputs, saved;
  std::function<Tensors(const Backward&)> backward;
  TangentRule rule;
};
/// Gives the outputs their tangents, at each level at which an input has one.
void carry_tangents(const TangentCall& call);

/// True where jvp would follow what is computed from x.
bool carries_tangent(const Tensor& x);
/// x's tangent at a level, undefined where it has none. Throws Error that names `op` if x was edited in place since it got it.
Tensor tangent_of(const Tensor& x, const ForwardLevel& level, const char* op);
/// Gives x, which nobody else has yet, a tangent of its shape and dtype.
void set_tangent(const Tensor& x, ForwardLevel& level, const Tensor& tangent);
/// x.detach() with x's tangents.
Tensor without_history(const Tensor& x);
/// As that, without the tangent of one level, the innermost that x has.
Tensor without_tangent(const Tensor& x, const ForwardLevel& level);

/// Tangents of a fused op by its plain reference, to which its backward comes when it is called for the sake of a tangent (vjp in
/// autodiff/vjp.h).
class ReferenceTangents {
 public:
  ReferenceTangents(ForwardLevel& level, const Tensors& tangents) : level_(level), tangents_(tangents) {}
  void find(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& reference);
  bool found() const { return found_; }
  const Tensors& results() const { return results_; }

 private:
  ForwardLevel& level_;
  const Tensors& tangents_;  ///< of the op's inputs
  Tensors results_;          ///< tangents of its outputs
  bool found_ = false;
};

/// While it lives, ops carry tangents and are not recorded, in this level where one is given, and those about it.
class CarryTangents {
 public:
  explicit CarryTangents(ForwardLevel* level) : level_(context().forward, level), grad_(context().grad, true) {}

 private:
  ScopedValue<ForwardLevel*> level_;
  ScopedValue<bool> grad_, only_{context().tangents_only, true};
};

}  // namespace detail

}  // namespace tern
