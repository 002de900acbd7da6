// nn.Module, what is asked of every module, and modules that are written in Python.
//
// Note [Modules in Python]
// visit is the only reflection there is (nn/module.h), and a class of Python's has it by its attributes: members() of nn.Module gives them
// by name, and those that are tensors or modules, or lists, tuples or dicts of such, are shown to the visitor. All else, parameters,
// saving, moving, summaries and the names in errors, is the library's own.
#include "modules.h"

#include <nanobind/trampoline.h>

#include <set>

#include "names.h"
#include "nn/module.h"
#include "train/precision.h"

namespace tern::python {

namespace {

/// A level of modules and containers within each other: one that contains itself would exhaust the stack. The limit is a RecursionError.
/// Py_EnterRecursiveCall allows ten times as many levels from Python 3.12 on, which is more than the stack holds.
class Level {
 public:
  Level() {
    if (depth_ == 1000) {
      PyErr_SetString(PyExc_RecursionError, "modules, lists or dicts more than 1000 levels deep: does one contain itself?");
      throw nb::python_error();
    }
    ++depth_;
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  static inline thread_local int depth_ = 0;  // 0 between calls
};

class PythonModule final : public nn::Module {
 public:
  NB_TRAMPOLINE(nn::Module);

  void visit(nn::Visitor& v) override {
    const nb::gil_scoped_acquire gil;  // an error in a forward without the GIL asks for paths
    const Level level;
    const nb::handle self = nb_trampoline.base();
    const nb::object buffers = nb::getattr(self, "buffers");
    for (const nb::handle entry : self.attr("members")()) {
      std::pair<std::string, nb::object> member;
      if (!nb::try_cast(entry, member)) throw nb::type_error("members() gives pairs of a name and a value");
      const auto& [name, value] = member;
      show(v, name, value, nb::cast<bool>(buffers.attr("__contains__")(name)));
    }
  }
  std::string type_name() const override {
    const nb::gil_scoped_acquire gil;
    return nb::cast<std::string>(nb_trampoline.base().type().attr("__name__"));
  }
  std::string settings() const override {
    const nb::gil_scoped_acquire gil;
    const nb::handle self = nb_trampoline.base();
    return nb::hasattr(self, "settings") ? nb::cast<std::string>(self.attr("settings")()) : "";
  }

 private:
  static void show(nn::Visitor& v, const std::string& name, nb::handle value, bool is_buffer) {
    const Level level;
    Tensor* tensor = nullptr;
    nn::Module* module = nullptr;
    if (value.is_none()) return;
    if (nb::try_cast(value, tensor, false)) is_buffer ? v.buffer(name, *tensor) : v(name, *tensor);
    else if (nb::try_cast(value, module, false)) v(name, *module);
    else if (PyDict_Check(value.ptr()))
      for (const auto& [key, part] : nb::borrow<nb::dict>(value))
        show(v, name + "." + nb::cast<std::string>(nb::str(key)), part, is_buffer);
    else if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
      std::size_t i = 0;
      for (const nb::handle part : value) show(v, name + "." + std::to_string(i++), part, is_buffer);
    }
  }
};

/// Attributes by name; those with a leading underscore are the class's own affair.
nb::object members_of(nb::handle self) {
  nb::list result;
  for (const auto& [name, value] : nb::borrow<nb::dict>(self.attr("__dict__")))
    if (!nb::cast<std::string>(name).starts_with("_")) result.append(nb::make_tuple(name, value));
  return nb::object(result);
}

/// Entries of a state_dict.
std::vector<NamedTensor> state_of(const nn::Module& module) {
  std::vector<NamedTensor> result = nn::named_parameters(module);
  for (NamedTensor& buffer : nn::named_buffers(module)) result.push_back(std::move(buffer));
  return result;
}

/// A class that assigns members before super().__init__() would have a module without its C++ part.
int set_attribute(PyObject* self, PyObject* name, PyObject* value) {
  Tensor* tensor = nullptr;
  nn::Module* module = nullptr;
  if (value && !nb::inst_ready(self) &&
      (nb::try_cast(nb::handle(value), tensor, false) || nb::try_cast(nb::handle(value), module, false))) {
    PyErr_Format(PyExc_TypeError, "%s.__init__() must call super().__init__() before it assigns self.%U", Py_TYPE(self)->tp_name, name);
    return -1;
  }
  return PyObject_GenericSetAttr(self, name, value);
}
PyType_Slot module_slots[] = {{Py_tp_setattro, reinterpret_cast<void*>(set_attribute)}, {0, nullptr}};

/// The tree of the module, with True and False.
std::string printed(const nn::Module& module) {
  std::string text = nn::to_string(module);
  for (std::size_t at = 0; (at = text.find('=', at)) != std::string::npos; ++at)
    if (text.compare(at, 5, "=true") == 0 || text.compare(at, 6, "=false") == 0) text[at + 1] = char(text[at + 1] - 'a' + 'A');
  return text;
}

/// A method that changes the module and returns it, as in net.to("cuda").eval().
template <class F>
auto returning_self(F f) {
  return [f](nb::handle self, bool on) {
    f(nb::cast<nn::Module&>(self), on);
    return nb::borrow(self);
  };
}

}  // namespace

const char* kept_name(const std::string& name) {
  static std::set<std::string> names;  // under the GIL
  return names.insert(name).first->c_str();
}

void bind_modules(nb::module_& m) {
  nb::class_<nn::Module, PythonModule> bound(
      m, "Module", nb::type_slots(module_slots),
      "Base of all layers and models. In a class of one's own, attributes that are tensors or modules, or lists, tuples\n"
      "or dicts of such, are its members: tensors are parameters, saved but not trained where `buffers`\n"
      "has their names. An attribute with a\n"
      "leading underscore is none. `forward` is what m(x) calls.");
  bound.attr("buffers") = nb::tuple();
  bound.def(nb::init<>())
      .def(
          "__call__",
          [](nb::handle self, const nb::args& args, const nb::kwargs& kwargs) {
            if (!nb::inst_ready(self))
              throw nb::type_error((std::string(Py_TYPE(self.ptr())->tp_name) + ".__init__() must call super().__init__()").c_str());
            const nn::Module& module = nb::cast<const nn::Module&>(self);
            const nn::ModuleScope scope(&module, kept_name(module.type_name()));
            return nb::object(self.attr("forward")(*args, **kwargs));
          },
          nb::sig("def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any"))
      .def("members", &members_of, nb::sig("def members(self) -> collections.abc.Iterable[tuple[str, typing.Any]]"),
           "Members of a Python class by name: its attributes without a leading underscore. A container overrides it.")
      .def("__repr__", [](const nn::Module& module) { return printed(module); })
      .def("__reduce__", &reduce_module, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def("__getstate__", &get_state, nb::sig("def __getstate__(self) -> typing.Any"))
      .def(
          "__setstate__", [](nb::handle self, const nb::handle& state) { set_state(self, state); },
          nb::sig("def __setstate__(self, state: typing.Any, /) -> None"))
      .def("train", returning_self([](nn::Module& module, bool on) { module.train(on); }), "on"_a = true,
           nb::sig("def train(self, on: bool = True) -> typing.Self"),
           "Switches the module and all below it between training and evaluation. Returns the module.")
      .def(
          "eval",
          [](nb::handle self) {
            nb::cast<nn::Module&>(self).eval();
            return nb::borrow(self);
          },
          nb::sig("def eval(self) -> typing.Self"), "train(False). Returns the module.")
      .def_rw("training", &nn::Module::training)
      .def_rw("is_shared", &nn::Module::is_shared, "It is meant to stand in a list more than once.")
      .def("parameters", &nn::parameters, "In the order of the members; a tied tensor once.")
      .def(
          "named_parameters", [](const nn::Module& module) { return to_pairs(nn::named_parameters(module)); },
          "(name, tensor) in the order of the members; a tied tensor once, under its first name.")
      .def(
          "named_buffers", [](const nn::Module& module) { return to_pairs(nn::named_buffers(module)); }, "(name, tensor) of the buffers.")
      .def(
          "state_dict", [](const nn::Module& module) { return to_dict(state_of(module)); },
          "The parameters and buffers by name: the module's own, which it still trains.")
      .def(
          "load_state_dict",
          [](const nn::Module& module, const NamedTensors& state, bool strict) {
            return load_state("load_state_dict", state_of(module), state, strict);
          },
          "state"_a, "strict"_a = true,
          "Copies tensors into the parameters and buffers of their names, all or none. Error for names that differ, unless strict is "
          "False, "
          "and for shapes. Returns the names that were missing and those that were unexpected.")
      .def(
          "named_masters", [](const nn::Module& module) { return to_pairs(nn::named_masters(module)); },
          "As named_parameters, with the f32 masters in place of 16-bit parameters that have some, for saving.")
      .def("count_parameters", &nn::count_parameters)
      .def(
          "summary", [](const nn::Module& module) { return nn::to_string(nn::summary(module)); },
          "A table of all tensors, and what they add up to.")
      .def(
          "to",
          [](nb::handle self, DType dtype) {
            nn::to(nb::cast<nn::Module&>(self), dtype);
            return nb::borrow(self);
          },
          "dtype"_a, nb::sig("def to(self, dtype: tern._core.DType) -> typing.Self"))
      .def(
          "to",
          [](nb::handle self, const DeviceLike& device) {
            nn::to(nb::cast<nn::Module&>(self), device.get());
            return nb::borrow(self);
          },
          "device"_a, nb::sig("def to(self, device: tern._core.Device | str) -> typing.Self"),
          "Moves or casts behind the handles that exist: optimizers, copies and ties follow. Returns the module.")
      .def(
          "zero_grad",
          [](const nn::Module& module) {
            const Tensors parameters = nn::parameters(module);
            const nb::gil_scoped_release released;  // a gradient may be another thread's for now (Note [Owners in Python])
            nn::zero_grad(parameters);
          },
          "Forgets the gradients.")
      .def("requires_grad_", returning_self([](nn::Module& module, bool on) { nn::set_requires_grad(module, on); }),
           "requires_grad"_a = true, nb::sig("def requires_grad_(self, requires_grad: bool = True) -> typing.Self"),
           "Asks for gradients of all parameters, or freezes them. Returns the module.")
      .def(
          "flatten_parameters", [](nn::Module& module) { nn::flatten_parameters(module); },
          "Moves trained parameters into one storage per dtype, so that an optimizer's step is one kernel. Handles and values stay.")
      .def(
          "set_precision", [](nn::Module& module, const Choice<train::Precision>& precision) { train::set_precision(module, precision); },
          "precision"_a, "Stores the parameters in the precision's dtype; in 16 bits with f32 masters, which optimizers update.");
}

}  // namespace tern::python
