#pragma once
#include "tensor/random.h"
#include "tensor/tensor.h"

namespace tern::detail {

/// Dropout with the random numbers of a given position: linear in x, and its own derivative.
Tensor dropout_at(const Tensor& x, double p, PhiloxState draws);

}  // namespace tern::detail
