#pragma once
#include "tensor/context.h"

namespace tern::test {

/// f with its ops composed of others: the reference of fused kernels.
template <class F>
auto plain(F f) {
  return [f](const auto&... arguments) {
    const PlainKernels scope;
    return f(arguments...);
  };
}

}  // namespace tern::test
