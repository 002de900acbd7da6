#pragma once
// Bindings of modules, the parts that they share: calls of forward, and copies and pickles (Note [Pickled modules]).
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

/// Sets the arguments of the constructor that make a module like this one; the device is added.
using Arguments = void (*)(const nn::Module& module, nb::dict& arguments);
void picklable(nb::handle type, Arguments arguments);

/// A ready module whose arguments `set`, without a capture, gives.
template <class M, class Base, class F>
void arguments_of(nb::class_<M, Base>& bound, F) {
  picklable(bound, [](const nn::Module& module, nb::dict& arguments) { F{}(static_cast<const M&>(module), arguments); });
}

/// Methods of nn.Module.
nb::object reduce_module(nb::handle self);
nb::tuple get_state(nb::handle self);
void set_state(nb::handle self, const nb::handle& state);

void bind_copies(nb::module_& m, nb::module_& nn, nb::class_<Tensor>& tensor);

}  // namespace tern::python
