#pragma once
#include "autodiff/saved_tensor.h"

namespace tern::detail {

/// Results of compute(), Tensors of a matrix product or of attention: a checkpointed function that runs again reuses them if its policy
/// kept them.
template <class F>
Tensors costly(F compute) {
  SavedTensorHooks* const hooks = context().saved_tensor_hooks;
  return hooks ? hooks->costly(compute) : compute();
}

}  // namespace tern::detail
