#pragma once
#include "ops/autocast.h"

// Autocast's casts of an op's operands, in one line. Outside of a scope, and for dtypes that autocast leaves alone (f64, integers), it gets
// x itself.
namespace tern::detail {

inline Tensor autocast(const char* op, const Tensor& x) {
  return context().autocast && x.defined() ? context().autocast->operand(op, x) : x;
}
/// For ops with rule `widest`.
Tensors autocast_all(const char* op, std::span<const Tensor> xs);

}  // namespace tern::detail
