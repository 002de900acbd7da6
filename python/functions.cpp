// Every function of the package as Python's users call it.
//
// Note [Functions of Python]
// A file of this directory binds a C++ function once, as a function of a module. publish() then puts an object in its place that calls it,
// and that adds for all of them alike what the habits of NumPy and PyTorch ask for:
//   - one whose first parameter is a tensor is a method of tensors as well;
//   - sizes may be given one by one, zeros(2, 3) for zeros((2, 3)), if nothing else must follow them;
//   - a parameter has the names that `spellings` lists;
//   - the docstring is the C++ header's (docstring.h), unless the binding has one of its own;
//   - it pickles, by its name.
// A call without sizes one by one and without another spelling is passed on as it came.
#include "binding.h"
// Python.h first.
#include <structmember.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "docstring.h"

namespace tern::python {

namespace {

/// Names that a parameter has beside its own.
constexpr std::pair<const char*, const char*> spellings[] = {
    {"dims", "dim"},         {"dims", "axis"},  {"dim", "dims"}, {"dim", "axis"},
    {"keepdim", "keepdims"}, {"shape", "size"}, {"low", "min"},  {"high", "max"},
};
/// Of a binding in signatures: all of NumPy's names, or all of PyTorch's.
constexpr std::string_view numpy_names[] = {"axis", "keepdims"}, torch_names[] = {"dim", "size", "min", "max"};

/// Functions of a tensor that are no methods.
constexpr std::string_view no_methods[] = {
    "where",      // PyTorch's x.where(condition, other) begins with the value
    "unfold",     // PyTorch's x.unfold(dim, size, step) is sliding_window
    "embedding",  // the table is no subject of its own
    "quantize",
};

/// Names that NumPy or PyTorch have for an op, beside the C++ one.
constexpr std::pair<std::string_view, const char*> other_names[] = {
    {"stddev", "std"}, {"max", "amax"}, {"min", "amin"}, {"clamp", "clip"}, {"unstack", "unbind"}, {"cat", "concatenate"},
};

struct Parameter {
  std::string name, rest;  ///< rest: ": type = default"
  bool has_default() const { return rest.find(" = ") != std::string::npos; }
  bool is_of(std::string_view type) const { return rest.substr(0, rest.find(" = ")) == ": " + std::string(type); }
};

/// A signature as nanobind writes it, def f(a: int = \0) -> int, in which \0 is the first default.
struct Signature {
  std::string begin, end;
  std::vector<Parameter> parameters;

  explicit Signature(const std::string& text) {
    std::size_t at = text.find('(') + 1, word = at;
    begin = text.substr(0, at);
    for (int depth = 0; depth >= 0; ++at) {
      const char c = text[at];
      depth += (c == '(' || c == '[') - (c == ')' || c == ']');
      if ((c == ',' && depth == 0) || depth < 0) {
        const std::string parameter = text.substr(word, at - word);
        const std::size_t colon = std::min(parameter.find(':'), parameter.size());
        if (!parameter.empty()) parameters.push_back({parameter.substr(0, colon), parameter.substr(colon)});
        word = at + 2;
      }
      if (depth < 0) end = text.substr(at);
    }
  }
  std::string text() const {
    std::string result = begin;
    for (const Parameter& p : parameters) result += (result == begin ? "" : ", ") + p.name + p.rest;
    return result + end;
  }
  bool has(std::string_view name) const {
    return std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& p) { return p.name == name; });
  }
  /// The parameter whose sizes may be given one by one; -1 if there is none. One of dimensions is the last, as sum(x, 0, 1) would say
  /// something else in PyTorch.
  int sizes() const {
    for (std::size_t i = 0; i < parameters.size() && i < 2; ++i) {
      const Parameter& p = parameters[i];
      if (!p.is_of("int | collections.abc.Sequence[int]")) continue;
      const bool is_followed = std::any_of(parameters.begin() + std::ptrdiff_t(i) + 1, parameters.end(),
                                           [](const Parameter& q) { return q.name != "*" && !q.has_default(); });
      return is_followed || (p.name == "dims" && i + 1 < parameters.size()) ? -1 : int(i);
    }
    return -1;
  }
};

/// State of an object of the package's functions.
struct Known {
  nb::object function, name;                               ///< nanobind's own
  std::vector<std::pair<nb::object, nb::object>> renamed;  ///< another spelling, and the parameter
  int sizes = -1;
  std::string doc;
  bool is_method = false;
};

struct Function {
  PyObject base;
  vectorcallfunc call;
  vectorcallfunc inner;  ///< of nanobind's object, which `known` keeps
  PyObject* function;
  Known* known;
};
Known& known(PyObject* self) { return *reinterpret_cast<Function*>(self)->known; }

/// The signatures in Python's words.
std::string signature_lines(const Known& f, const char* between);

/// Result of a call. Where no overload takes the arguments, the error is one line.
PyObject* checked(const Known& f, PyObject* result, PyObject* const* args, std::size_t flagged, PyObject* names) noexcept {
  if (result || !PyErr_ExceptionMatches(PyExc_TypeError)) [[likely]]
    return result;
  nb::python_error error;
  try {
    const std::string name = nb::cast<std::string>(f.name), text = nb::str(error.value()).c_str();
    if (!text.starts_with(name + "(): incompatible function arguments")) {
      error.restore();
      return nullptr;
    }
    const auto count = std::size_t(PyVectorcall_NARGS(flagged)), named = names ? std::size_t(PyTuple_GET_SIZE(names)) : 0;
    std::string got;
    for (std::size_t i = 0; i < count + named; ++i) {
      const std::string type = nb::cast<std::string>(nb::handle(args[i]).type().attr("__name__"));
      got += (i == 0 ? "" : ", ") +
             (i < count ? ""
                        : nb::cast<std::string>(names ? nb::handle(PyTuple_GET_ITEM(names, Py_ssize_t(i - count))) : nb::handle()) + "=") +
             type;
    }
    PyErr_SetString(PyExc_TypeError, ("[" + name + "] expected " + signature_lines(f, " or ") + " but got (" + got + ")").c_str());
  } catch (nb::python_error& e) {
    e.restore();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  }
  return nullptr;
}

PyObject* pass_on(PyObject* self, PyObject* const* args, std::size_t count, PyObject* names) noexcept {
  const auto* const f = reinterpret_cast<Function*>(self);
  return checked(*f->known, f->inner(f->function, args, count, names), args, count, names);
}

/// The parameter that a name is another spelling of; null for its own name. Names in a program's text are interned, so that they are the
/// same object.
PyObject* parameter_of(const Known& f, PyObject* name) {
  for (const auto& [from, to] : f.renamed)
    if (from.ptr() == name) return to.ptr();
  if (PyUnicode_CHECK_INTERNED(name)) return nullptr;
  for (const auto& [from, to] : f.renamed)
    if (PyUnicode_Compare(from.ptr(), name) == 0) return to.ptr();
  return nullptr;
}

/// The names with the parameters' own ones; null and an exception if a parameter is named twice.
nb::object renamed(const Known& f, nb::handle names) {
  nb::object result = nb::borrow(names);
  const Py_ssize_t count = PyTuple_GET_SIZE(names.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const own = parameter_of(f, PyTuple_GET_ITEM(names.ptr(), i));
    if (!own) continue;
    if (PySequence_Contains(result.ptr(), own) == 1) {
      PyErr_Format(PyExc_TypeError, "%U() got '%U' and '%U', which are one parameter", f.name.ptr(), own, PyTuple_GET_ITEM(names.ptr(), i));
      return {};
    }
    if (result.is(names)) {
      result = nb::steal(PyTuple_New(count));
      if (!result.is_valid()) return {};
      for (Py_ssize_t k = 0; k < count; ++k) PyTuple_SET_ITEM(result.ptr(), k, Py_NewRef(PyTuple_GET_ITEM(names.ptr(), k)));
    }
    PyObject* const old = PyTuple_GET_ITEM(result.ptr(), i);
    PyTuple_SET_ITEM(result.ptr(), i, Py_NewRef(own));
    Py_DECREF(old);
  }
  return result;
}

bool is_size(PyObject* x) { return PyIndex_Check(x) && !PyBool_Check(x); }

PyObject* translate(PyObject* self, PyObject* const* args, std::size_t flagged, PyObject* names) noexcept {
  const Known& f = known(self);
  const auto inner = reinterpret_cast<Function*>(self)->inner;
  nb::object own = nb::borrow(names);
  if (names) {
    own = renamed(f, names);
    if (!own.is_valid()) return nullptr;
  }
  const auto count = std::size_t(PyVectorcall_NARGS(flagged)), first = std::size_t(std::max(f.sizes, 0));
  if (f.sizes < 0 || count < first + 2 || !is_size(args[first]) || !is_size(args[first + 1]))
    return checked(f, inner(f.function.ptr(), args, flagged, own.ptr()), args, flagged, own.ptr());
  std::size_t last = first + 2;
  while (last < count && is_size(args[last])) ++last;
  const nb::object sizes = nb::steal(PyTuple_New(Py_ssize_t(last - first)));
  if (!sizes.is_valid()) return nullptr;
  for (std::size_t i = first; i < last; ++i) PyTuple_SET_ITEM(sizes.ptr(), Py_ssize_t(i - first), Py_NewRef(args[i]));
  const std::size_t named = names ? std::size_t(PyTuple_GET_SIZE(names)) : 0;
  std::vector<PyObject*> all(args, args + first);
  all.push_back(sizes.ptr());
  all.insert(all.end(), args + last, args + count + named);
  return checked(f, inner(f.function.ptr(), all.data(), all.size() - named, own.ptr()), all.data(), all.size() - named, own.ptr());
}

void dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  delete reinterpret_cast<Function*>(self)->known;
  type->tp_free(self);
  Py_DECREF(type);
}
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (Known* const known = reinterpret_cast<Function*>(self)->known) Py_VISIT(known->function.ptr());
  return 0;
}
int clear(PyObject* self) {
  known(self).function.reset();
  return 0;
}
PyObject* bind_to(PyObject* self, PyObject* object, PyObject*) { return object ? PyMethod_New(self, object) : Py_NewRef(self); }

/// The signatures for stubs: nanobind's own, those with other spellings, and those with sizes one by one.
nb::object signatures(const Known& f) {
  const std::string& doc = f.doc;
  nb::list result;
  const auto add = [&](const Signature& signature, const nb::object& original) {
    nb::list parts;
    parts.append(signature.text());
    const nb::object own = original[1];
    parts.append(own.is_none() && !doc.empty() ? nb::object(nb::str(doc.c_str())) : own);
    parts.append(nb::object(original[2]));
    result.append(nb::tuple(parts));
  };
  for (const nb::handle original : f.function.attr("__nb_signature__")) {
    Signature signature(nb::cast<std::string>(original[0]));
    signature.begin = "def " + nb::cast<std::string>(f.name) + "(";
    if (f.is_method) {
      if (!signature.parameters[0].is_of("tern._core.Tensor")) continue;
      signature.parameters[0] = {"self", ""};
    }
    add(signature, nb::borrow(original));
    for (const auto& names : {std::span<const std::string_view>(torch_names), std::span<const std::string_view>(numpy_names)}) {
      Signature other = signature;
      for (const std::string_view name : names)
        for (const auto& [from, to] : spellings)
          if (to == name && !signature.has(to))
            for (Parameter& p : other.parameters)
              if (p.name == from) p.name = name;
      if (other.text() != signature.text()) add(other, nb::borrow(original));
    }
    const int sizes = signature.sizes();
    if (sizes < 0) continue;
    Signature one_by_one = signature;
    Parameter& several = one_by_one.parameters[std::size_t(sizes)];
    nb::object defaults = original[2];
    if (several.has_default()) defaults = defaults[nb::slice(nb::len(defaults) - 1)];  // it is the last parameter
    several = {"*" + several.name, ": int"};
    std::erase_if(one_by_one.parameters, [](const Parameter& p) { return p.name == "*"; });
    add(one_by_one, nb::make_tuple(original[0], original[1], defaults));
  }
  return nb::tuple(result);
}

std::string signature_lines(const Known& f, const char* between) {
  std::string lines;
  for (const nb::handle one : f.function.attr("__nb_signature__")) {
    std::string line = nb::cast<std::string>(one[0]).substr(4);
    const nb::object defaults = one[2];
    for (std::size_t i = nb::isinstance<nb::tuple>(defaults) ? nb::len(defaults) : 0; i-- > 0;) {
      const std::string mark = "\\" + std::to_string(i);
      if (const std::size_t at = line.find(mark); at != std::string::npos)
        line.replace(at, mark.size(), nb::repr(nb::object(defaults[i])).c_str());
    }
    for (const std::string place : {"tern._core.", "collections.abc.", "typing.", "DType."})
      for (std::size_t at = 0; (at = line.find(place)) != std::string::npos;) line.erase(at, place.size());
    lines += (lines.empty() ? "" : between) + line;
  }
  return lines;
}
std::string documentation(const Known& f) { return signature_lines(f, "\n") + "\n\n" + f.doc; }

/// An attribute that is computed; exceptions are Python's.
template <class F>
PyObject* computed(F f) {
  try {
    return f().release().ptr();
  } catch (nb::python_error& e) {
    e.restore();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}
PyObject* get_doc(PyObject* self, void*) {
  const Known& f = known(self);
  return computed([&] { return f.doc.empty() ? nb::object(f.function.attr("__doc__")) : nb::str(documentation(f).c_str()); });
}
PyObject* get_signatures(PyObject* self, void*) {
  const Known& f = known(self);
  return computed([&] { return signatures(f); });
}
/// No descriptors for these: the type has such names itself.
PyObject* attribute(PyObject* self, PyObject* name) {
  const Known& f = known(self);
  if (PyUnicode_CompareWithASCIIString(name, "__module__") == 0) return PyObject_GetAttr(f.function.ptr(), name);
  for (const char* const own : {"__name__", "__qualname__"})
    if (PyUnicode_CompareWithASCIIString(name, own) == 0) return Py_NewRef(f.name.ptr());
  return PyObject_GenericGetAttr(self, name);
}
PyObject* representation(PyObject* self) { return PyUnicode_FromFormat("<function tern.%U>", known(self).name.ptr()); }
PyObject* reduced(PyObject* self, PyObject*) { return known(self).name.inc_ref().ptr(); }

/// The type calls itself nanobind's own, by which its stub generator knows what has signatures.
PyTypeObject* function_type() {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Function, call), READONLY, nullptr}, {}};
  static PyGetSetDef computed_ones[] = {
      {"__doc__", get_doc, nullptr, nullptr, nullptr}, {"__nb_signature__", get_signatures, nullptr, nullptr, nullptr}, {}};
  static PyMethodDef methods[] = {{"__reduce__", reduced, METH_NOARGS, nullptr}, {}};
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_descr_get, reinterpret_cast<void*>(bind_to)},
      {Py_tp_getattro, reinterpret_cast<void*>(attribute)},
      {Py_tp_repr, reinterpret_cast<void*>(representation)},
      {Py_tp_members, members},
      {Py_tp_getset, computed_ones},
      {Py_tp_methods, methods},
      {0, nullptr},
  };
  static PyType_Spec spec = {"nanobind.nb_method", int(sizeof(Function)), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (!type) throw nb::python_error();
  return type;
}

/// Properties of a function of a module, and whether its first parameter is a tensor.
std::pair<Known, bool> describe(nb::handle name, nb::handle function, const std::string& doc) {
  std::vector<Signature> overloads;
  bool has_own_doc = false;
  for (const nb::handle one : function.attr("__nb_signature__")) {
    overloads.emplace_back(nb::cast<std::string>(one[0]));
    has_own_doc |= !nb::object(one[1]).is_none();
  }
  const auto has = [&](const char* parameter) {
    return std::any_of(overloads.begin(), overloads.end(), [&](const Signature& s) { return s.has(parameter); });
  };
  Known known{nb::borrow(function), nb::borrow(name), {}, overloads[0].sizes(), has_own_doc ? "" : doc};
  for (const auto& [own, other] : spellings)
    if (has(own) && !has(other))
      known.renamed.emplace_back(nb::steal(PyUnicode_InternFromString(other)), nb::steal(PyUnicode_InternFromString(own)));
  const auto& parameters = overloads[0].parameters;
  return {std::move(known), !parameters.empty() && parameters[0].is_of("tern._core.Tensor")};
}

nb::object object_of(const Known& known) {
  PyTypeObject* const type = function_type();
  const nb::object result = nb::steal(type->tp_alloc(type, 0));
  if (!result.is_valid()) throw nb::python_error();
  auto* const self = reinterpret_cast<Function*>(result.ptr());
  self->call = known.renamed.empty() && known.sizes < 0 ? pass_on : translate;
  self->function = known.function.ptr();
  self->inner = PyVectorcall_Function(self->function);
  self->known = new Known(known);
  return result;
}

std::string docstring(const std::string& name) {
  const auto* const end = docstrings + docstring_count;
  const auto* const found = std::lower_bound(docstrings, end, name, [](const Docstring& d, const std::string& n) { return d.name < n; });
  return found != end && found->name == name ? found->text : "";
}

}  // namespace

void publish(nb::module_& m, const std::string& place, nb::class_<Tensor>* methods) {
  for (const auto& [name, value] : nb::borrow<nb::dict>(m.attr("__dict__").attr("copy")())) {
    const auto text = nb::cast<std::string>(name);
    const std::string doc = docstring(place + text);
    const std::string kind = Py_TYPE(value.ptr())->tp_name;
    if (kind == "nanobind.nb_func") {
      auto [known, is_of_tensor] = describe(name, value, doc);
      const bool is_excluded = std::find(std::begin(no_methods), std::end(no_methods), text) != std::end(no_methods);
      const bool is_method = methods && !is_excluded && is_of_tensor;
      const auto place_under = [&](nb::handle at) {
        known.name = nb::borrow(at);
        known.is_method = false;
        nb::setattr(m, at, object_of(known));
        known.is_method = true;
        if (is_method) nb::setattr(*methods, at, object_of(known));
      };
      place_under(name);
      for (const auto& [own, other] : other_names)
        if (methods && own == text) place_under(nb::str(other));
    } else if (PyType_Check(value.ptr()) && !doc.empty() && nb::object(value.attr("__doc__")).is_none()) {
      nb::setattr(value, "__doc__", nb::str(doc.c_str()));
    }
  }
}

}  // namespace tern::python
