#pragma once
// Calls of a module's forward from Python.
#include "binding.h"
#include "nn/module.h"

namespace tern::python {

/// The text, for as long as the program runs.
const char* kept_name(const std::string& name);

/// m(x) of a module that takes a tensor and gives one.
template <class M>
void takes_tensor(nb::class_<M, nn::Module>& bound) {
  const auto call = [](const M& module, const Tensor& x) { return module(x); };
  bound.def("__call__", call, "x"_a, Released()).def("forward", call, "x"_a, Released());
}

}  // namespace tern::python
