#pragma once
#include "tensor/tensor.h"

namespace tern {

/// x's view; one without data, an operand that is absent, where x is undefined.
inline View view_of(const Tensor& x) { return x.defined() ? x.view() : View{}; }

}  // namespace tern
