#pragma once
#include "ops/autocast.h"

// Autocast's cast of an operand of an op. Returns x itself outside of an Autocast scope, and for dtypes that autocast leaves alone (f64,
// integers).
namespace tern::detail {

inline Tensor autocast(const char* op, const Tensor& x) {
  return context().autocast && x.defined() ? context().autocast->operand(op, x) : x;
}
/// The same for ops with the rule `widest`.
Tensors autocast_all(const char* op, std::span<const Tensor> xs);

}  // namespace tern::detail
