#pragma once
#include "tensor/tensor.h"

namespace tern {

/// View of x; if x is undefined, a view without data, which is an absent operand.
inline View view_of(const Tensor& x) { return x.defined() ? x.view() : View{}; }

}  // namespace tern
