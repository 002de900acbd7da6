#pragma once
#include "tensor/tensor.h"

namespace tern {

/// The elements that two views of one block of memory have in common, as overlap() of tensors; undecided if their dtypes differ.
Overlap overlap(const View& a, const View& b);

}  // namespace tern
