// Copies and pickles of tensors and modules, for pickle, copy and what uses them: processes, queues, caches.
//
// Note [Pickled tensors]
// Handles of one tensor are handles of one tensor again, so that ties stay: a handle is pickled as a reference to an Elements, of which
// there is one for each tensor at a time, and pickle and deepcopy know objects again that they have met. Elements are dense in the file,
// whatever the strides. Views become tensors of their own; history and gradients stay behind.
//
// Note [Pickled modules]
// A class of Python's is pickled as others are, by its attributes. A ready module is its class, the arguments that make one like it, and
// all its tensors and modes by name. Making one draws no random numbers.
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <map>
#include <tuple>

#include "autodiff/autograd_state.h"
#include "modules.h"
#include "ops/factory.h"

namespace tern::python {

namespace {

nb::module_ core() { return nb::module_::import_("tern._core"); }

/// The tensor that handles share. `this` is in a table while it lives, under the GIL.
struct Elements {
  explicit Elements(Tensor x) : tensor(std::move(x)) {}
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;
  ~Elements() { all().erase(tensor.ref().get()); }

  static std::map<const TensorImpl*, PyObject*>& all() {
    static auto* const table = new std::map<const TensorImpl*, PyObject*>;  // beyond the interpreter's end
    return *table;
  }
  static nb::object of(const Tensor& x) {
    PyObject*& known = all()[x.ref().get()];
    if (known) return nb::borrow(known);
    nb::object result = nb::cast(new Elements(x), nb::rv_policy::take_ownership);
    known = result.ptr();
    return result;
  }

  Tensor tensor;
};

/// Whether a tensor says that it is trained, or that it is frozen; none of both.
std::optional<bool> mark_of(const Tensor& x) { return autograd_state(x) ? std::optional<bool>(x.requires_grad()) : std::nullopt; }
Tensor marked(Tensor x, std::optional<bool> mark) {
  if (mark) x.set_requires_grad(*mark);
  return x;
}

nb::object pickled(const Elements& elements) {
  Tensor dense;
  {
    const nb::gil_scoped_release released;
    dense = contiguous(elements.tensor.detach().to(cpu));
  }
  const auto bytes = static_cast<std::size_t>(dense.numel()) * size_of(dense.dtype());
  return nb::make_tuple(nb::bytes(dense.view().data, bytes), nb::cast(dense.dtype()), nb::cast(dense.shape()),
                        to_string(elements.tensor.device()), mark_of(elements.tensor));
}

nb::object unpickled(const nb::bytes& bytes, DType dtype, const Shape& shape, const DeviceLike& device, std::optional<bool> mark) {
  Tensor x = empty(shape, dtype, cpu);
  if (bytes.size() != static_cast<std::size_t>(x.numel()) * size_of(dtype))
    fail("pickle", "expected the bytes of shape " + to_string(shape) + ", " + name(dtype) + " but got " + std::to_string(bytes.size()));
  if (bytes.size() != 0) std::memcpy(x.view().data, bytes.data(), bytes.size());
  return Elements::of(marked(x.to(device.get()), mark));
}

/// All handles of a module by their paths, tied ones under each path, and the modules below it.
struct Handles final : nn::Visitor {
  std::vector<std::pair<std::string, Tensor*>> tensors;
  std::vector<std::pair<std::string, nn::Module*>> modules;

  explicit Handles(nn::Module& root) { walk(root); }

 private:
  void on_parameter(const std::string& path, Tensor& x) override { tensors.emplace_back(path, &x); }
  void on_buffer(const std::string& path, Tensor& x) override { tensors.emplace_back(path, &x); }
  void on_module(const std::string& path, nn::Module& module) override { modules.emplace_back(path, &module); }
};

using Modes = std::pair<bool, bool>;
Modes modes_of(const nn::Module& module) { return {module.training, module.is_shared}; }
void set_modes(nn::Module& module, const Modes& modes) { std::tie(module.training, module.is_shared) = modes; }

std::map<PyTypeObject*, Arguments>& ready_types() {
  static std::map<PyTypeObject*, Arguments> types;
  return types;
}

/// An object of a class of Python's, with its C++ part and without attributes.
nb::object made(const nb::object& type) {
  nb::object result = type.attr("__new__")(type);
  core().attr("_nn").attr("Module").attr("__init__")(result);
  return result;
}

nb::object restored(const nb::object& type, const nb::dict& arguments, const std::map<std::string, Tensor>& tensors,
                    const std::map<std::string, Modes>& modes) {
  nb::object result;
  {
    const ScopedValue<Generator> draws_nothing(context().generator, Generator(context().generator));
    result = type(**arguments);
  }
  const Handles handles(nb::cast<nn::Module&>(result));
  for (const auto& [path, x] : handles.tensors)
    if (const auto found = tensors.find(path); found != tensors.end()) *x = found->second;
    else fail("pickle", "expected a tensor " + path + " of the module but got none");
  for (const auto& [path, part] : handles.modules)
    if (const auto found = modes.find(path); found != modes.end()) set_modes(*part, found->second);
  return result;
}

}  // namespace

void picklable(nb::handle type, Arguments arguments) { ready_types()[reinterpret_cast<PyTypeObject*>(type.ptr())] = arguments; }

nb::object reduce_module(nb::handle self) {
  const auto found = ready_types().find(Py_TYPE(self.ptr()));
  if (found == ready_types().end())
    return nb::make_tuple(core().attr("_nn").attr("_made"), nb::make_tuple(self.type()), self.attr("__getstate__")());
  auto& module = nb::cast<nn::Module&>(self);
  const Handles handles(module);
  nb::dict arguments, tensors, modes;
  found->second(module, arguments);
  for (const auto& [path, x] : handles.tensors) tensors[path.c_str()] = *x;
  for (const auto& [path, part] : handles.modules) modes[path.c_str()] = nb::cast(modes_of(*part));
  if (!handles.tensors.empty()) arguments["device"] = to_string(handles.tensors[0].second->device());
  return nb::make_tuple(core().attr("_nn").attr("_restored"), nb::make_tuple(self.type(), arguments, tensors, modes));
}

nb::tuple get_state(nb::handle self) {
  return nb::make_tuple(self.attr("__dict__").attr("copy")(), nb::cast(modes_of(nb::cast<nn::Module&>(self))));
}
void set_state(nb::handle self, const nb::handle& state) {
  const bool has_modes = PyTuple_Check(state.ptr());  // a class with a __getstate__ of its own may give the attributes alone
  self.attr("__dict__").attr("update")(has_modes ? nb::object(state[0]) : nb::borrow(state));
  if (has_modes) set_modes(nb::cast<nn::Module&>(self), nb::cast<Modes>(nb::object(state[1])));
}

void bind_copies(nb::module_& m, nb::module_& nn, nb::class_<Tensor>& tensor) {
  nb::class_<Elements>(m, "_Elements")
      .def("__reduce__", [](nb::handle self) { return nb::make_tuple(core().attr("_elements"), pickled(nb::cast<Elements&>(self))); })
      .def(
          "__deepcopy__",
          [](const Elements& x, const nb::dict&) {
            Tensor copy;
            {
              const nb::gil_scoped_release released;
              copy = clone(x.tensor.detach());
            }
            return Elements::of(marked(copy, mark_of(x.tensor)));
          },
          "memo"_a);
  m.def("_elements", &unpickled, "bytes"_a, "dtype"_a, "shape"_a, "device"_a, "mark"_a.none());
  m.def("_tensor", [](const Elements& elements) { return elements.tensor; }, "elements"_a);
  tensor.def(
      "__reduce__", [](const Tensor& x) { return nb::make_tuple(core().attr("_tensor"), nb::make_tuple(Elements::of(x))); },
      nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"));
  nn.def("_restored", &restored, "type"_a, "arguments"_a, "tensors"_a, "modes"_a);
  nn.def("_made", &made, "type"_a);
}

}  // namespace tern::python
