#pragma once
#include "autodiff/saved_tensor.h"

namespace tern::detail {

/// The results of a product or of attention, which a checkpointed function that runs again may have kept. compute() gives Tensors.
template <class F>
Tensors costly(F compute) {
  SavedTensorHooks* const hooks = context().saved_tensor_hooks;
  return hooks ? hooks->costly(compute) : compute();
}

}  // namespace tern::detail
